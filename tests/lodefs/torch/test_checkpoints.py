"""Checkpoints: four processes save as torch.distributed.checkpoint calls them, and die anywhere."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

import lodefs
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.torch import CheckpointReader, CheckpointWriter, StepCommit, latest
from tests.support.chunkstore.directories import in_commit
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.lodefs.torch_stand_in import (
    Index,
    ItemType,
    Metadata,
    Plan,
    Planner,
    ReadItem,
    Tensor,
    install,
)

pytestmark = pytest.mark.slow

RANKS = 4
FORK = multiprocessing.get_context("fork")
WATCHED = "rank-00000/00000-layer%2F0.distcp"
Put = Callable[..., Any]


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for torch."""
    install(monkeypatch)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store, which the environment names."""
    place = str(tmp_path / "store")
    made = create_store(DirectoryObjects(place))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LODEFS_STORE", place)
    monkeypatch.setenv("LODEFS_CONFIG", os.devnull)
    return made


def state_of(rank: int, step: int) -> dict[str, Tensor | bytes]:
    """What a rank saves: a large tensor, a view, and something else; rank 3 has nothing."""
    if rank == RANKS - 1:
        return {}
    return {
        "layer/0": Tensor(bytes([rank]) * (1 << 20)),
        f"bias.{rank}": Tensor(b"%d %d" % (rank, step), 1000),
        f"lr.{rank}": b"%d" % step,
    }


class Death:
    """Kills its process at a put into the store, counted from 1; 0: never."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._put: Put = DirectoryObjects.put

    def __enter__(self) -> None:
        DirectoryObjects.put = self._counted  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        DirectoryObjects.put = self._put  # type: ignore[method-assign]

    @property
    def _counted(self) -> Any:
        def put(objects: DirectoryObjects, key: str, *more: Any, **options: Any) -> Any:
            if not key.startswith("probe/"):
                self._number -= 1
                if self._number == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return self._put(objects, key, *more, **options)

        return put


def follow(pipe: Connection, step: int, rank: int, death: Death) -> None:
    """A rank."""
    with death:
        planner, writer = Planner(state_of(rank, step)), CheckpointWriter("runs/llama", step)
        writer.set_up_storage_writer(False)
        pipe.send(writer.prepare_local_plan(planner.plan()))
        pipe.send(writer.write_data(pipe.recv(), planner).value())


def coordinate(pipes: list[Connection], step: int, death: Death) -> None:
    """Rank 0, which is the coordinator too."""
    with death:
        planner, writer = Planner(state_of(0, step)), CheckpointWriter("runs/llama")
        writer.reset(str(step))
        writer.set_up_storage_writer(True)
        local = writer.prepare_local_plan(planner.plan())
        plans = writer.prepare_global_plan([local, *(pipe.recv() for pipe in pipes)])
        for pipe, plan in zip(pipes, plans[1:], strict=True):
            pipe.send(plan)
        results = [writer.write_data(plans[0], planner).value(), *(pipe.recv() for pipe in pipes)]
        names = [result.index.fqn for of_rank in results for result in of_rank]
        writer.finish(Metadata(names), results)


def save(step: int, dies: int | None = None, at: int = 0, ranks: int = RANKS) -> bool:
    """Saves with some processes, of which one may die; the others are killed then, as torchrun
    does it. Whether all ended well."""
    ends = [FORK.Pipe() for _ in range(1, ranks)]
    deaths = [Death(at if rank == dies else 0) for rank in range(ranks)]
    processes = [FORK.Process(target=coordinate, args=([a for a, _ in ends], step, deaths[0]))]
    processes += [
        FORK.Process(target=follow, args=(end, step, rank, deaths[rank]))
        for rank, (_, end) in enumerate(ends, 1)
    ]
    for process in processes:
        process.start()
    running = list(processes)
    while running:
        wait([process.sentinel for process in running])
        running = [process for process in running if process.exitcode is None]
        if any(process.exitcode for process in processes):
            for process in running:
                process.kill()
    for process in processes:
        process.join()
    return not any(process.exitcode for process in processes)


def content(store: Store, spec: str) -> dict[str, bytes]:
    """The files of a checkpoint."""
    seen = in_commit(store, "runs/llama", spec.partition("@")[2])
    return {path.decode(): one.content for path, one in seen.items() if one.content}


