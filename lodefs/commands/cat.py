"""``lodefs cat``."""

from __future__ import annotations

import sys

import click

from chunkstore.errors import InvalidInput
from chunkstore.names import Spec
from chunkstore.tree import Kind
from lodefs.options import SPEC, output_error, session_command
from lodefs.session import Session
from lodefs.text import shown


@click.command()
@click.argument("spec", metavar="REPO[@REV]:PATH", type=SPEC)
@session_command(store=True)
def cat(session: Session, spec: Spec) -> None:
    """Write the file at PATH to standard output. Every byte is verified before it is written."""
    from chunkstore.history import find

    entry = find(session.store, spec)
    if entry.kind is not Kind.FILE:
        kind = entry.kind.name.lower()
        what = f"; it points to {shown(entry.target)}" if entry.kind is Kind.SYMLINK else ""
        raise InvalidInput(f"{spec} is a {kind}, not a file{what}")
    out = sys.stdout.buffer
    for piece in session.store.packs.read_file(entry):
        try:
            out.write(piece)
        except OSError as error:
            raise output_error(error) from None
