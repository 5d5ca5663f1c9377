"""An iterable dataset over the shards of a WebDataset, which are tar files in a snapshot."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import Any, NamedTuple, TypeVar

from lodefs.api.snapshots import snapshot as open_snapshot
from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.reading.snapshot import Snapshot
from lodefs.torch.epoch_position import EpochPosition, check_order
from lodefs.torch.file_dataset import chosen_files
from lodefs.torch.hints import WarmHints
from lodefs.torch.torch_types import IterableBase, rank_share, worker_share

VERSION = 1
WINDOW_SHARDS = 4
READ_SAMPLES = 32  # read at once

Sample = dict[str, Any]
T = TypeVar("T")


class TarDataset(EpochPosition, IterableBase):
    """Samples as dictionaries: ``__key__``, ``__url__``, and the bytes of each field under its name
    (``jpg``, ``cls``, ...); ``transform`` turns each into what is yielded.

    ``shards``: a pattern or a list, as for FileDataset. Each process (``rank`` of ``ranks``, by
    default from torch.distributed) and each worker of a DataLoader reads shards of its own: have at
    least as many shards. ``shuffle``: shuffle the shards in each epoch, and the samples within a
    window of ``window_shards``; two samples of one shard are never further apart than a window. The
    order depends only on seed, epoch and shares. ``hints``: let the proxy fetch a window ahead.

    Call ``set_epoch`` before each epoch: new workers of a DataLoader do not know the last one.
    """

    def __init__(
        self,
        snapshot: Snapshot | str,
        shards: str | Sequence[str],
        transform: Callable[[Sample], Any] | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        window_shards: int = WINDOW_SHARDS,
        hints: bool = True,
    ) -> None:
        if window_shards < 1:
            raise InvalidInput("a window must have at least one shard")
        self.snapshot = open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
        self.shards = [path for path, _ in chosen_files(self.snapshot, shards)]
        self.transform = transform
        super().__init__()
        self._seed = seed if shuffle else None
        self._window_shards = window_shards if shuffle else 1
        self._hints = WarmHints(self.snapshot) if hints else None
        self._rank: tuple[int | None, int | None] = (None, None)
        self._resumed_worker = worker_share()

    def set_rank(self, rank: int, ranks: int) -> None:
        """Sets the part of the shards that this process reads, without torch.distributed."""
        rank_share(rank, ranks)
        self._rank = (rank, ranks)

    def __iter__(self) -> Iterator[Any]:
        return self._of_epoch(self._begin())

    def _of_epoch(self, left_out: int) -> Iterator[Any]:
        if left_out and worker_share() != self._resumed_worker:
            raise InvalidInput(
                "a state that was loaded outside of a DataLoader's workers does not say what each "
                "worker has read; use torchdata's StatefulDataLoader, which asks each of them"
            )
        windows = list(_batches(self.my_shards(), self._window_shards))
        try:
            for number, shards in enumerate(windows):
                if self._hints is not None:
                    for ahead in windows[number + bool(number) : number + 2]:
                        self._hints.want(ahead)
                samples = self._samples(shards)
                left = samples[left_out:]
                left_out = max(left_out - len(samples), 0)
                for some in _batches(left, READ_SAMPLES):
                    for sample in self._read(some):
                        self._yielded += 1
                        yield self.transform(sample) if self.transform else sample
            self._go_to(self.epoch + 1, 0)
        finally:
            if self._hints is not None:
                self._hints.cancel()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for a worker that is a new program, in which torch.distributed knows
        nothing."""
        rank = rank_share(*self._rank)
        return {
            **self.__dict__,
            "_rank": (rank.number, rank.total) if rank.total > 1 else self._rank,
        }

    def my_shards(self) -> list[str]:
        """Returns the shards of this process and worker, in the order of this epoch."""
        shards = list(self.shards)
        if self._seed is not None:
            Random(f"lodefs {VERSION} {self._seed} {self.epoch}").shuffle(shards)
        rank, worker = rank_share(*self._rank), worker_share()
        return shards[rank.number :: rank.total][worker.number :: worker.total]

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this process or worker; torchdata's StatefulDataLoader asks for
        it."""
        return {**self._order(), "epoch": self.epoch, "position": self._yielded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state without reading earlier samples. Raises: InvalidInput for another
        order: other shards, windows, ranks or workers."""
        check_order(state, self._order())
        self._go_to(state["epoch"], state["position"])
        self._resumed_worker = worker_share()

    def _order(self) -> dict[str, Any]:
        """Returns all that the order of this process and worker depends on, except the epoch."""
        shards = "\0".join(self.shards).encode(errors="surrogateescape")
        return {
            "version": VERSION,
            "commit": self.snapshot.commit,
            "seed": self._seed,
            "shards": blake2b(shards, digest_size=8).hexdigest(),
            "window_shards": self._window_shards,
            "rank": list(rank_share(*self._rank)),
            "worker": list(worker_share()),
        }

    def _samples(self, shards: Sequence[str]) -> list[TarSample]:
        found = [sample for shard in shards for sample in samples_of(self.snapshot, shard)]
        if self._seed is not None:
            Random(f"lodefs {VERSION} {self._seed} {self.epoch} {shards[0]}").shuffle(found)
        return found

    def _read(self, samples: Sequence[TarSample]) -> Iterator[Sample]:
        nodes = {sample.shard: self.snapshot.file(sample.shard) for sample in samples}
        wanted = [
            (nodes[sample.shard], (first, end))
            for sample in samples
            for _, first, end in sample.fields
        ]
        found = iter(self.snapshot.bytes.read_many(wanted))
        for sample in samples:
            fields = {name: next(found) for name, _, _ in sample.fields}
            url = f"lodefs://{self.snapshot}/{sample.shard}"
            yield {"__key__": sample.key, "__url__": url, **fields}


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


class TarSample(NamedTuple):
    """The places of a sample's fields in its shard: (name, first byte, end)."""

    shard: str
    key: str
    fields: tuple[tuple[str, int, int], ...]


def samples_of(snapshot: Snapshot, shard: str) -> list[TarSample]:
    """Returns the samples of a shard in their order; neighbouring members with one name are one
    sample. Reads only headers. Raises: NotFound, Corrupt if it is not a tar file."""
    samples: list[TarSample] = []
    key, fields = "", list[tuple[str, int, int]]()
    try:
        with (
            snapshot.raw(shard) as raw,
            tarfile.open(fileobj=raw, mode="r:") as tar,
        ):
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all members
                if not member.isfile():
                    continue
                name, field = split_name(member.name)
                if name != key and fields:
                    samples.append(TarSample(shard, key, tuple(fields)))
                    fields = []
                key = name
                end = member.offset_data + member.size
                fields.append((field, member.offset_data, end))
    except tarfile.TarError as error:
        raise Corrupt(f"{snapshot}/{shard} is not a tar, or is damaged: {error}") from error
    if fields:
        samples.append(TarSample(shard, key, tuple(fields)))
    return samples


def split_name(path: str) -> tuple[str, str]:
    """Splits the name of a member into sample and field: ``a/b/000.seg.png`` into ``a/b/000`` and
    ``seg.png``, as in the webdataset package."""
    folder, slash, name = path.rpartition("/")
    stem, _, field = name.partition(".")
    return f"{folder}{slash}{stem}", field.lower()
