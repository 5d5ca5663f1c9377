"""What an answer counts as, and the limit of a rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.cluster.counting import Counts, Sent, Throttle, kind_of, repeated_bytes


@pytest.mark.parametrize(
    ("target", "status", "kind"),
    [
        ("/data/store/packs/ab/abcd", 206, "packs"),
        ("/data/store/index/1234", 200, "index"),
        ("/data/store/repos/a/commits/12", 200, "repos"),
        ("/data?list-type=2&prefix=store%2Frepos%2F", 200, "lists"),
        ("/data/store/store.json", 200, "other"),
        ("/data/direct/a?X-Amz-Signature=1", 200, "other"),
        ("/data/store/packs/ab/abcd", 503, "errors"),
    ],
)
def test_kinds(target: str, status: int, kind: str) -> None:
    """Classes of keys, lists and errors are told apart."""
    assert kind_of(target, status) == kind


def test_counts_travel_as_json() -> None:
    """What was counted is the same after the journey."""
    counts = Counts()
    counts.add("packs", 1, 0)
    counts.add("packs", 0, 10)
    counts.add("errors", 1, 5)
    assert counts.total_bytes == 15
    assert Counts.from_dict(counts.as_dict()) == counts


def test_lines_of_a_log() -> None:
    """A body's line tells it again, and its range where it begins."""
    part = Sent("10.77.0.11", "packs", "/data/store/packs/ab/c", "bytes 100-199/4096", 60)
    whole = Sent("10.77.0.11", "other", "/data/store/store.json", "", 60)
    assert [Sent.of_line(sent.line() + "\n") for sent in (part, whole)] == [part, whole]
    assert (part.first, whole.first) == (100, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 20))))
def test_repeated_bytes(spans: list[tuple[int, int, int]]) -> None:
    """What was sent of packs, less every byte of a pack once, was sent repeatedly."""
    log = [Sent("a", "packs", f"/packs/{pack}", f"bytes {first}-99/100", size)
           for pack, first, size in spans]  # fmt: skip
    distinct = {(pack, first + more) for pack, first, size in spans for more in range(size)}
    total = sum(size for *_, size in spans)
    assert repeated_bytes([*log, Sent("a", "lists", "/", "", 5)]) == total - len(distinct)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 0.1)), min_size=1, max_size=50))
def test_a_throttle_keeps_its_rate(asked: list[tuple[int, float]]) -> None:
    """Whatever is asked when, no more than rate * time and one burst begins to pass."""
    throttle = Throttle(1e6)
    now_s = sent = 0.0
    for size_bytes, pause_s in asked:
        now_s += pause_s
        begin_s = now_s + throttle.reserve(size_bytes, now_s)
        assert sent <= 1e6 * (begin_s + 0.02) + 1
        sent += size_bytes


def test_no_limit() -> None:
    """A rate of 0 never waits."""
    throttle = Throttle(0)
    assert [throttle.reserve(10**9, 0.0) for _ in range(3)] == [0, 0, 0]
