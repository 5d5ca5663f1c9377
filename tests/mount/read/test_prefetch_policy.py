"""What is worth being stored before it is asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.mount.read import prefetch_policy
from lodefs.mount.read.prefetch_policy import (
    AGAIN_S,
    BLOCK_BYTES,
    READ_BYTES_MAX,
    REST_S_MAX,
    SIBLINGS_BYTES_MAX,
    Policy,
    Read,
    is_small,
    together,
)


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def node(ino: int, size_bytes: int, kind: Kind = Kind.FILE) -> Entry:
    return Entry(ino, 1, b"%06d" % ino, int(kind), False, size_bytes, b"d" * 32, b"")


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 2 * FLAT_SIZE_BYTES_MIN)), max_size=60)
)
def test_small_siblings_fall_into_groups(entries: list[tuple[Kind, int]]) -> None:
    """Each small file is in one group, the same from wherever it is asked for; groups follow each
    other, and are as large as they may be. Others are in no group."""
    siblings = [node(n + 2, size, kind) for n, (kind, size) in enumerate(entries)]
    groups = []
    for one in siblings:
        group = together(siblings, one.ino)
        assert (one in group) == is_small(one) == bool(group)
        if group and group not in groups:
            groups.append(group)
    assert [one for group in groups for one in group] == list(filter(is_small, siblings))
    for group, following in pairwise(groups):
        total = sum(one.size_bytes for one in group)
        assert total <= SIBLINGS_BYTES_MAX < total + following[0].size_bytes


@pytest.mark.parametrize(
    ("kind", "size_bytes", "expected"),
    [
        (Kind.FILE, 1, True),
        (Kind.FILE, FLAT_SIZE_BYTES_MIN - 1, True),
        (Kind.FILE, FLAT_SIZE_BYTES_MIN, False),
        (Kind.FILE, 0, False),
        (Kind.SYMLINK, 9, False),
        (Kind.DIRECTORY, 9, False),
    ],
)
def test_what_is_small(kind: Kind, size_bytes: int, *, expected: bool) -> None:
    """Files with bytes that have no flat file of their own."""
    assert is_small(node(2, size_bytes, kind)) == expected


def test_reads_that_say_something() -> None:
    """The first of a file, and small ones anywhere; not what the kernel reads ahead."""
    assert prefetch_policy.is_telling(0, BLOCK_BYTES)
    assert prefetch_policy.is_telling(BLOCK_BYTES, READ_BYTES_MAX)
    assert not prefetch_policy.is_telling(BLOCK_BYTES, READ_BYTES_MAX + 1)


def test_the_second_read_makes_a_place_dense() -> None:
    """One read of a directory says nothing of others; places do not mix."""
    policy = Policy()
    assert [policy.is_dense(b"a") for _ in range(3)] == [False, True, True]
    assert not policy.is_dense((2, 0))
    assert not policy.is_dense((2, 1))
    assert policy.is_dense((2, 0))


def test_reads_of_what_was_stored() -> None:
    """Those that come at once were on their way; later ones mean that the kernel has dropped it,
    and what lies around it. A read of what is new asks for nothing that was stored."""
    clock = Clock()
    policy = Policy(clock)
    old, new, other = (2, 0), (3, 0), (4, 0)
    assert policy.look(old) is Read.FIRST
    policy.mark([old])
    assert policy.look(old) is Read.NOTHING
    clock.now_s += AGAIN_S
    assert policy.look(old) is Read.AGAIN
    assert policy.wants(old, Read.AGAIN)
    policy.mark([new])
    assert not policy.wants(old, Read.FIRST)
    assert not policy.wants(new, Read.AGAIN)
    assert policy.wants(other, Read.FIRST)
    assert policy.wants(other, Read.AGAIN)


def test_what_was_tried_in_vain_is_not_tried_for_its_siblings() -> None:
    """Names that the kernel does not know: reading one says nothing, but then it is there."""
    clock = Clock()
    policy = Policy(clock)
    policy.mark([(2, 0), (3, 0)], is_kept=False)
    clock.now_s += 1000
    assert not policy.wants((3, 0), Read.FIRST)
    assert policy.look((2, 0)) is Read.NOTHING
    clock.now_s += AGAIN_S
    assert policy.look((2, 0)) is Read.AGAIN
    assert policy.wants((3, 0), Read.AGAIN)


def test_what_is_dropped_at_once_is_stored_less_and_less_often() -> None:
    """The time between two attempts doubles up to a minute, and is short again after a pause."""
    clock = Clock()
    policy = Policy(clock)
    times = []
    while clock.now_s < 1000:
        if policy.begin("place"):
            times.append(clock.now_s)
        clock.now_s += AGAIN_S / 2
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:4] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, 8 * AGAIN_S]
    assert max(pauses) == pauses[-1] == REST_S_MAX
    assert policy.begin("another")
    clock.now_s += 5 * REST_S_MAX
    assert policy.begin("place")
    clock.now_s += AGAIN_S
    assert policy.begin("place")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too much was stored to be remembered, what was stored last is known."""
    monkeypatch.setattr(prefetch_policy, "MARKS_MAX", 10)
    policy = Policy()
    for n in range(100):
        policy.mark([(n, 0)])
        assert policy.look((n, 0)) is Read.NOTHING
    assert sum(policy.look((n, 0)) is Read.NOTHING for n in range(100)) <= 11
