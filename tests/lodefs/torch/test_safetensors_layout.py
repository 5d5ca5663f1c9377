"""Headers of safetensors files, of friends and of others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.torch.safetensors_layout import (
    HEADER_BYTES_MAX,
    PIECE_BYTES_MAX,
    TENSORS_MAX,
    StoredTensor,
    header_end,
    parse_header,
    pieces,
)
from tests.support.lodefs.safetensors_files import file_of, of_tensors


def parsed(data: bytes) -> list[StoredTensor]:
    """The tensors of a whole file."""
    return parse_header(data[: header_end(data, len(data))], len(data))


def one(**changes: Any) -> dict[str, Any]:
    """The header of a file with one tensor."""
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}
    return {"w": entry}


def test_a_file_of_the_format_is_read() -> None:
    """The bytes are those that the safetensors package 0.5 writes for this dictionary."""
    header = b'{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}'
    header += b',"s":{"dtype":"I8","shape":[],"data_offsets":[4,5]}}   '
    data = file_of(header, b"\x80\x3f\x00\x40\x07")
    begin = 8 + len(header)
    assert parsed(data) == [
        StoredTensor("b", "BF16", (2,), begin, begin + 4),
        StoredTensor("s", "I8", (), begin + 4, begin + 5),
    ]


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_every_byte_belongs_to_its_tensor(contents: list[bytes]) -> None:
    """Tensors are where their header says, whatever they hold."""
    tensors = {f"t{number}": content for number, content in enumerate(contents)}
    data = of_tensors(tensors)
    assert {found.name: data[found.first : found.end] for found in parsed(data)} == tensors


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (one(shape=[2, 4]), 24, "tensor 'w' of 32 bytes lies in bytes 0 to 24"),
        (one(shape=[-2, -3]), 24, "shape"),
        (one(shape=[2**70, 0], data_offsets=[0, 0]), 0, "shape"),
        (one(shape=[2**62, 2**62]), 24, "shape that no memory can have"),
        (one(shape=[0, 2**62, 2], data_offsets=[0, 0]), 0, "shape that no memory can have"),
        (one(shape=[1] * 65), 24, "length <= 64"),
        (one(dtype="F4"), 24, "unknown dtype 'F4'"),
        (one(data_offsets=[24, 0]), 24, "lies in bytes 24 to 0"),
        (one(data_offsets=[4, 28]), 28, "does not follow another one"),
        (one(), 25, "its tensors end at byte"),
        (one(), 23, "its tensors end at byte"),
        ({**one(), "v": one()["w"]}, 24, "overlaps another one"),
        ({"w": 5}, 24, "object"),
        (b"[]", 0, "object"),
        (b"{", 0, "truncated"),
        (b'{"\xff": 1}', 0, "utf-8"),
        (b'{"a":' * 5000, 0, "nested too deeply"),
        (b"[" + b"{}," * TENSORS_MAX + b"{},{},{}]", 0, "more than 200000 tensors"),
    ],
)
def test_a_bad_header_is_refused(header: dict[str, Any] | bytes, data: int, why: str) -> None:
    """The error says what is wrong, and names the tensor."""
    with pytest.raises(InvalidInput, match=f"(?i){why}"):
        parsed(file_of(header, bytes(data)))


@pytest.mark.parametrize("size_bytes", [2**64 - 1, HEADER_BYTES_MAX + 1, 30])
def test_the_size_of_a_header_is_checked_before_it_is_read(size_bytes: int) -> None:
    """No memory is taken for a header that cannot be."""
    with pytest.raises(InvalidInput, match="header"):
        header_end(size_bytes.to_bytes(8, "little"), 37)


def test_a_file_without_a_size_is_refused() -> None:
    """A file of fewer than 8 bytes has no header."""
    with pytest.raises(InvalidInput, match="at least 8 bytes"):
        header_end(b"1234567", 7)


@given(st.data())
def test_no_mutation_leads_out_of_the_file(data: st.DataObject) -> None:
    """Whatever bytes change, tensors cover the file after its header, or it is refused."""
    whole = bytearray(of_tensors({"a": b"12", "b": b"345"}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parsed(bytes(whole))
    except InvalidInput:
        return
    assert sum(each.end - each.first for each in found) == len(whole) - header_end(
        bytes(whole), len(whole)
    )


@given(
    st.lists(st.tuples(st.integers(0, 3 * PIECE_BYTES_MAX), st.booleans()), max_size=12),
)
def test_pieces_are_the_wanted_bytes_once_and_in_order(sizes: list[tuple[int, bool]]) -> None:
    """No piece is too large, and none has bytes that nobody wants."""
    at, wanted = 100, []
    for number, (size_bytes, is_wanted) in enumerate(sizes):
        if is_wanted:
            wanted.append(StoredTensor(str(number), "U8", (size_bytes,), at, at + size_bytes))
        at += size_bytes
    read: dict[str, int] = dict.fromkeys((one.name for one in wanted), 0)
    for piece in pieces(wanted):
        assert 0 < piece.size_bytes <= PIECE_BYTES_MAX
        at = piece.first
        for part in piece.parts:
            assert at == part.tensor.first + part.first
            assert read[part.tensor.name] == part.first
            read[part.tensor.name] = part.end
            at += part.end - part.first
    assert read == {one.name: one.end - one.first for one in wanted}


def test_neighbours_are_read_together() -> None:
    """Small tensors that lie beside each other take one read."""
    header = json.loads(of_tensors({"a": b"1", "b": b"2"})[8:-2])
    data = file_of(header, b"12")
    (piece,) = pieces(parsed(data))
    assert [part.tensor.name for part in piece.parts] == ["a", "b"]
