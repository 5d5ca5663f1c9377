"""What must be true before a release is built. All functions are pure: they get text, and raise
InvalidInput or AlreadyExists, which name the thing and the way out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection

from lodefs.chunkstore.errors import AlreadyExists, InvalidInput

VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}")
_CHANGED_SHOWN = 3


def version_of(pyproject: str) -> str:
    """The version in pyproject.toml: the one place that has it. Raises: InvalidInput."""
    version = str(tomllib.loads(pyproject).get("project", {}).get("version", ""))
    if not VERSION.fullmatch(version):
        raise InvalidInput(
            f"pyproject.toml: the version {version!r} is not like 1.2.3 or 1.2.3rc1; correct it"
        )
    return version


def debian_version(version: str) -> str:
    """The same in Debian's order, in which 1.0.0~rc1 comes before 1.0.0."""
    return re.sub(r"(a|b|rc)(\d)", r"~\1\2", version)


def check_clean(status: str) -> None:
    """That nothing is changed; ``status`` is what `git status --porcelain` prints. Raises:
    InvalidInput."""
    changed = [line[3:] for line in status.splitlines()]
    if changed:
        shown = ", ".join(changed[:_CHANGED_SHOWN])
        more = f" and {len(changed) - _CHANGED_SHOWN} more" if changed[_CHANGED_SHOWN:] else ""
        raise InvalidInput(
            f"the checkout has changes that are not committed: {shown}{more}; commit them, or"
            " release from a fresh clone"
        )


def check_tag(version: str, tags: Collection[str], tags_of_head: Collection[str]) -> None:
    """That no other commit has been released as this version. Raises: AlreadyExists."""
    tag = f"v{version}"
    if tag in tags and tag not in tags_of_head:
        raise AlreadyExists(
            f"the version {version} exists: the tag {tag} is of another commit; raise the version"
            " in pyproject.toml"
        )


def check_changelog(changelog: str, version: str, *, is_rehearsal: bool) -> None:
    """That CHANGELOG.md has a section of this version, with a day and at least one line.

    A rehearsal takes a section that is "(not released)". Raises: InvalidInput.
    """
    section = re.search(
        rf"^## {re.escape(version)} \(([^)\n]*)\)\n(.*?)(?=^## |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if section is None:
        raise InvalidInput(f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)`; write it")
    if not section[2].strip():
        raise InvalidInput(f"CHANGELOG.md: the section of {version} is empty; say what is new")
    if not is_rehearsal and not _DATED.fullmatch(section[1]):
        raise InvalidInput(
            f"CHANGELOG.md: the section of {version} says {section[1]!r}; write the day of the"
            " release as YYYY-MM-DD, or add --rehearsal"
        )


def check_chart(chart: str, version: str) -> None:
    """That the chart has this version, and the image of this version. Raises: InvalidInput."""
    for field in ("version", "appVersion"):
        found = re.search(rf"^{field}: *\"?([^\"\s]+)\"?$", chart, re.MULTILINE)
        if found is None or found[1] != version:
            raise InvalidInput(
                f"deploy/helm/lodefs/Chart.yaml: {field} is {found[1] if found else 'missing'}, but"
                f" pyproject.toml has the version {version}; write that, then run"
                " deploy/kubernetes/render.sh"
            )
