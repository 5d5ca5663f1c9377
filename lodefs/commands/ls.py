"""``lodefs ls``."""

from __future__ import annotations

import click

from lodefs.chunkstore.errors import InvalidInput
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

_MARKS = {Kind.FILE: "-", Kind.DIRECTORY: "d", Kind.SYMLINK: "l"}


EPILOG = examples(
    "lodefs ls                                     # the repositories of the store",
    "lodefs ls -l vision/flickr30k@v1.0:images",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="[REPO[@REV][:PATH]]", type=SPEC, required=False)
@click.option("-l", "long", is_flag=True, help="Show kind, size and digest too.")
@click.option("-R", "recursive", is_flag=True, help="List all directories below, with paths.")
@json_option
@session_command(store=True)
def ls(session: Session, spec: Spec | None, long: bool, recursive: bool, as_json: bool) -> None:
    """List the repositories of the store, or a directory of a revision; a file is listed alone.

    With --json: one object a line, with percent-encoded paths.
    """
    from lodefs.chunkstore.repo.history import listing

    reject({"-l": long and as_json}, "does nothing with --json, which shows all of an entry")

    if spec is None:
        if long or recursive:
            raise InvalidInput("-l and -R need a REPO")
        _list_repos(session, as_json=as_json)
        return
    for path, entry in listing(session.store, spec, recursive=recursive):
        if as_json:
            write_json(json_of(path, entry))
        elif long:
            write_line(long_line(path, entry))
        else:
            write_line(text.escaped(path) + ("/" if entry.kind is Kind.DIRECTORY else ""))


def _list_repos(session: Session, *, as_json: bool) -> None:
    for repo in session.store.repos():
        if as_json:
            write_json({"repo": repo})
        else:
            write_line(repo)


def json_of(path: bytes, entry: Entry) -> dict[str, object]:
    """An entry for scripts."""
    found: dict[str, object] = {
        "path": text.percent_encoded(path),
        "kind": entry.kind.name.lower(),
        "digest": entry.digest.hex(),
    }
    if entry.kind is Kind.FILE:
        found |= {"size_bytes": entry.size_bytes, "executable": entry.executable}
    if entry.kind is Kind.SYMLINK:
        found["target"] = text.percent_encoded(entry.target)
    return found


def long_line(path: bytes, entry: Entry) -> str:
    """``-x   1234  0123456789ab  name``."""
    mark = _MARKS[entry.kind] + ("x" if entry.executable else "-")
    amount = str(entry.size_bytes) if entry.kind is Kind.FILE else "-"
    name = text.escaped(path)
    if entry.kind is Kind.DIRECTORY:
        name += "/"
    elif entry.kind is Kind.SYMLINK:
        name += f" -> {text.escaped(entry.target)}"
    return f"{mark} {amount:>14}  {entry.digest.hex()[:12]}  {name}"
