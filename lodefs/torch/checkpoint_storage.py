"""Storage of torch.distributed.checkpoint: ``CheckpointWriter`` and ``CheckpointReader``.

The coordinator sends each rank a part of its transaction with the global plan, gets it back with
the results, and commits at the end. Files and ``.metadata`` are as torch's own FileSystemWriter
writes them, so that its readers can read a mount or a copy of a checkpoint. Both classes have the
methods that torch calls, and import torch when they are called.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from lodefs.api.snapshots import snapshot
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.torch.checkpoint_step import Checkpoint, StepCommit, latest
from lodefs.torch.hints import WarmHints

if TYPE_CHECKING:
    from lodefs.api.transactions import Part
    from lodefs.chunkstore.push.changes.staged_file import StagedFile
    from lodefs.reading.snapshot import Snapshot

METADATA = ".metadata"
SUFFIX = ".distcp"
TOGETHER = f"small{SUFFIX}"  # the file of a rank's small items
OWN_FILE_BYTES_MIN = 1 << 20  # smaller items of a rank lie in one file
NAME_CHARS_MAX = 150  # of an item's name, in the name of its file


@dataclass
class RankPart:
    """The work of a rank: its part of the transaction, and its own directory in it."""

    part: Part
    folder: str
    is_used: bool = False


class StoredItem(NamedTuple):
    """The result of a rank for each item: its place, as torch's readers know it, and the part that
    contains it. All items share one part object."""

    place: Any
    part: Part


class _Storage:
    """The common base of writer and reader: the repository, and the step."""

    def __init__(self, repo: str | Spec, step: int | None) -> None:
        self._repo = repo
        self._step = step

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Begins another checkpoint; an id names its step."""
        if checkpoint_id is not None:
            if not self.validate_checkpoint_id(checkpoint_id):
                raise InvalidInput(
                    f"checkpoint_id {checkpoint_id!r} must be a step, a whole number from 0 on"
                )
            self._step = int(str(checkpoint_id))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str] | int) -> bool:
        """Whether the id is a step."""
        return str(checkpoint_id).isdecimal()

    def prepare_local_plan(self, plan: Any) -> Any:
        """Returns the plan unchanged."""
        return plan


