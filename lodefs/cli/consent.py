"""Asks for consent before what is hard to undo: by a question at a terminal, else by an option."""

from __future__ import annotations

import sys

import click

from lodefs.chunkstore.errors import InvalidInput


def has_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_consent(what: str, *, is_given: bool) -> None:
    """Asks for consent unless ``is_given``. Raises: Abort if the answer is no; InvalidInput if
    nobody can be asked."""
    if is_given:
        return
    if not has_terminal():
        raise InvalidInput(f"{what}: give --yes to do this without a question")
    click.confirm(f"{what}. Go on?", err=True, abort=True)
