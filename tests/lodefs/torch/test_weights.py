"""Weights of a model, read through a real node."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import lodefs
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.reading.snapshot import Snapshot
from lodefs.torch.safetensors_layout import PIECE_BYTES_MAX, StoredTensor
from lodefs.torch.weights import WeightsFile, read_tensors, weights_files
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.lodefs.safetensors_files import file_of, of_tensors
from tests.support.proxy.node_process import REPO

BRANCH = "weights"
RANDOM = random.Random(8)
FIRST = {"embed": RANDOM.randbytes(PIECE_BYTES_MAX + 5), "a": b"1", "none": b"", "b": b"23"}
SECOND = {"head": RANDOM.randbytes(100_000), "norm": b"4567"}


class Memory:
    """A tensor of bytes."""

    def __init__(self, stored: StoredTensor) -> None:
        self.data = bytearray(stored.end - stored.first)

    @contextmanager
    def room(self, first: int, end: int) -> Iterator[memoryview]:
        yield memoryview(self.data)[first:end]


@pytest.fixture(scope="module")
def model(node: DatasetNode, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A snapshot with a model of two shards, one of one file, and broken ones."""
    source = tmp_path_factory.mktemp("model")
    index: dict[str, Any] = {"metadata": {"total_size": 1}, "weight_map": {}}
    for name, tensors in (("m-1.safetensors", FIRST), ("m-2.safetensors", SECOND)):
        write(source / "shards" / name, of_tensors(tensors))
        index["weight_map"] |= dict.fromkeys(tensors, name)
    write(source / "shards" / "m.safetensors.index.json", json.dumps(index).encode())
    write(source / "shards" / "optimizer.safetensors", of_tensors({"step": b"9"}))
    write(source / "one" / "model.safetensors", of_tensors(SECOND))
    write(source / "twice" / "a.safetensors", of_tensors(SECOND))
    write(source / "twice" / "b.safetensors", of_tensors(SECOND))
    write(source / "broken" / "short.safetensors", of_tensors(SECOND)[:-1])
    write(source / "broken" / "long-header.safetensors", file_of(b" " * 200_000 + b"}"))
    write(source / "broken" / "x.safetensors.index.json", b'{"weight_map": {"a": "../one"}}')
    node.push(source, BRANCH)
    return lodefs.snapshot(f"{REPO}@{BRANCH}", proxy=node.address)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def read(found: Snapshot, path: str, **which: Any) -> dict[str, bytes]:
    """The tensors of a path."""
    made: dict[str, Memory] = {}

    def destination(stored: StoredTensor) -> Memory:
        return made.setdefault(stored.name, Memory(stored))

    read_tensors(found, weights_files(found, path, **which), destination)
    return {name: bytes(memory.data) for name, memory in made.items()}


@pytest.mark.parametrize("temperature", ["cold", "warm"])
def test_all_shards_of_an_index_are_read(model: Snapshot, temperature: str) -> None:
    """An index names the files, and others beside it are not read."""
    assert temperature
    assert read(model, "shards") == FIRST | SECOND


def test_one_file_is_read(model: Snapshot) -> None:
    """A URL may name a file, or a directory without an index."""
    assert read(model, "one/model.safetensors") == read(model, "one") == SECOND


def test_only_some_shards_or_tensors_are_read(model: Snapshot) -> None:
    """A rank reads only its part."""
    assert read(model, "shards", shards=["m-2.safetensors"]) == SECOND
    assert read(model, "shards", tensors=["b", "norm"]) == {"b": b"23", "norm": b"4567"}
    (file,) = weights_files(model, "shards/m.safetensors.index.json", tensors=["norm"])
    assert [one.name for one in file.tensors] == ["norm"]


@pytest.mark.parametrize(
    ("path", "which", "error", "why"),
    [
        ("broken/short.safetensors", {}, InvalidInput, "short.safetensors is not a safetensors"),
        ("broken/long-header.safetensors", {}, InvalidInput, "long-header.safetensors is not"),
        ("broken/x.safetensors.index.json", {}, InvalidInput, "one is a directory"),
        ("broken", {"tensors": ["b"]}, NotFound, "safetensors files"),
        ("twice", {}, InvalidInput, "'head', and so has another file"),
        ("shards", {"shards": ["m-3.safetensors"]}, NotFound, "no shard 'm-3.safetensors'"),
        ("one", {"tensors": ["hat"]}, NotFound, "no tensor 'hat'"),
        ("nowhere", {}, NotFound, "nowhere"),
    ],
)
def test_what_cannot_be_read_is_named(
    model: Snapshot, path: str, which: dict[str, Any], error: type[Exception], why: str
) -> None:
    """The error names the file, shard or tensor."""
    with pytest.raises(error, match=why):
        read(model, path, **which)


def test_pieces_are_read_in_a_random_order() -> None:
    """Nodes that load one model at once do not all ask for the same bytes at the same moment, and
    each reads all of them once."""

    class Recorder:
        def __init__(self) -> None:
            self.firsts: list[int] = []

        def read_into(self, _node: object, first: int, _buffer: memoryview) -> None:
            self.firsts.append(first)

    class Nothing:
        @contextmanager
        def room(self, _first: int, _end: int) -> Iterator[memoryview]:
            yield memoryview(b"")

    begins = [number * PIECE_BYTES_MAX for number in range(40)]
    tensors = [
        StoredTensor(str(first), "U8", (PIECE_BYTES_MAX,), first, first + PIECE_BYTES_MAX)
        for first in begins
    ]
    recorder = Recorder()
    found: Any = SimpleNamespace(bytes=recorder)
    read_tensors(found, [WeightsFile(cast("Any", None), tensors)], lambda _: Nothing())
    assert sorted(recorder.firsts) == begins
    assert max(recorder.firsts[:20]) >= begins[28]  # in order, threads are not so far apart
