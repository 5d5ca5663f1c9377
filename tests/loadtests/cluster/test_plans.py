"""Who reads what: every pattern, as pure functions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from blake3 import blake3

from loadtests.cluster import dataset, plans
from loadtests.cluster.dataset import Dataset, Group
from loadtests.cluster.scenario import Reading

NODES = 3


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """Seven small files and two larger ones."""
    return dataset.write(tmp_path, [Group("small", 7, 10), Group("large", 2, 5000)])


def names(plan: plans.Plan) -> list[list[str]]:
    """What each node reads, in the order of its streams."""
    return [[job.name for jobs in streams for job in jobs] for streams in plan]


def epochs(data: Dataset, **wanted: object) -> list[plans.Plan]:
    """The plans of a reading."""
    return plans.epochs(data, Reading(**wanted), NODES)  # type: ignore[arg-type]


def test_files_are_what_is_told_of_them(data: Dataset) -> None:
    """Sizes and digests are those of the files, and the same seed makes the same files."""
    for file in data.files:
        content = (data.root / file.name).read_bytes()
        assert (len(content), blake3(content).hexdigest()) == (file.size_bytes, file.digest)
    again = dataset.write(data.root / "again", [Group("small", 7, 10), Group("large", 2, 5000)])
    assert again.groups == data.groups
    assert data.size_bytes == 10_070


def test_everything_on_every_node(data: Dataset) -> None:
    """Every node reads every file once; shuffled, each in an order of its own."""
    (same,) = epochs(data, pattern="everything", streams=1)
    assert names(same) == [[file.name for file in data.files]] * NODES
    (shuffled,) = epochs(data, pattern="everything", streams=1, order="shuffled")
    assert all(sorted(each) == sorted(names(same)[0]) for each in names(shuffled))
    assert len({tuple(each) for each in names(shuffled)}) == NODES


def test_shares_cover_each_epoch_once(data: Dataset) -> None:
    """In an epoch one node reads each file; the next epoch deals anew."""
    first, second = epochs(data, pattern="shares", epochs=2, groups=["small"])
    for epoch in (first, second):
        counted = Counter(name for each in names(epoch) for name in each)
        assert counted == Counter(file.name for file in data.groups["small"])
    assert names(first) != names(second)


def test_shards_move_on(data: Dataset) -> None:
    """In as many epochs as there are nodes, every node reads every shard once."""
    found = epochs(data, pattern="shards", epochs=NODES, groups=["small"])
    for node in range(NODES):
        read = Counter(name for epoch in found for name in names(epoch)[node])
        assert read == Counter(file.name for file in data.groups["small"])


def test_a_herd_is_spread_over_the_nodes(data: Dataset) -> None:
    """There are as many streams as clients, and each reads all files."""
    (found,) = epochs(data, pattern="herd", clients=10)
    assert [len(streams) for streams in found] == [4, 3, 3]
    wanted = sorted(file.name for file in data.files)
    assert all(sorted(job.name for job in jobs) == wanted for streams in found for jobs in streams)


def test_ranges_lie_in_the_file(data: Dataset) -> None:
    """Every range is inside of its file, with the digest of these bytes."""
    (found,) = epochs(data, pattern="ranges", reads=20, range=512, groups=["large"])
    assert [sum(map(len, streams)) for streams in found] == [20] * NODES
    for job in (job for streams in found for jobs in streams for job in jobs):
        content = (data.root / job.name).read_bytes()[job.first : job.first + job.size_bytes]
        assert job.is_range and len(content) == 512
        assert blake3(content).hexdigest() == job.digest


def test_streams_are_never_empty(data: Dataset) -> None:
    """With fewer jobs than streams there are fewer streams."""
    (found,) = epochs(data, pattern="shares", streams=5, groups=["large"])
    assert [len(streams) for streams in found] == [1, 1, 0]


def test_scaling_changes_large_sizes_and_small_numbers() -> None:
    """Twice the size: large files are twice as long, small ones twice as many."""
    groups = [Group("large", 4, 8 << 20), Group("small", 100, 1000)]
    size_bytes = sum(group.files * group.size_bytes for group in groups)
    large, small = dataset.scaled(groups, 2 * size_bytes)
    assert (large.files, large.size_bytes) == (4, 16 << 20)
    assert (small.files, small.size_bytes) == (200, 1000)