def test_four_processes_save_steps(store: Store) -> None:
    """Each step is a commit of its own with all that ranks wrote, as torch's readers look for it;
    what did not change is stored once."""
    assert latest("runs/llama") is None
    assert save(100)
    first = latest("runs/llama@main")
    assert first is not None
    assert first.step == 100
    files = content(store, first.spec)
    large = [f"rank-{rank:05}/00000-layer%2F0.distcp" for rank in range(3)]
    small = [f"rank-{rank:05}/small.distcp" for rank in range(3)]
    assert sorted(files) == sorted([".metadata", "step", *large, *small])
    metadata = pickle.loads(files[".metadata"])
    for rank in range(3):
        place = metadata.storage_data[Index(f"lr.{rank}")]
        data = files[place.relative_path][place.offset : place.offset + place.length]
        assert data == b"100"
        place = metadata.storage_data[Index(f"bias.{rank}")]
        data = files[place.relative_path][place.offset : place.offset + place.length]
        assert pickle.loads(data) == (b"%d 100" % rank, len(b"%d 100" % rank))
    with lodefs.transaction("runs/llama", message="no step") as tx:
        tx.put("README", b"by hand")
    assert save(200)
    second = latest("runs/llama")
    assert second is not None
    assert (second.step, latest("runs/llama", 100), latest("runs/llama", 7)) == (200, first, None)
    assert "README" not in content(store, second.spec)
    changed = {change.path.decode() for change in lodefs.diff(first.spec, second.spec)}
    assert changed == {"step", *small}
    assert [dict(one.commit.metadata).get("step") for one in lodefs.log("runs/llama")] == [
        "200", None, "100",
    ]  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_dies_at_any_write(store: Store, rank: int) -> None:
    """The coordinator or another rank is killed at each of its writes: no commit is made, the step
    before is the latest one, and the save after that goes well."""
    first = StepCommit("runs/llama", 1)
    first.commit(first.parts(0), {"a": b"1"})
    before = latest("runs/llama")
    for at in count(1):
        if save(1000 + at, rank, at, ranks=2):
            break
        assert latest("runs/llama") == before
    assert at > 4
    found = latest("runs/llama")
    assert found is not None
    assert found.step == 1000 + at


def test_a_save_that_fails_is_given_up(store: Store) -> None:
    """Nothing is committed, and the same writer saves the next one. What torch's options do not
    give it is refused."""
    writer = CheckpointWriter("runs/llama", metadata={"run": "7"})
    planner = Planner({"a": Tensor(b"1")})
    with pytest.raises(InvalidInput, match="which step"):
        writer.prepare_global_plan([planner.plan()])
    with pytest.raises(InvalidInput, match="'epoch 1' must be a step"):
        writer.reset("epoch 1")
    for step in (1, 2):
        writer.reset(step)
        [plan] = writer.prepare_global_plan([planner.plan()])
        if step == 1:
            with pytest.raises(KeyError):
                writer.write_data(plan, Planner({}))
            with pytest.raises(InvalidInput, match="was discarded"):
                writer.finish(Metadata([]), [[]])
    writer.finish(Metadata([]), [writer.write_data(plan, planner).value()])
    assert writer.checkpoint == latest("runs/llama") != None  # noqa: E711
    for stale in (plan, planner.plan()):
        with pytest.raises(InvalidInput, match="enable_plan_caching=False"):
            writer.write_data(stale, planner)
    with pytest.raises(InvalidInput, match="from 0 on, not -1"):
        StepCommit("runs/llama", -1)
    [entry] = lodefs.log("runs/llama")
    assert dict(entry.commit.metadata) == {"run": "7", "step": "2"}


def test_reading(node: DatasetNode) -> None:
    """Tensors, parts of them and other values are read, of the newest checkpoint or of a step."""
    where: dict[str, Any] = {"store": str(node.store)}
    for step in (10, 20):
        planner = Planner({"a": Tensor(b"%d" % step * (1 << 20)), "b": Tensor(b"bb"), "lr": b"7"})
        writer = CheckpointWriter("runs/read", step, **where)
        [plan] = writer.prepare_global_plan([planner.plan()])
        writer.finish(Metadata(["a"]), [writer.write_data(plan, planner).value()])
    reader = CheckpointReader("runs/read", proxy=node.address, **where)
    for checkpoint_id, expected in ((None, b"20"), (10, b"10")):
        reader.reset(checkpoint_id)
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, True)
        planner = Planner({"a": Tensor(bytes(2)), "b": Tensor(bytes(2))})
        items = [
            ReadItem(ItemType.TENSOR, Index("a"), (1000,), (2,)),
            ReadItem(ItemType.BYTE_IO, Index("lr")),
            ReadItem(ItemType.TENSOR, Index("b"), (0,), (2,)),
        ]
        [plan] = reader.prepare_global_plan([reader.prepare_local_plan(Plan(items))])
        reader.read_data(plan, planner)
        tensors = [planner.resolve_tensor(item) for item in items[::2]]
        assert [bytes(tensor.data) for tensor in tensors] == [expected, b"bb"]
        assert (planner.loaded, planner.committed) == ({"lr": b"7"}, 2)
    reader.reset(30)
    with pytest.raises(NotFound, match="no checkpoint of step 30"):
        reader.read_metadata()
