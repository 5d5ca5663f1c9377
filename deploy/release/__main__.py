"""``python -m deploy.release``: all artefacts of a release, up to the upload. See ``./run release
--help``."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.release import checks, contents, sbom
from deploy.release.parts import FOREIGN_TOOLS, MACHINES, PARTS, PYTHON, Part, Workshop
from lodefs.chunkstore.errors import AlreadyExists, InvalidInput, LodefsError, NotFound

SUMS = "SHA256SUMS"
SBOM_SUFFIX = ".cdx.json"
NAMES = [part.name for part in PARTS]


def options(words: Sequence[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        "./run release",
        description="Builds all artefacts of a release from the last commit: wheel and source"
        " archive, Debian packages, bundles, images, the chart; of each a bill of materials"
        f" (CycloneDX); and {SUMS}. Uploads nothing.",
    )
    parser.add_argument("--out", type=Path, default=Path("dist"), help="directory [dist]")
    parser.add_argument("--only", default=",".join(NAMES), metavar="PART,...",
                        help=f"of {', '.join(NAMES)} [all]")  # fmt: skip
    parser.add_argument("--architectures", default="amd64,arm64", metavar="NAME,...",
                        help="[amd64,arm64]")  # fmt: skip
    parser.add_argument("--wheel", type=Path, help="take this wheel, and build none")
    parser.add_argument("--rehearsal", action="store_true",
                        help="the section of CHANGELOG.md may say (not released)")  # fmt: skip
    parser.add_argument("--source", type=Path, default=Path(), help="the checkout [.]")
    return parser.parse_args(words)


def git(source: Path, *words: str) -> str:
    """What git prints. Raises: NotFound."""
    try:
        done = subprocess.run(
            ["git", "-C", str(source), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise NotFound("git is missing (Debian: git)") from error
    if done.returncode:
        raise NotFound(f"{source} is no git checkout: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def check(source: Path, *, is_rehearsal: bool) -> str:
    """The version, if the checkout can be released. Raises: LodefsError."""
    checks.check_clean(git(source, "status", "--porcelain"))
    version = checks.version_of((source / "pyproject.toml").read_text())
    checks.check_changelog(
        (source / "CHANGELOG.md").read_text(), version, is_rehearsal=is_rehearsal
    )
    checks.check_chart((source / "deploy/helm/lodefs/Chart.yaml").read_text(), version)
    tags = git(source, "tag", "--list").split()
    checks.check_tag(version, tags, git(source, "tag", "--points-at", "HEAD").split())
    return version


def selected(only: str, architectures: str) -> list[tuple[Part, str]]:
    """What is to be built, with the architecture of each. The part python comes first, since all
    others have its wheel in them. Raises: InvalidInput."""
    asked, machines = only.split(","), architectures.split(",")
    for name, known in ((n, NAMES) for n in asked):
        if name not in known:
            raise InvalidInput(f"--only: there is no part {name!r}; known are {', '.join(known)}")
    for name in machines:
        if name not in MACHINES.values():
            raise InvalidInput(f"--architectures: there is no {name!r}; known are amd64, arm64")
    return [
        (part, machine)
        for part in PARTS
        if part.name in asked or part.name == PYTHON
        for machine in (machines if part.for_each else [_own()])
    ]


def _own() -> str:
    return MACHINES.get(os.uname().machine, os.uname().machine)


def check_tools(wanted: Sequence[tuple[Part, str]]) -> None:
    """That all programs are there, before anything is built. Raises: NotFound."""
    tools = {name: package for part, _ in wanted for name, package in part.tools.items()}
    if any(part.for_each and machine != _own() for part, machine in wanted):
        tools |= FOREIGN_TOOLS
    missing = sorted(package for name, package in tools.items() if not shutil.which(name))
    if missing:
        raise NotFound(f"missing programs; as root: apt-get install {' '.join(missing)}")
    for part, _ in wanted:
        if part.needs_root and os.geteuid() != 0:
            raise NotFound(f"only root can build the part {part.name}; run it as root, or --only")


def sums(folder: Path) -> str:
    """SHA-256 of each file of a directory, as sha256sum prints it."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name != SUMS:
            with path.open("rb") as data:
                lines.append(f"{hashlib.file_digest(data, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)


def build(shop: Workshop, wanted: Sequence[tuple[Part, str]]) -> None:
    """Builds all parts into ``shop.out``, with bills of materials. Raises: LodefsError."""
    for part, machine in wanted:
        one = Workshop(shop.source, shop.out, shop.scratch, shop.version, machine, shop.time_s)
        path, start = part.path(one), time.monotonic()
        print(f"release: {path.name} ...", file=sys.stderr, flush=True)
        part.build(one, path)
        size_mb, took_s = path.stat().st_size / 1e6, time.monotonic() - start
        print(f"release: {path.name}: {size_mb:.1f} MB in {took_s:.0f} s", file=sys.stderr)
        for artefact in [path, shop.sdist] if part.name == PYTHON else [path]:
            text = sbom.describe(
                artefact.name, shop.version, contents.of_artefact(artefact), shop.time_s
            )
            (shop.out / f"{artefact.name}{SBOM_SUFFIX}").write_text(text)
    (shop.out / SUMS).write_text(sums(shop.out))


def release(said: argparse.Namespace) -> Path:
    """Builds a release in a directory of its own, and moves its files to their place when all are
    whole. Gives the directory. Raises: LodefsError."""
    source, out = Path(said.source).absolute(), Path(said.out).absolute()
    wanted = selected(said.only, said.architectures)
    version = check(source, is_rehearsal=said.rehearsal)
    if (out / SUMS).exists():
        raise AlreadyExists(f"{out} has a release already; remove it, or give another --out")
    check_tools(wanted)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lodefs-release-") as name:
        scratch = Path(name)
        copy, built = scratch / "source", scratch / "out"
        built.mkdir()
        git(source, "clone", "-q", "--no-hardlinks", str(source), str(copy))
        time_s = int(git(copy, "log", "-1", "--format=%ct"))
        shop = Workshop(copy, built, scratch, version, _own(), time_s)
        if said.wheel:
            shutil.copy(said.wheel, shop.wheel)
        build(shop, wanted)
        out.mkdir(exist_ok=True)
        for path in sorted(built.iterdir(), key=lambda one: one.name == SUMS):
            shutil.move(path, out / path.name)
    return out


def main() -> None:
    """See the module."""
    try:
        print(release(options(sys.argv[1:])))
    except LodefsError as error:
        print(f"release: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
