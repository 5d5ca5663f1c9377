"""A stand-in for torch, which is too large for the tests: what storage of
torch.distributed.checkpoint is called with, and what it uses of torch itself."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import ModuleType
from typing import Any, BinaryIO

import pytest


class Tensor:
    """Bytes, and the bytes that they are a view of."""

    def __init__(self, data: bytes | memoryview, whole_bytes: int | None = None) -> None:
        self.data = memoryview(bytearray(data)) if isinstance(data, bytes) else data
        self.whole_bytes = len(data) if whole_bytes is None else whole_bytes

    def numel(self) -> int:
        return len(self.data)

    def element_size(self) -> int:
        return 1

    def nbytes(self) -> int:
        return self.whole_bytes

    def detach(self) -> Tensor:
        return self

    cpu = untyped_storage = detach

    def clone(self) -> Tensor:
        return Tensor(bytes(self.data))

    def narrow(self, dimension: int, first: int, length: int) -> Tensor:
        assert dimension == 0
        return Tensor(self.data[first : first + length], self.whole_bytes)

    def copy_(self, other: Tensor) -> None:
        self.data[:] = other.data


class Future:
    """torch.futures.Future, done."""

    def set_result(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        return self._value


def save(tensor: Tensor, file: BinaryIO) -> None:
    """torch.save: all of what a view is of."""
    file.write(pickle.dumps((bytes(tensor.data), tensor.whole_bytes)))


def load(file: BinaryIO, *, map_location: str, weights_only: bool) -> Tensor:
    """torch.load."""
    assert weights_only and map_location == "cpu"
    return Tensor(*pickle.load(file))


class ItemType(Enum):
    """WriteItemType and LoadItemType."""

    TENSOR = auto()
    BYTE_IO = auto()


@dataclass(frozen=True)
class Index:
    """MetadataIndex."""

    fqn: str
    offset: int = 0


@dataclass(frozen=True)
class WriteItem:
    """WriteItem."""

    index: Index


@dataclass(frozen=True)
class ReadItem:
    """ReadItem."""

    type: ItemType
    storage_index: Index
    storage_offsets: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """SavePlan and LoadPlan."""

    items: list[Any]
    storage_data: Any = None


@dataclass(frozen=True)
class WriteResult:
    """WriteResult."""

    index: Index
    size_in_bytes: int
    storage_data: Any


@dataclass
class StorageInfo:
    """_StorageInfo."""

    relative_path: str
    offset: int
    length: int


@dataclass
class Metadata:
    """Metadata."""

    names: list[str]
    storage_data: Any = None


@dataclass
class Planner:
    """A planner of a state: tensors, and bytes that stand for all other values."""

    state: Mapping[str, Tensor | bytes]
    loaded: dict[str, bytes] = field(default_factory=dict)
    committed: int = 0

    def plan(self) -> Plan:
        """What is to be saved."""
        return Plan([WriteItem(Index(name)) for name in self.state])

    def resolve_data(self, item: WriteItem) -> Tensor | io.BytesIO:
        value = self.state[item.index.fqn]
        return io.BytesIO(value) if isinstance(value, bytes) else value

    def load_bytes(self, item: ReadItem, stream: io.BytesIO) -> None:
        self.loaded[item.storage_index.fqn] = stream.read()

    def resolve_tensor(self, item: ReadItem) -> Tensor:
        value = self.state[item.storage_index.fqn]
        assert isinstance(value, Tensor)
        return value

    def commit_tensor(self, item: ReadItem, tensor: Tensor) -> None:
        self.committed += 1


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it what ``import torch`` gives, here and in processes that are forked."""
    modules: dict[str, dict[str, Any]] = {
        "torch": {"save": save, "load": load},
        "torch.futures": {"Future": Future},
        "torch.distributed": {"is_available": lambda: False},
        "torch.distributed.checkpoint": {},
        "torch.distributed.checkpoint.filesystem": {"_StorageInfo": StorageInfo},
        "torch.distributed.checkpoint.storage": {"WriteResult": WriteResult},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
