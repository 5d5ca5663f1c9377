"""FileDataset and PackSampler, without torch: what its DataLoader calls."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

import lodefs
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.reading.snapshot import Snapshot
from lodefs.torch import FileDataset, PackSampler
from lodefs.torch.pack_sampler import runs_of
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.mount.mounts import until
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow


@pytest.fixture
def snapshot(node: DatasetNode) -> Iterator[Snapshot]:
    """The dataset's commit."""
    with lodefs.snapshot(REPO, proxy=node.address) as snapshot:
        yield snapshot


def sampler_of(dataset: FileDataset, **more: object) -> PackSampler:
    """With windows of a few files, and without hints."""
    return PackSampler(dataset, **{"window_bytes": 20_000, "hints": False, **more})  # type: ignore[arg-type]


def test_samples(node: DatasetNode, snapshot: Snapshot) -> None:
    """A sample is a path with its bytes; a batch is the samples one by one; a transform is
    applied."""
    dataset = FileDataset(snapshot, "a/*.bin")
    assert dataset.paths == [f"a/{number:02d}.bin" for number in range(30)]
    assert dataset[3] == ("a/03.bin", (node.source / "a/03.bin").read_bytes())
    assert dataset.__getitems__([4, 2]) == [dataset[4], dataset[2]]
    sizes = FileDataset(snapshot, ["a/b", "large"], lambda _path, data: len(data))
    assert sizes.__getitems__(range(len(sizes))) == sizes.sizes_bytes
    assert pickle.loads(pickle.dumps(dataset))[5] == dataset[5]


def test_choice(snapshot: Snapshot) -> None:
    """Files are a list, patterns, directories, or all; symlinks to files are among them."""
    assert FileDataset(snapshot, ["large", "a/01.bin"]).paths == ["large", "a/01.bin"]
    assert FileDataset(snapshot, ["text", "**/0[12].bin"]).paths == ["text", "a/01.bin", "a/02.bin"]
    assert FileDataset(snapshot, ["a/b/x[1]*"]).paths == ["a/b/x[1]*"]
    everything = FileDataset(snapshot).paths
    assert everything == sorted(everything)
    assert {"to-file", "a/up", "empty"} <= set(everything)
    assert not {"loop", "out"} & set(everything)
    with pytest.raises(NotFound, match="nothing"):
        FileDataset(snapshot, ["large", "nothing/*"])
    with pytest.raises(NotFound, match="missing"):
        FileDataset(snapshot, ["missing"])
    with pytest.raises(InvalidInput):
        FileDataset(snapshot, [])


def test_order(snapshot: Snapshot) -> None:
    """An epoch has each file once, in an order that seed and epoch make, and no other one."""
    dataset = FileDataset(snapshot, "a/*.bin")
    sampler = sampler_of(dataset)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    again = sampler_of(dataset)
    assert [list(again), list(again)] == [first, second]
    assert list(sampler_of(dataset, seed=1)) != first
    for window in sampler.windows(0):
        assert sum(dataset.sizes_bytes[index] for index in window) <= 20_000 + 9_700


def test_ranks(snapshot: Snapshot) -> None:
    """The processes of a job get equally many files, and none twice."""
    dataset = FileDataset(snapshot, "a/*.bin")
    parts = [list(sampler_of(dataset, rank=rank, ranks=4)) for rank in range(4)]
    assert {len(part) for part in parts} == {7}
    assert len({index for part in parts for index in part}) == 28
    with pytest.raises(ValueError, match="rank 4"):
        sampler_of(dataset, rank=4, ranks=4)


def test_resume(snapshot: Snapshot) -> None:
    """What is loaded from a state goes on where it was, in the next epoch, too; another order is
    refused."""
    dataset = FileDataset(snapshot, "a/*.bin")
    whole = sampler_of(dataset)
    expected = [*whole, *whole]
    sampler = sampler_of(dataset)
    steps = iter(sampler)
    seen = [next(steps) for _ in range(11)]
    resumed = sampler_of(dataset)
    resumed.load_state_dict(sampler.state_dict())
    assert [*seen, *resumed, *resumed] == expected
    resumed.load_state_dict(sampler.state_dict(consumed=8))  # 3 were asked for ahead
    assert [*seen[:8], *resumed] == expected[:30]
    with pytest.raises(InvalidInput, match="seed"):
        sampler_of(dataset, seed=1).load_state_dict(sampler.state_dict())


def test_resume_at_an_epochs_end(snapshot: Snapshot) -> None:
    """Samples that were asked for ahead at the end of an epoch are not lost to it; a state of its
    very end goes on with the next one."""
    dataset = FileDataset(snapshot, "a/*.bin")
    whole = sampler_of(dataset)
    first, second = list(whole), list(whole)
    sampler = sampler_of(dataset)
    assert list(sampler) == first  # all were asked for; the training has 26
    resumed = sampler_of(dataset)
    resumed.load_state_dict(sampler.state_dict(consumed=26))
    resumed.set_epoch(resumed.epoch)
    assert [*resumed, *resumed] == [*first[26:], *second]
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == second


def test_an_iteration_that_is_left(snapshot: Snapshot) -> None:
    """The next one is the next epoch, whole, or the epoch that is set."""
    dataset = FileDataset(snapshot, "a/*.bin")
    whole = sampler_of(dataset)
    first, second = list(whole), list(whole)
    sampler = sampler_of(dataset)
    next(iter(sampler))
    assert list(sampler) == second
    next(iter(sampler))
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_hints(snapshot: Snapshot) -> None:
    """The proxy is told of two windows at the beginning; jobs end with the epoch."""
    dataset = FileDataset(snapshot, "a/*.bin")
    sampler = PackSampler(dataset, window_bytes=20_000)
    steps = iter(sampler)
    next(steps)
    control = snapshot.control()
    assert control is not None
    jobs = lodefs.warm.jobs(proxy=control.url)
    assert len(jobs) == 2
    assert {job.commit for job in jobs} == {snapshot.commit}
    steps.close()  # type: ignore[attr-defined]  # a generator
    until(lambda: all(job.state in ("done", "cancelled")
                      for job in lodefs.warm.jobs(proxy=control.url)))  # fmt: skip


def test_runs() -> None:
    """Runs cover all files, in order, each but the last of the wanted size."""
    assert runs_of([5, 5, 1, 20, 1], 10) == [(0, 2), (2, 4), (4, 5)]
    assert runs_of([], 10) == []
