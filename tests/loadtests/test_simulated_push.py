"""The simulation of a push in parts: its arithmetic, and its figures at a size that is quick."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loadtests.simulation.pushing import (
    Gate,
    HookList,
    Push,
    Settings,
    main,
    part_sizes,
    simulate,
    traced,
)

SMALL = Settings(workers=3, dataset_bytes=700 * 10**9, killed=0)


def test_a_gate_lets_so_many_through_in_a_second() -> None:
    """The first of each burst passes at once, and a pause is not saved up."""
    gate = Gate(10.0)
    assert [gate.pass_at(5.0, 1), gate.pass_at(5.0, 10)] == pytest.approx([5.0, 6.0])
    assert gate.pass_at(9.0, 1) == pytest.approx(9.0)


def test_parts_and_requests_are_those_of_the_code() -> None:
    """The parts have all bytes, and each but the first few 8 GiB; a part and the end of a plan take
    the few requests that they take in a store in memory."""
    sizes = part_sizes(SMALL)
    assert sum(sizes) == SMALL.dataset_bytes
    assert max(sizes[-5:-1]) == max(sizes) > 8 * 10**9
    requests = traced()
    assert 5 < requests.before < 25 and 1 < requests.after < 8
    assert requests.in_a_row < requests.before + requests.after and 1 < requests.finish < 8


def test_what_makes_a_push_slower() -> None:
    """Killed tasks, shards of others and a slow S3 cost time, and nothing makes up for them."""
    sizes = part_sizes(SMALL)
    alone = simulate(replace(SMALL, workers=1))
    three, killed = simulate(SMALL), simulate(replace(SMALL, killed=0.5))
    slow = simulate(replace(SMALL, put_rate=1, prefixes=1, tasks=0))
    assert alone.parts == three.parts == len(sizes)
    assert 1 > alone.efficiency > three.efficiency > killed.efficiency > 0.3
    assert alone.shard_gets == 0 and 0 < three.shard_gets < 3 * len(sizes)
    assert killed.killed > 5 and slow.efficiency < 0.3


def test_what_a_worker_reads_of_others() -> None:
    """Lists that are in the store, and shards that are in none of them."""
    push = Push(SMALL, traced(), [])
    push.published = 120
    push.hook_lists = [HookList(1, 64, 0), HookList(65, 100, 0), HookList(101, 110, 9)]
    found = [push.unread(known) for known in (0, 50, 64, 100, 115)]
    assert found == [(20, 2), (20, 2), (20, 1), (20, 0), (5, 0)]
    assert (push.listed(7), push.listed(115)) == (100, 115)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints figures for people, or as JSON."""
    arguments = ["--workers", "2", "--dataset", "20GB"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 2
    assert main(arguments) == 0
    assert "efficiency" in capsys.readouterr().out
