"""``lodefs diff``."""

from __future__ import annotations

import click

from lodefs.api.history import diff as changes
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.cli import text
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.settings.session import Session

_MARKS = {"added": "A", "removed": "D", "changed": "M", "type changed": "T"}


EPILOG = examples(
    "lodefs diff vision/flickr30k@v1.0 vision/flickr30k@main",
    "lodefs diff vision/flickr30k@v1.0:captions.csv vision/flickr30k:captions.csv",
)


@click.command(epilog=EPILOG)
@click.argument("before", metavar="REPO@A[:PATH]", type=SPEC)
@click.argument("after", metavar="REPO@B[:PATH]", type=SPEC)
@click.option("--exit-code", is_flag=True, help="Exit with 1 if anything differs.")
@json_option
@session_command(store=True)
def diff(session: Session, before: Spec, after: Spec, exit_code: bool, as_json: bool) -> None:
    """Show what differs between two revisions, by path: A added, D removed, M changed,
    T of another type.
    """
    counts = dict.fromkeys(_MARKS, 0)
    for change in changes(before, after, session=session):
        counts[change.what.value] += 1
        if as_json:
            write_json(
                {
                    "change": change.what.value,
                    "path": text.percent_encoded(change.path),
                    "before": _json_of(change.before),
                    "after": _json_of(change.after),
                }
            )
        else:
            sizes = _sizes(change.before, change.after)
            write_line(f"{_MARKS[change.what.value]}  {text.escaped(change.path)}  ({sizes})")
    if not as_json:
        summary = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
        write_line(summary or "no difference")
    if exit_code and any(counts.values()):
        session.exit_code = 1


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
