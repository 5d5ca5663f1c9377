"""Range headers, as RFC 9110 section 14 has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.api.ranges import RANGES_MAX, ByteRange, Unsatisfiable, select_ranges

TOTAL = 1000


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", [(0, 1)]),
        ("bytes=0-499", [(0, 500)]),
        ("bytes=500-999", [(500, 500)]),
        ("bytes=999-", [(999, 1)]),
        ("bytes=0-", [(0, 1000)]),
        ("bytes=990-5000", [(990, 10)]),
        ("bytes=-1", [(999, 1)]),
        ("bytes=-5000", [(0, 1000)]),
        ("BYTES=1-2", [(1, 2)]),
        ("bytes=1-2,5-6", [(1, 2), (5, 2)]),
        ("bytes=5-6, 1-2", [(5, 2), (1, 2)]),
        ("bytes= 1-2 ,\t5-6,", [(1, 2), (5, 2)]),
        ("bytes=1-2,2000-3000", [(1, 2)]),
        ("bytes=000001-02", [(1, 2)]),
        ("bytes=0-" + "9" * 5000, [(0, 1000)]),
    ],
)
def test_satisfiable(header: str, expected: list[tuple[int, int]]) -> None:
    """Ranges are cut to the file and keep the order of the request."""
    assert select_ranges(header, TOTAL) == [ByteRange(*one) for one in expected]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-10,5-20", [(0, 21)]),
        ("bytes=5-20,0-10", [(0, 21)]),
        ("bytes=0-4,5-9", [(0, 10)]),
        ("bytes=0-999,10-20,500-", [(0, 1000)]),
        ("bytes=500-600,0-10,5-20", [(0, 21), (500, 101)]),
    ],
)
def test_overlapping_ranges_are_merged(header: str, expected: list[tuple[int, int]]) -> None:
    """No byte is sent twice."""
    assert select_ranges(header, TOTAL) == [ByteRange(*one) for one in expected]


@pytest.mark.parametrize("header", [None, "items=0-5", "bytes", "", "seconds=1-2", "bytes 0-5"])
def test_other_units_are_ignored(header: str | None) -> None:
    """Without a Range in bytes the whole file is the answer."""
    assert select_ranges(header, TOTAL) is None


@pytest.mark.parametrize(
    "header",
    [
        "bytes=",
        "bytes=,",
        "bytes=-",
        "bytes=a-b",
        "bytes=5",
        "bytes=5-4",
        "bytes=1-2-3",
        "bytes=--5",
        "bytes=+1-2",
        "bytes=1 - 2",
        "bytes=1-2;3-4",
        "bytes=0x1-0x2",
        "bytes=١-٢",  # digits, but not ASCII
        "bytes=0-1,oops",
        "bytes=1000-",
        "bytes=1000-2000",
        "bytes=-0",
        "bytes=" + "9" * 5000 + "-",
        "bytes=" + ",".join(f"{i * 2}-{i * 2}" for i in range(RANGES_MAX + 1)),
    ],
)
def test_malformed_too_many_or_outside_is_unsatisfiable(header: str) -> None:
    """Such requests get 416 and not the whole file."""
    assert isinstance(select_ranges(header, TOTAL), Unsatisfiable)


@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0", "bytes=-1"])
def test_no_range_lies_in_an_empty_file(header: str) -> None:
    """An empty file has no satisfiable range."""
    assert isinstance(select_ranges(header, 0), Unsatisfiable)


def test_as_many_ranges_as_allowed() -> None:
    """The limit itself is allowed."""
    header = "bytes=" + ",".join(f"{i * 2}-{i * 2}" for i in range(RANGES_MAX))
    selected = select_ranges(header, TOTAL)
    assert isinstance(selected, list)
    assert len(selected) == RANGES_MAX


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=RANGES_MAX),
    st.integers(0, 50),
)
def test_selected_bytes_are_those_asked_for(pairs: list[tuple[int, int]], total: int) -> None:
    """The union of the answer is the union of the request within the file, each byte once."""
    specs = [(first, first + more) for first, more in pairs]
    header = "bytes=" + ",".join(f"{first}-{last}" for first, last in specs)
    wanted = {place for first, last in specs for place in range(first, last + 1) if place < total}
    selected = select_ranges(header, total)
    if not wanted:
        assert isinstance(selected, Unsatisfiable)
        return
    assert isinstance(selected, list)
    sent = [place for one in selected for place in range(one.first, one.first + one.size_bytes)]
    assert set(sent) == wanted
    assert len(sent) == len(wanted)


@given(st.text(max_size=40))
def test_no_header_breaks_the_parser(text: str) -> None:
    """Whatever stands in the header, the answer lies within the file."""
    selected = select_ranges(f"bytes={text}", TOTAL)
    if isinstance(selected, list):
        assert all(one.first >= 0 and one.first + one.size_bytes <= TOTAL for one in selected)
