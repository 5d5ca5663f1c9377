"""The memory of tensors, which threads fill: the CPU's directly, other devices' by copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import local
from typing import TYPE_CHECKING, Protocol

from lodefs.torch.safetensors_layout import PIECE_BYTES_MAX

if TYPE_CHECKING:
    import torch


class TensorMemory(Protocol):
    """The memory of one tensor. For any thread."""

    def room(self, first: int, end: int) -> AbstractContextManager[memoryview]:
        """Returns memory, for a block, for the bytes [first, end) of the tensor, at most
        PIECE_BYTES_MAX. They are in the tensor at the end of the block."""


def memory_of(device: torch.device) -> Callable[[torch.Tensor], TensorMemory]:
    """Returns what makes the memory of tensors of a device."""
    if device.type == "cpu":
        return _OwnMemory
    staging = _Staging(is_pinned=device.type == "cuda")
    return lambda tensor: _DeviceMemory(tensor, staging)


class _OwnMemory:
    """The memory of a tensor of the CPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # keeps the memory alive
        size_bytes = tensor.numel() * tensor.element_size()
        memory = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
        self._memory = memoryview(memory).cast("B")

    @contextmanager
    def room(self, first: int, end: int) -> Iterator[memoryview]:
        """Implements TensorMemory."""
        yield self._memory[first:end]


class _Staging(local):
    """A buffer of each thread, for bytes on their way to a device."""

    def __init__(self, *, is_pinned: bool) -> None:
        import torch

        self.tensor = torch.empty(PIECE_BYTES_MAX, dtype=torch.uint8, pin_memory=is_pinned)
        self.memory = _OwnMemory(self.tensor)


class _DeviceMemory:
    """A tensor of another device, which gets its bytes piece by piece."""

    def __init__(self, tensor: torch.Tensor, staging: _Staging) -> None:
        import torch

        self._bytes = tensor.reshape(-1).view(torch.uint8)
        self._staging = staging

    @contextmanager
    def room(self, first: int, end: int) -> Iterator[memoryview]:
        """Implements TensorMemory."""
        size_bytes = end - first
        with self._staging.memory.room(0, size_bytes) as memory:
            yield memory
        self._bytes[first:end].copy_(self._staging.tensor[:size_bytes])
