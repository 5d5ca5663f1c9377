"""``lodefs ls`` and ``lodefs cat``."""

from __future__ import annotations

import sys

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.text import escaped
from lodefs.settings.session import Session

_MARKS = {Kind.FILE: "-", Kind.DIRECTORY: "d", Kind.SYMLINK: "l"}


@cli.command(
    "lodefs ls                                     # the repositories of the store",
    "lodefs ls -l vision/flickr30k@v1.0:images",
    store=True,
)
def ls(
    session: Session,
    spec: Spec | None = cli.argument("[REPO[@REV][:PATH]]"),
    long: bool = cli.option("Also show kind, size and digest.", "-l"),
    recursive: bool = cli.option("Also list all directories below, with paths.", "-R"),
    as_json: bool = cli.JSON,
) -> None:
    """List the repositories of the store, or a file or directory of a revision.

    --json writes one object per line, with percent-encoded paths.
    """
    from lodefs.chunkstore.repo.history import listing

    cli.reject({"-l": long and as_json}, "does nothing with --json, which shows everything")

    if spec is None:
        if long or recursive:
            raise InvalidInput("-l and -R need a REPO")
        _list_repos(session, as_json=as_json)
        return
    for path, entry in listing(session.store, spec, recursive=recursive):
        if as_json:
            cli.write_json(json_of(path, entry))
        elif long:
            cli.write_line(long_line(path, entry))
        else:
            cli.write_line(text.escaped(path) + ("/" if entry.kind is Kind.DIRECTORY else ""))


def _list_repos(session: Session, *, as_json: bool) -> None:
    for repo in session.store.repos():
        if as_json:
            cli.write_json({"repo": repo})
        else:
            cli.write_line(repo)


def json_of(path: bytes, entry: TreeEntry) -> dict[str, object]:
    """Returns an entry as JSON, for scripts."""
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


def long_line(path: bytes, entry: TreeEntry) -> str:
    """``-x   1234  0123456789ab  name``."""
    mark = _MARKS[entry.kind] + ("x" if entry.executable else "-")
    amount = str(entry.size_bytes) if entry.kind is Kind.FILE else "-"
    name = text.escaped(path)
    if entry.kind is Kind.DIRECTORY:
        name += "/"
    elif entry.kind is Kind.SYMLINK:
        name += f" -> {text.escaped(entry.target)}"
    return f"{mark} {amount:>14}  {entry.digest.hex()[:12]}  {name}"


@cli.command("lodefs cat vision/flickr30k@v1.0:captions.csv | head", store=True)
def cat(session: Session, spec: Spec = cli.argument("REPO[@REV]:PATH")) -> None:
    """Write the file at PATH to standard output. Every byte is verified before it is written."""
    from lodefs.chunkstore.repo.history import find
    from lodefs.chunkstore.repo.pack_reader import damaged

    entry = find(session.store, spec)
    if entry.kind is not Kind.FILE:
        kind = entry.kind.name.lower()
        what = f"; it points to {escaped(entry.target)}" if entry.kind is Kind.SYMLINK else ""
        raise InvalidInput(f"{spec} is a {kind}, not a file{what}")
    out = sys.stdout.buffer
    try:
        for piece in session.store.packs.read_file(entry):
            try:
                out.write(piece)
            except OSError as error:
                raise cli.output_error(error) from None
    except Corrupt as error:
        raise damaged(spec, error) from error
