"""TarDataset, without torch."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lodefs
from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.reading.snapshot import Snapshot
from lodefs.torch import TarDataset, tar_dataset
from lodefs.torch.torch_types import Share
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow

SHARDS, SAMPLES = 6, 5


@pytest.fixture(scope="module")
def snapshot(node: DatasetNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    """A branch with shards of two fields, one of them with a long name."""
    source = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        write_shard(source / f"train-{shard:03d}.tar", shard)
    (source / "broken.tar").write_bytes(b"no tar" * 1000)
    node.push(source, "shards")
    with lodefs.snapshot(f"{REPO}@shards", proxy=node.address) as snapshot:
        yield snapshot


def write_shard(path: Path, shard: int) -> None:
    """Samples with an image and a class; their names are longer than a tar's header has room."""
    with tarfile.open(path, "w") as tar:
        for number in range(SAMPLES):
            for field, data in (("JPG", b"%d-%d" % (shard, number)), ("cls.txt", b"7")):
                info = tarfile.TarInfo(f"{'d' * 120}/{shard}-{number}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def keys(dataset: TarDataset) -> list[bytes]:
    """What one epoch yields."""
    return [sample["jpg"] for sample in dataset]


def everything() -> set[bytes]:
    return {b"%d-%d" % (shard, number) for shard in range(SHARDS) for number in range(SAMPLES)}


def test_samples(snapshot: Snapshot) -> None:
    """Unshuffled, samples come as they lie, with key, fields and the shard's URL."""
    dataset = TarDataset(snapshot, "train-*.tar", shuffle=False)
    samples = list(dataset)
    assert [sample["jpg"] for sample in samples[: SAMPLES + 1]] == [
        *(b"0-%d" % number for number in range(SAMPLES)), b"1-0"
    ]  # fmt: skip
    assert samples[0]["cls.txt"] == b"7"
    assert samples[0]["__key__"] == f"{'d' * 120}/0-0"
    assert samples[0]["__url__"].endswith("/train-000.tar")


def test_order(snapshot: Snapshot) -> None:
    """Each sample comes once an epoch, in an order of seed and epoch, within windows of shards."""
    dataset = TarDataset(snapshot, "train-*.tar", window_shards=2)
    first, second = keys(dataset), keys(dataset)
    assert set(first) == set(second) == everything()
    assert first != second
    dataset.set_epoch(0)
    assert keys(dataset) == first
    windows = [first[at : at + 2 * SAMPLES] for at in range(0, len(first), 2 * SAMPLES)]
    assert [len({key.partition(b"-")[0] for key in window}) for window in windows] == [2, 2, 2]


def test_ranks(snapshot: Snapshot) -> None:
    """Processes read shards of their own, together all of them."""
    parts = []
    for rank in range(2):
        dataset = TarDataset(snapshot, "train-*.tar")
        dataset.set_rank(rank, 2)
        parts.append(keys(dataset))
    assert len(parts[0]) == len(parts[1]) == len(everything()) // 2
    assert {*parts[0], *parts[1]} == everything()


def test_resume(snapshot: Snapshot) -> None:
    """What is loaded from a state goes on with the next sample; another order is refused."""
    whole = keys(TarDataset(snapshot, "train-*.tar", window_shards=2))
    for stop in (0, 3, 10, 29):
        dataset = TarDataset(snapshot, "train-*.tar", window_shards=2)
        steps = iter(dataset)
        seen = [next(steps)["jpg"] for _ in range(stop)]
        resumed = TarDataset(snapshot, "train-*.tar", window_shards=2)
        resumed.load_state_dict(dataset.state_dict())
        assert seen + keys(resumed) == whole


@pytest.mark.parametrize(
    ("other", "said"),
    [({"seed": 4}, "seed"), ({"window_shards": 3}, "window_shards"), ({}, "shards"), ({}, "rank")],
)
def test_a_state_of_another_order(snapshot: Snapshot, other: dict[str, Any], said: str) -> None:
    """It is refused, and what differs is named."""
    state = TarDataset(snapshot, "train-*.tar").state_dict()
    shards = "train-*[0-3].tar" if said == "shards" else "train-*.tar"
    dataset = TarDataset(snapshot, shards, **other)
    if said == "rank":
        dataset.set_rank(0, 2)
    with pytest.raises(InvalidInput, match=f"its {said} is"):
        dataset.load_state_dict(state)


def test_a_state_of_another_number_of_workers(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one reader has read says nothing of the parts of two workers: it is refused when it is
    loaded there, and when they begin."""
    dataset = TarDataset(snapshot, "train-*.tar")
    next(iter(dataset))
    state = dataset.state_dict()
    resumed = TarDataset(snapshot, "train-*.tar")
    resumed.load_state_dict(state)
    monkeypatch.setattr(tar_dataset, "worker_share", lambda: Share(0, 2))
    with pytest.raises(InvalidInput, match="StatefulDataLoader"):
        next(iter(resumed))
    with pytest.raises(InvalidInput, match="its worker is"):
        TarDataset(snapshot, "train-*.tar").load_state_dict(state)


def test_an_iteration_that_is_left(snapshot: Snapshot) -> None:
    """The next one is the next epoch, whole."""
    whole = TarDataset(snapshot, "train-*.tar")
    first, second = keys(whole), keys(whole)
    dataset = TarDataset(snapshot, "train-*.tar")
    assert next(iter(dataset))["jpg"] == first[0]
    assert keys(dataset) == second


def test_a_worker_that_is_a_new_program_has_its_process_rank(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch.distributed says is asked where the dataset is pickled: it says nothing there."""
    share = Share(1, 2)
    monkeypatch.setattr(tar_dataset, "rank_share", lambda *_: share)
    pickled = pickle.dumps(TarDataset(snapshot, "train-*.tar"))
    monkeypatch.undo()
    other = TarDataset(snapshot, "train-*.tar")
    other.set_rank(0, 2)
    assert {*keys(pickle.loads(pickled)), *keys(other)} == everything()


def test_a_broken_shard(snapshot: Snapshot) -> None:
    """A file that is no tar is named."""
    with pytest.raises(Corrupt, match=r"broken\.tar"):
        list(TarDataset(snapshot, ["broken.tar"]))
