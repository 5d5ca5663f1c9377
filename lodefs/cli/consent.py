"""Asks for consent before what is hard to undo: by a question at a terminal, else by an option."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from lodefs.chunkstore.errors import InvalidInput, TooManyRemovals
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.cli import text
from lodefs.cli.progress_bars import show_progress

if TYPE_CHECKING:
    from lodefs.chunkstore.push.limits import Removals
    from lodefs.chunkstore.push.session import CommitResult


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


class Consent:
    """Whether a push may remove most of a branch: by an option, or by the answer to a question."""

    def __init__(self, spec: Spec, *, is_given: bool) -> None:
        self._spec = spec
        self._is_given = is_given
        self._refused: Removals | None = None
        # The trees of which most files may be removed
        self._allowed: set[tuple[CommitId, bytes]] = set()

    def allows(self, removals: Removals) -> bool:
        """Answers without a question, since the progress bar has the terminal during a push."""
        self._refused = removals
        return self._is_given or (removals.head, removals.path) in self._allowed

    def ask(self) -> bool:
        """Asks about a refused push, if there is a terminal. The answer holds for that head of the
        branch only, since another head may have other files."""
        refused = self._refused
        if refused is None or not has_terminal():
            return False
        where = Spec(self._spec.repo, self._spec.rev, refused.path)
        question = (
            f"This removes {refused.removed_files:,} of the {text.count(refused.files, 'file')} of "
            f"{where} (files that moved count as removed). Push?"
        )
        if not click.confirm(question, err=True):
            return False
        self._allowed.add((refused.head, refused.path))
        return True


def with_consent(push_once: Callable[..., CommitResult], consent: Consent) -> CommitResult:
    """Runs a push, and runs it again when the user has consented to what it refused."""
    gc.disable()  # millions of objects without cycles: looking for cycles takes a tenth of the time
    try:
        while True:
            try:
                with show_progress() as progress:
                    return push_once(progress=progress)
            except TooManyRemovals:
                if not consent.ask():
                    raise  # a second run reads and sends nothing again
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("the data sent so far stays: repeat the command to continue")
        raise
    finally:
        gc.freeze()  # the objects that are left are not scanned at exit
        gc.enable()
