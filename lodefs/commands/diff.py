"""``lodefs diff``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from lodefs.api.history import diff as changes
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.cli import text
from lodefs.cli.options import (
    SPEC,
    examples,
    json_option,
    reject,
    session_command,
    write_json,
    write_line,
)
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.repo.history import Change

_MARKS = {"added": "A", "removed": "D", "changed": "M", "type changed": "T"}


EPILOG = examples(
    "lodefs diff vision/flickr30k@v1.0 vision/flickr30k@main",
    "lodefs diff --stat vision/flickr30k@v1.0 vision/flickr30k@main",
    "lodefs diff vision/flickr30k@v1.0:captions.csv vision/flickr30k:captions.csv",
)


@click.command(epilog=EPILOG)
@click.argument("before", metavar="REPO@A[:PATH]", type=SPEC)
@click.argument("after", metavar="REPO@B[:PATH]", type=SPEC)
@click.option("--exit-code", is_flag=True, help="Exit with 1 if anything differs.")
@click.option("--stat", is_flag=True, help="Only how many files and bytes differ.")
@click.option("--name-only", is_flag=True, help="Only the paths.")
@json_option
@session_command(store=True)
def diff(
    session: Session,
    before: Spec,
    after: Spec,
    exit_code: bool,
    stat: bool,
    name_only: bool,
    as_json: bool,
) -> None:
    """Show what differs between two revisions, by path: A added, D removed, M changed,
    T of another type.
    """
    reject({"--name-only": name_only and stat}, "does nothing with --stat")
    counts = {what: _Count() for what in _MARKS}
    for change in changes(before, after, session=session):
        counts[change.what.value].add(change)
        if not stat:
            _show(change, name_only=name_only, as_json=as_json)
    if stat:
        _show_counts(counts, as_json=as_json)
    elif not as_json and not name_only:
        summary = ", ".join(
            f"{one.entries:,} {what}" for what, one in counts.items() if one.entries
        )
        write_line(summary or "no difference")
    if exit_code and any(one.entries for one in counts.values()):
        session.exit_code = 1


@dataclass(slots=True)
class _Count:
    """What differs in one way. Bytes: of files, as they are now, of removed ones as they were."""

    entries: int = 0
    files: int = 0  # symlinks too
    size_bytes: int = 0

    def add(self, change: Change) -> None:
        self.entries += 1
        entry = change.after or change.before
        if entry is not None and entry.kind is not Kind.DIRECTORY:
            self.files += 1
            self.size_bytes += entry.size_bytes if entry.kind is Kind.FILE else 0


def _show(change: Change, *, name_only: bool, as_json: bool) -> None:
    path = text.percent_encoded(change.path)
    if as_json and name_only:
        write_json({"path": path})
    elif as_json:
        write_json(
            {
                "change": change.what.value,
                "path": path,
                "before": _json_of(change.before),
                "after": _json_of(change.after),
            }
        )
    elif name_only:
        write_line(text.escaped(change.path))
    else:
        sizes = _sizes(change.before, change.after)
        write_line(f"{_MARKS[change.what.value]}  {text.escaped(change.path)}  ({sizes})")


def _show_counts(counts: dict[str, _Count], *, as_json: bool) -> None:
    if as_json:
        keys = {what: what.replace(" ", "_") for what in counts}
        found = {f"{keys[what]}_files": one.files for what, one in counts.items()}
        write_json(found | {f"{keys[what]}_bytes": one.size_bytes for what, one in counts.items()})
        return
    for what, one in counts.items():
        if one.entries:
            write_line(f"{what:<13}{text.count(one.files, 'file')}, {text.size(one.size_bytes)}")
    if not any(one.entries for one in counts.values()):
        write_line("no difference")


def _sizes(before: Entry | None, after: Entry | None) -> str:
    """Both sizes; in bytes if they would look equal and are not."""
    sizes = _size(before), _size(after)
    if sizes[0] == sizes[1] and before and after and before.size_bytes != after.size_bytes:
        sizes = f"{before.size_bytes:,} B", f"{after.size_bytes:,} B"
    return " -> ".join(sizes)


def _size(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    if entry.kind is Kind.FILE:
        return text.size(entry.size_bytes)
    return entry.kind.name.lower()


def _json_of(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    found: dict[str, object] = {"kind": entry.kind.name.lower(), "digest": entry.digest.hex()}
    if entry.kind is Kind.FILE:
        found |= {"size_bytes": entry.size_bytes, "executable": entry.executable}
    return found
