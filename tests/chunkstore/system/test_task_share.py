"""Shares of tasks: each id is in one, and words that are none are refused."""

from __future__ import annotations

from random import Random

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.task_share import TaskShare, parse_task_share

IDS = [bytes(32), b"\xff" * 32, *(Random(1).randbytes(32) for _ in range(500))]


@pytest.mark.parametrize("tasks", [1, 2, 3, 10, 1000])
def test_each_id_is_in_one_share(tasks: int) -> None:
    """The share is a range, which begins with its prefix."""
    shares = [TaskShare(task, tasks) for task in range(1, tasks + 1)]
    for one in IDS:
        (share,) = [share for share in shares if share.has(one)]
        assert share.first_prefix <= one
    for share in shares[1:]:
        before = int.from_bytes(share.first_prefix) - 1
        assert share.has(share.first_prefix) and not share.has(before.to_bytes(8))


@pytest.mark.parametrize("words", ["", "3", "0/0", "4/3", "a/b", "1/0", "-1/3", "1/2 ", "1/2/3"])
def test_words_that_are_no_share(words: str) -> None:
    """They are refused, with an example."""
    with pytest.raises(InvalidInput, match="3/32 is the third of 32"):
        parse_task_share(words)


def test_shares_are_named_from_1_and_from_0() -> None:
    """An index from 0, as a Kubernetes Job has it, names each share once: 0 is the last."""
    assert [str(parse_task_share(f"{n}/3")) for n in (1, 2, 3)] == ["1/3", "2/3", "3/3"]
    assert [str(parse_task_share(f"{n}/3")) for n in (0, 1, 2)] == ["3/3", "1/3", "2/3"]
