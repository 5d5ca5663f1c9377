"""``lodefs cat``."""

from __future__ import annotations

import sys

import click

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.format.tree import Kind
from lodefs.cli.options import SPEC, examples, output_error, session_command
from lodefs.cli.text import escaped
from lodefs.settings.session import Session


@click.command(epilog=examples("lodefs cat vision/flickr30k@v1.0:captions.csv | head"))
@click.argument("spec", metavar="REPO[@REV]:PATH", type=SPEC)
@session_command(store=True)
def cat(session: Session, spec: Spec) -> None:
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
                raise output_error(error) from None
    except Corrupt as error:
        raise damaged(spec, error) from error
