"""Checkpoints of a training. Each is one commit of a branch, with the step as metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Unpack

from lodefs.api.history import log
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.metadata import new_metadata
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.session import Where, opened, revision_of

if TYPE_CHECKING:
    from lodefs.api.transactions import Part

KEY = "step"  # a key of the metadata, and a file with the same content


class Checkpoint(NamedTuple):
    """A complete checkpoint: ``REPO@COMMIT``, which ``lodefs.snapshot``, ``lodefs.pull`` and
    ``lodefs.mount`` accept, and its step."""

    spec: str
    step: int


def latest(repo: str | Spec, step: int | None = None, **where: Unpack[Where]) -> Checkpoint | None:
    """Returns the newest checkpoint of ``REPO[@BRANCH]``, or the newest one of a step; None if
    there is none. Commits without a step are skipped. ``store`` and ``session``: as for ``push``.
    Raises: Corrupt, Unavailable."""
    spec = revision_of(repo)
    wanted = KEY if step is None else f"{KEY}={step}"
    with opened(**where) as session:
        try:
            found, _ = session.store.locate(spec)
        except NotFound:
            return None
        for entry in log(spec, first_parent=True, metadata=[wanted], session=session):
            text = dict(entry.commit.metadata)[KEY]
            if text.isdecimal():
                return Checkpoint(f"{found.repo}@{entry.id}", int(text))
    return None


def step_metadata(step: int, metadata: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Returns the metadata of a checkpoint's commit: the given one, and the step. Raises:
    InvalidInput."""
    if step < 0:
        raise InvalidInput(f"a step must be a whole number from 0 on, not {step}")
    return {**dict(new_metadata(metadata)), KEY: str(step)}


class StepCommit:
    """A checkpoint that is being saved, in the coordinating process: a transaction, and a part of
    it for each rank. It replaces the content of the branch. If any process dies, the branch stays
    as it was.

    ``message``: of the commit, by default "step N". ``metadata``: of the commit, besides the step.
    ``author``, ``store``: as for ``push``.
    """

    def __init__(
        self,
        repo: str | Spec,
        step: int,
        *,
        message: str | None = None,
        author: str | None = None,
        metadata: Mapping[str, str] | Iterable[str] = (),
        store: str | None = None,
    ) -> None:
        from lodefs.api.transactions import transaction

        self._step = step
        self._block = ExitStack()
        self._transaction = transaction(
            repo,
            message=f"step {step}" if message is None else message,
            author=author,
            metadata=step_metadata(step, metadata),
            store=store,
        )

    def parts(self, ranks: int) -> list[Part]:
        """Begins with no content, and returns a part for each rank, which writes paths of its own.
        Raises what a transaction raises."""
        with ExitStack() as block:
            tx = block.enter_context(self._transaction)
            for name in tx.staging.children(()):
                tx.staging.remove((name,))
            parts = [tx.fork() for _ in range(ranks)]
            self._block = block.pop_all()
        return parts

    def commit(self, parts: Iterable[Part], files: Mapping[str, bytes]) -> Checkpoint:
        """Commits what ranks have written, as their processes returned it, and ``files``. After an
        error nothing is committed. Raises what a transaction raises."""
        tx = self._transaction
        with self._block:
            tx.merge(parts)
            for path, content in {**files, KEY: b"%d\n" % self._step}.items():
                tx.put(path, content)
        if tx.result is None:
            raise InvalidInput("this checkpoint has not begun, or was discarded")
        return Checkpoint(f"{tx.spec.repo}@{tx.result.commit}", self._step)

    def discard(self) -> None:
        """Discards the checkpoint, if it has begun."""
        if self._transaction.is_open:
            self._transaction.discard()
