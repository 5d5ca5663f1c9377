"""A shuffled order of files that reads packs, and the cache, one part at a time.

Packs are filled in the order of paths, so that a run of neighbouring paths with the size of a pack
lies in one or two packs. The runs are shuffled, and the files of a window of runs are shuffled
again. Two neighbours by path, perhaps of one class, are therefore at most a window apart in an
epoch, though in another order each time. A larger window is closer to a full shuffle, and needs
more data in the cache at a time. If neighbours are alike and the window is small, batches are
alike, too: push files in an order that mixes them, or use a larger window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Any

from lodefs.chunkstore.errors import InvalidInput
from lodefs.torch.epoch_position import EpochPosition, check_order
from lodefs.torch.file_dataset import FileDataset
from lodefs.torch.hints import WarmHints
from lodefs.torch.torch_types import rank_share

RUN_BYTES = 64 << 20  # the size of a pack
WINDOW_BYTES = 1 << 30
VERSION = 1  # of the order; saved states depend on it


class PackSampler(EpochPosition):
    """Indices of a FileDataset for ``DataLoader(sampler=...)``: all of them once in an epoch.

    ``window_bytes``: how much is shuffled at a time. ``rank``, ``ranks``: the part of this process,
    among equally many; by default from torch.distributed. The remainder is dropped. ``hints``: let
    the proxy fetch a window ahead. The order depends only on seed, epoch, ranks and windows. Each
    iteration is the next epoch; ``set_epoch`` and ``load_state_dict`` set it.
    """

    def __init__(
        self,
        dataset: FileDataset,
        *,
        seed: int = 0,
        window_bytes: int = WINDOW_BYTES,
        rank: int | None = None,
        ranks: int | None = None,
        hints: bool = True,
    ) -> None:
        self._paths: Sequence[str] = dataset.paths
        self._runs = runs_of(dataset.sizes_bytes, RUN_BYTES)
        self._sizes_bytes = dataset.sizes_bytes
        self._window_bytes = window_bytes
        self._share = rank_share(rank, ranks)
        self._hints = WarmHints(dataset.snapshot) if hints else None
        self._seed = seed
        self._commit = dataset.snapshot.commit
        super().__init__()

    def __len__(self) -> int:
        """Returns the number of files that this process gets in an epoch."""
        return len(self._paths) // self._share.total

    def __iter__(self) -> Iterator[int]:
        return self._indices(self._begin())

    def _indices(self, left_out: int) -> Iterator[int]:
        windows = self.windows(self.epoch)
        wanted = 0  # windows that the proxy was told of
        try:
            for number, window in enumerate(windows):
                if left_out >= len(window):
                    left_out -= len(window)
                    continue
                if self._hints is not None:
                    for ahead in windows[max(number, wanted) : number + 2]:
                        self._hints.want(self._paths[index] for index in ahead)
                    wanted = number + 2
                for index in window[left_out:]:
                    self._yielded += 1
                    yield index
                left_out = 0
        finally:  # also if the training leaves the epoch
            if self._hints is not None:
                self._hints.cancel()

    def windows(self, epoch: int) -> list[list[int]]:
        """Returns the order of an epoch, window by window."""
        order = Random(f"lodefs {VERSION} {self._seed} {epoch}")
        runs = list(self._runs)
        order.shuffle(runs)
        all_files = [index for first, end in runs for index in range(first, end)]
        begin = len(self) * self._share.number
        mine = all_files[begin : begin + len(self)]
        windows = []
        for first, end in runs_of([self._sizes_bytes[one] for one in mine], self._window_bytes):
            window = mine[first:end]
            Random(f"lodefs {VERSION} {self._seed} {epoch} {begin + first}").shuffle(window)
            windows.append(window)
        return windows

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Returns the position. A DataLoader with workers asks for indices ahead of what the
        training has seen; then ``consumed`` is the number of samples of this epoch that the
        training has."""
        position = self._yielded if consumed is None else consumed
        return {**self._order(), "epoch": self.epoch, "position": position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state. Raises: InvalidInput for another order: another commit, seed,
        window or number of processes."""
        check_order(state, self._order())
        epoch, position = state["epoch"], state["position"]
        is_over = position >= len(self)
        self._go_to(epoch + is_over, 0 if is_over else position)

    def _order(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "commit": self._commit,
            "seed": self._seed,
            "share": list(self._share),
            "window_bytes": self._window_bytes,
        }


def runs_of(sizes_bytes: Sequence[int], run_bytes: int) -> list[tuple[int, int]]:
    """Groups consecutive files into runs of about this many bytes: (first, end)."""
    if run_bytes < 1:
        raise InvalidInput("a window must have at least one byte")
    runs: list[tuple[int, int]] = []
    first = 0
    ends = list(accumulate(sizes_bytes))
    begin_bytes = 0
    for number, end_bytes in enumerate(ends):
        if end_bytes - begin_bytes >= run_bytes:
            runs.append((first, number + 1))
            first, begin_bytes = number + 1, end_bytes
    if first < len(ends):
        runs.append((first, len(ends)))
    return runs
