"""Buffers written one after the other: all of them, in batches that the page cache likes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.system.batched_writes import BATCH_SIZE_BYTES, BUFFERS_MAX, write_at

SIZES = st.lists(
    st.one_of(st.integers(0, 64), st.integers(BATCH_SIZE_BYTES - 2, 3 * BATCH_SIZE_BYTES)),
    max_size=6,
)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


class Kernel:
    """os.pwritev that remembers, and writes at most ``most`` bytes a call."""

    def __init__(self, most: int = 1 << 62) -> None:
        self.sizes: list[int] = []
        self.counts: list[int] = []
        self._most = most
        self._real = os.pwritev

    def __call__(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        joined = b"".join(buffers)[: self._most]
        self.sizes.append(len(joined))
        self.counts.append(len(buffers))
        return self._real(fd, [joined], offset)


def _buffers(sizes: list[int]) -> list[bytes]:
    return [bytes([n + 1]) * size for n, size in enumerate(sizes)]


@given(sizes=SIZES, offset=st.integers(0, 1 << 20))
def test_the_file_holds_the_joined_buffers(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], offset: int
) -> None:
    """Whatever their sizes, the buffers stand in the file one after the other."""
    path = tmp_path_factory.mktemp("writes") / "file"
    buffers = _buffers(sizes)
    opened = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert write_at(opened, offset, buffers) == sum(sizes)
    finally:
        os.close(opened)
    data = path.read_bytes()
    assert data[offset:] == b"".join(buffers)
    assert not any(data[:offset])


def test_no_call_is_larger_than_a_batch(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large buffer is cut, small ones are gathered."""
    kernel = Kernel()
    monkeypatch.setattr(os, "pwritev", kernel)
    write_at(fd, 0, [bytes(5 * BATCH_SIZE_BYTES // 2), *[bytes(BATCH_SIZE_BYTES // 4)] * 6])
    assert kernel.sizes == [BATCH_SIZE_BYTES] * 4


def test_writes_end_at_multiples_of_a_batch_in_the_file(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first and the last write are smaller: the kernel's pieces are aligned."""
    kernel = Kernel()
    monkeypatch.setattr(os, "pwritev", kernel)
    write_at(fd, 3 * BATCH_SIZE_BYTES - 5, [bytes(BATCH_SIZE_BYTES + 9)])
    assert kernel.sizes == [5, BATCH_SIZE_BYTES, 4]


def test_no_call_has_more_buffers_than_the_kernel_takes(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many tiny buffers go in calls of at most IOV_MAX of them."""
    kernel = Kernel()
    monkeypatch.setattr(os, "pwritev", kernel)
    assert write_at(fd, 0, [b"x"] * (2 * BUFFERS_MAX + 1)) == 2 * BUFFERS_MAX + 1
    assert kernel.counts == [BUFFERS_MAX, BUFFERS_MAX, 1]


def test_a_short_write_is_gone_on_with(
    fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel takes a part only, the rest follows."""
    monkeypatch.setattr(os, "pwritev", Kernel(most=7))
    buffers = _buffers([3, 5, 0, 20])
    assert write_at(fd, 2, buffers) == 28
    assert (tmp_path / "file").read_bytes()[2:] == b"".join(buffers)


def test_errors_are_the_kernels(tmp_path: Path) -> None:
    """What the kernel refuses is told as it told it."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    opened = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            write_at(opened, 0, [b"x"])
    finally:
        os.close(opened)
