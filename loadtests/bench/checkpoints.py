"""``./run bench checkpoints``: four ranks save 2 GB together, while their training goes on.

Each rank copies its tensors to memory, as ``torch.distributed.checkpoint.async_save`` does, and a
thread writes the copy into its part of the transaction; the first rank commits. The step is blocked
from its end until the next one may begin. The torch that has tensors is too large for this: they
are bytes here, and what torch sends between ranks goes through pipes.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

from loadtests.cli import Lodefs
from loadtests.errors import LoadtestError
from loadtests.results import Result
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import open_store
from lodefs.torch import latest
from lodefs.torch.checkpoint_step import StepCommit

RANKS = 4
TENSORS, TENSOR_BYTES = 16, 32 << 20  # for each rank; 2 GiB together
STEPS = 3
COPIES = 5
TIMEOUT_S = 1800
BLOCKED_MAX = 1.1  # limit, relative to the copy to memory


@dataclass(frozen=True)
class _Saved:
    """The times of one checkpoint in a rank, in seconds."""

    copied_s: float
    blocked_s: float
    written_s: float


def checkpoints(scratch: Path) -> Result:
    """How long a step is blocked, relative to the copy to memory, and when the commit is done."""
    result = Result("checkpoints")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", lodefs.store)
    os.environ.update(lodefs.environment())
    ranks = [_Rank() for _ in range(RANKS)]
    try:
        saves = [_save(ranks, step) for step in range(1, STEPS + 1)]
    finally:
        for rank in ranks:
            rank.end()
    found = latest("bench")
    if found is None or found.step != STEPS:
        raise LoadtestError(f"checkpoints: the latest is {found}, not step {STEPS}")
    store = open_store(DirectoryObjects(lodefs.store))
    commit = store.commit("bench", store.resolve("bench", "main"))
    if commit.size_bytes < RANKS * TENSORS * TENSOR_BYTES:
        raise LoadtestError("checkpoints: the commit has less than the ranks have written")
    seen = [one for _, some in saves for one in some]
    copied_s = statistics.median(one.copied_s for one in seen)
    blocked_s = statistics.median(one.blocked_s for one in seen)
    result.add("the copy to memory, p50 of the ranks", copied_s, "s")
    result.add("the step is blocked, p50 of the ranks", blocked_s, "s")
    result.add("the step is blocked / the copy", blocked_s / copied_s, "x", at_most=BLOCKED_MAX)
    result.add("a rank's part is written, p50", statistics.median(o.written_s for o in seen), "s")
    result.add("the commit is there, p50", statistics.median(took_s for took_s, _ in saves), "s")
    return result


def _save(ranks: list[_Rank], step: int) -> tuple[float, list[_Saved]]:
    """Saves one checkpoint. Returns the seconds until it is committed, and the ranks' times."""
    commit = StepCommit("bench", step)
    begun_s = perf_counter()
    for rank, part in zip(ranks, commit.parts(RANKS), strict=True):
        rank.ask((part, step))
    answers = [rank.answer() for rank in ranks]
    commit.commit([part for part, _ in answers], {})
    return perf_counter() - begun_s, [saved for _, saved in answers]


class _Rank:
    """A process with tensors of its own."""

    def __init__(self) -> None:
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._pipe = here
        self._process = context.Process(target=_train, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def ask(self, what: Any) -> None:
        self._pipe.send(what)

    def answer(self) -> Any:
        if not self._pipe.poll(TIMEOUT_S):
            raise LoadtestError("checkpoints: a rank does not answer")
        return self._pipe.recv()

    def end(self) -> None:
        self._pipe.close()
        self._process.join(TIMEOUT_S)


def _train(pipe: Connection) -> None:
    """A rank: for each checkpoint it is asked for it answers with its part, and what it saw."""
    tensors = [bytearray(os.urandom(TENSOR_BYTES)) for _ in range(TENSORS)]
    copies = [bytearray(TENSOR_BYTES) for _ in range(TENSORS)]
    while True:
        try:
            part, step = pipe.recv()
        except EOFError:
            return
        for tensor in tensors:  # the changes of a step
            tensor[:8] = step.to_bytes(8)
            tensor[:] = tensor[::-1]
        copied_s = statistics.median(_timed(lambda: _copy(tensors, copies)) for _ in range(COPIES))
        begun_s = perf_counter()
        _copy(tensors, copies)
        writer = Thread(target=_write, args=(part, copies))
        writer.start()
        blocked_s = perf_counter() - begun_s
        writer.join()
        pipe.send((part, _Saved(copied_s, blocked_s, perf_counter() - begun_s)))


def _copy(tensors: list[bytearray], copies: list[bytearray]) -> None:
    for tensor, copy in zip(tensors, copies, strict=True):
        copy[:] = tensor


def _write(part: Any, copies: list[bytearray]) -> None:
    with part as open_part:
        for number, copy in enumerate(copies):
            with open_part.open(f"rank-{os.getpid()}/{number:05}") as file:
                file.write(copy)


def _timed(do: Callable[[], None]) -> float:
    begun_s = perf_counter()
    do()
    return perf_counter() - begun_s