class CheckpointWriter(_Storage):
    """A StorageWriter that makes one commit of ``REPO[@BRANCH]`` for each checkpoint, which
    replaces the content of the branch.

    ``step``: of the next checkpoint, unless torch's ``checkpoint_id`` names it. The rest is as for
    StepCommit. An object saves one checkpoint at a time, and each rank has one. ``checkpoint``: the
    last one that the coordinator has committed, as ``latest`` returns it.

    Its methods raise InvalidInput, Conflict if others changed the branch, OverQuota, Unavailable
    and other errors of a transaction. After an error nothing is committed.
    """

    def __init__(
        self,
        repo: str | Spec,
        step: int | None = None,
        *,
        message: str | None = None,
        author: str | None = None,
        metadata: Mapping[str, str] | Iterable[str] = (),
        store: str | None = None,
    ) -> None:
        super().__init__(repo, step)
        self.checkpoint: Checkpoint | None = None
        self._options: dict[str, Any] = {
            "message": message,
            "author": author,
            "metadata": metadata,
            "store": store,
        }
        self._commit: StepCommit | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Begins another checkpoint; an id names its step."""
        self._give_up()
        super().reset(checkpoint_id)

    def set_up_storage_writer(self, *_: Any, **_more: Any) -> None:
        """Does nothing, since plans contain everything."""

    def storage_meta(self) -> None:
        """Returns nothing that a planner needs."""

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Begins a transaction, on the coordinator, and gives each rank a part of it."""
        if self._step is None:
            raise InvalidInput(
                'which step is this? CheckpointWriter("REPO@BRANCH", step=1000), or '
                'checkpoint_id="1000" of torch\'s save'
            )
        self._give_up()
        self._commit = StepCommit(self._repo, self._step, **self._options)
        parts = self._commit.parts(len(plans))
        return [
            replace(plan, storage_data=RankPart(part, f"rank-{rank:05}"))
            for rank, (plan, part) in enumerate(zip(plans, parts, strict=True))
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Writes the items of a rank. Returns a torch.futures.Future of their WriteResults."""
        try:
            return _done(_write(plan, planner))
        except BaseException:
            self._give_up()
            raise

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Commits the parts of all ranks, on the coordinator."""
        step_commit, self._commit = self._commit, None
        if step_commit is None:
            raise InvalidInput("this checkpoint has not begun, or was discarded")
        try:
            written = [result for of_rank in results for result in of_rank]
            metadata.storage_data = {one.index: one.storage_data.place for one in written}
            parts = [of_rank[0].storage_data.part for of_rank in results if of_rank]
            self.checkpoint = step_commit.commit(parts, {METADATA: pickle.dumps(metadata)})
        finally:
            step_commit.discard()

    def _give_up(self) -> None:
        """Discards a transaction that a failed save has left."""
        if self._commit is not None:
            self._commit.discard()
            self._commit = None


class CheckpointReader(_Storage):
    """A StorageReader for what CheckpointWriter has saved: the newest checkpoint of
    ``REPO[@BRANCH]``, or the newest one of ``step``, or of the step that torch's ``checkpoint_id``
    names. ``proxy``, ``store``, ``token``: as for ``lodefs.snapshot``.

    ``.metadata`` is a pickle, as torch writes it: read only checkpoints of people whom you trust.
    Methods raise NotFound if there is no such checkpoint, and what ``lodefs.snapshot`` raises.
    """

    def __init__(
        self,
        repo: str | Spec,
        step: int | None = None,
        *,
        proxy: str | None = None,
        store: str | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(repo, step)
        self._store = store
        self._where: dict[str, Any] = {"proxy": proxy, "store": store, "token": token}
        self._spec: str | None = None
        self._places: dict[Any, Any] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        """Begins to read another checkpoint, or the newest one by now."""
        self._spec = None
        super().reset(checkpoint_id)

    def read_metadata(self, *_: Any, **_more: Any) -> Any:
        """Returns the metadata that torch has written with the checkpoint."""
        with self._snapshot() as found:
            return pickle.loads(found.read(METADATA))

    def set_up_storage_reader(self, metadata: Any, *_: Any, **_more: Any) -> None:
        """Learns where the items lie."""
        self._places = metadata.storage_data

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Returns the plans unchanged."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Reads each item of a rank once. Returns a torch.futures.Future of None."""
        places = [(item, self._places[item.storage_index]) for item in plan.items]
        places.sort(key=lambda one: (one[1].relative_path, one[1].offset))
        with self._snapshot() as found:
            hints = WarmHints(found)
            hints.want(dict.fromkeys(place.relative_path for _, place in places))
            for item, place in places:
                _load(item, place, found, planner)
            hints.cancel()
        return _done(None)

    def _snapshot(self) -> Snapshot:
        if self._spec is None:
            found = latest(self._repo, self._step, store=self._store)
            if found is None:
                step = "" if self._step is None else f" of step {self._step}"
                raise NotFound(f"{self._repo} has no checkpoint{step}: lodefs log shows its steps")
            self._spec = found.spec
        return snapshot(self._spec, **self._where)


def _done(value: Any) -> Any:
    from torch.futures import Future

    done: Any = Future()
    done.set_result(value)
    return done


def _write(plan: Any, planner: Any) -> list[Any]:
    """Writes the items of a plan, and returns their WriteResults. A large item gets its own file,
    so that it is stored once as long as it does not change; small items share a file."""
    rank = plan.storage_data
    if not isinstance(rank, RankPart) or rank.is_used:
        raise InvalidInput(
            "this rank got no part of the transaction: save with collectives, and with a planner "
            "that keeps no plans (enable_plan_caching=False)"
        )
    rank.is_used = True
    if not plan.items:
        return []
    results = []
    with rank.part as part, part.open(f"{rank.folder}/{TOGETHER}") as together:
        for number, item in enumerate(plan.items):
            data = planner.resolve_data(item)
            if _size_bytes(data) < OWN_FILE_BYTES_MIN:
                results.append(_write_item(together, item, data, part))
                continue
            name = quote(item.index.fqn, safe="")[:NAME_CHARS_MAX]
            with part.open(f"{rank.folder}/{number:05}-{name}{SUFFIX}") as own:
                results.append(_write_item(own, item, data, part))
    return results


def _size_bytes(data: Any) -> int:
    """Returns the size of what a planner returns: a BytesIO or a tensor."""
    if isinstance(data, io.BytesIO):
        return data.getbuffer().nbytes
    return int(data.numel() * data.element_size())


def _write_item(file: StagedFile, item: Any, data: Any, part: Part) -> Any:
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.storage import WriteResult

    first = file.tell()
    if isinstance(data, io.BytesIO):
        file.write(data.getbuffer())
    else:
        tensor = data.detach().cpu()
        if tensor.untyped_storage().nbytes() != _size_bytes(tensor):
            tensor = tensor.clone()  # of a view, torch would save the whole underlying tensor
        torch.save(tensor, file)
    size_bytes = file.tell() - first
    place = _StorageInfo(file.name, first, size_bytes)
    return WriteResult(item.index, size_bytes, StoredItem(place, part))


def _load(item: Any, place: Any, found: Snapshot, planner: Any) -> None:
    """Reads an item, and gives it to the planner."""
    import torch

    if item.type.name == "BYTE_IO":
        planner.load_bytes(item, _read(place, found))
        return
    is_alone = not place.relative_path.endswith(f"/{TOGETHER}")
    with found.open(place.relative_path) if is_alone else _read(place, found) as stream:
        tensor = torch.load(stream, map_location="cpu", weights_only=True)
    for dimension, (first, length) in enumerate(
        zip(item.storage_offsets, item.lengths, strict=True)
    ):
        tensor = tensor.narrow(dimension, first, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(tensor)
    planner.commit_tensor(item, target)


def _read(place: Any, found: Snapshot) -> io.BytesIO:
    span = (place.offset, place.offset + place.length)
    return io.BytesIO(found.read(place.relative_path, [span])[0])
