"""Asks before what is hard to undo: at a terminal a question, in scripts an option."""

from __future__ import annotations

import sys

import click

from lodefs.chunkstore.errors import InvalidInput


def has_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_consent(what: str, *, is_given: bool) -> None:
    """Asks whether to do it, unless that was said already. Raises: Abort for a no; InvalidInput
    where nobody can be asked."""
    if is_given:
        return
    if not has_terminal():
        raise InvalidInput(f"{what}: say --yes to do that without a question")
    click.confirm(f"{what}. Go on?", err=True, abort=True)
