"""The simulation: its arithmetic, and that it comes to what is asked at a size that is quick."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from loadtests.simulation.__main__ import main, parse_size, unit_size
from loadtests.simulation.clock import Clock
from loadtests.simulation.cluster import Cluster, Settings
from loadtests.simulation.figures import Figures, figures
from loadtests.simulation.network import Network, Port
from loadtests.simulation.scenarios import SCENARIOS
from loadtests.simulation.store import Store

MIB = 1 << 20
SMALL = Settings(
    nodes=8, dataset_bytes=1024 * MIB, unit_bytes=8 * MIB, pack_units=2, node_bytes_per_s=300e6
)


def simulated(name: str, settings: Settings = SMALL) -> Figures:
    """The figures of a scenario."""
    _, change, happen = SCENARIOS[name]
    cluster = Cluster(change(settings))
    happen(cluster)
    return figures(cluster, complete=cluster.run())


def test_time_goes_by_the_calls() -> None:
    """Calls are made at their times, equal ones in the order of asking, and none after the end."""
    clock = Clock()
    seen: list[str] = []
    clock.at(2.0, seen.append, "c")
    clock.at(1.0, seen.append, "a")
    clock.at(1.0, seen.append, "b")
    clock.at(3.0, seen.append, "d")
    assert clock.run(lambda: len(seen) == 3, calls_max=9)
    assert (seen, clock.now_s) == (["a", "b", "c"], 2.0)
    assert not clock.run(lambda: False, calls_max=9)


def test_flows_share_their_ports() -> None:
    """Two flows out of a node of 100 bytes/s take twice as long, and the third at the other
    node's own speed; what is free again is used at once."""
    clock = Clock()
    network, a, b, c = Network(clock), Port(100.0), Port(1000.0), Port(10.0)
    ends: dict[str, float] = {}

    def end(name: str) -> None:
        ends[name] = clock.now_s

    network.start(a, b, 100.0, partial(end, "to b"))
    network.start(a, b, 300.0, partial(end, "also to b"))
    network.start(b, c, 100.0, partial(end, "to c"))
    assert clock.run(lambda: len(ends) == 3, calls_max=99)
    assert ends == pytest.approx({"to b": 2.0, "also to b": 4.0, "to c": 10.0})
    assert (a.sent_bytes, b.sent_bytes) == pytest.approx((400.0, 100.0))


def test_a_flow_that_is_stopped_counts_what_it_sent() -> None:
    """Half of it had come."""
    clock = Clock()
    network, a, b = Network(clock), Port(100.0), Port(100.0)
    flow = network.start(a, b, 100.0, lambda: None)
    clock.at(0.5, network.stop, flow)
    assert not clock.run(lambda: False, calls_max=99)
    assert a.sent_bytes == pytest.approx(50.0)
    assert network.came_bytes(flow) == 50


def test_the_store_has_a_speed_for_each_and_one_for_all() -> None:
    """Reads of 1 s after 0.1 s, two at a time: four take 2.2 s."""
    clock, ends = Clock(), []
    store = Store(clock, Network(clock), bytes_per_s=20.0, connection_bytes_per_s=10.0,
                  latency_s=0.1)  # fmt: skip
    for _ in range(4):
        store.get(Port(1e9), 10.0, lambda: None, lambda: ends.append(clock.now_s))
    assert clock.run(lambda: len(ends) == 4, calls_max=99)
    assert ends == pytest.approx([1.1, 1.1, 2.2, 2.2])
    assert store.egress_bytes == 40.0


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 8, 24])
def test_s3_is_read_once_and_nodes_send_alike(nodes: int) -> None:
    """All nodes read everything: S3 sends it once, and nobody sends much more than others."""
    seen = simulated("fill", replace(SMALL, nodes=nodes))
    assert seen.complete
    assert seen.origin_egress_ratio <= 1.05
    assert seen.fill_p50_to_ideal <= 1.3
    assert seen.fill_p99_to_p50 <= 1.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "egress_max", "to_ideal_max"),
    [("herd", 1.05, 2.0), ("failure", 1.2, 2.0), ("deploy", 1.2, 3.0), ("stuck", 1.3, 2.0),
     ("slow", 1.2, 3.0)],
)  # fmt: skip
def test_whatever_happens_they_end(name: str, egress_max: float, to_ideal_max: float) -> None:
    """Lost, restarted, slow and stuck nodes cost time and some egress, and no node stays behind."""
    seen = simulated(name)
    assert seen.complete
    assert seen.origin_egress_ratio <= egress_max
    assert seen.fill_p50_to_ideal <= to_ideal_max


@pytest.mark.slow
def test_owners_that_read_ahead_shorten_a_herd() -> None:
    """Readers in lockstep wait for few reads of S3 at once; owners could have read more by then,
    and pass bytes on as they come. S3 still sends everything once."""
    names = ("herd", "herd-ahead", "herd-through", "herd-tree")
    found = [simulated(name, replace(SMALL, node_bytes_per_s=1.25e9)) for name in names]
    assert all(one.complete and one.origin_egress_ratio <= 1.02 for one in found)
    herd, ahead, through, tree = (one.fill_p50_to_ideal for one in found)
    assert herd > 1.5 * ahead and ahead > through
    assert tree < 1.2 * through
    assert found[-1].asks_each_unit < 1.1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    """Nothing depends on addresses in memory or on the real clock."""
    assert simulated("failure") == simulated("failure")


def test_an_upload_limit_holds() -> None:
    """No node sends faster than it may, so that the fill takes as long as that takes."""
    limited = replace(SMALL, nodes=4, dataset_bytes=256 * MIB, upload_bytes_per_s_max=20e6)
    cluster = Cluster(limited)
    assert cluster.run()
    sent_bytes = sum(node.up.sent_bytes for node in cluster.nodes)
    assert sent_bytes <= 4 * 20e6 * (cluster.clock.now_s + 1.0)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1TB", 10**12), ("64MiB", 64 * MIB), ("8388608", 8 * MIB), ("1.5GB", 1_500_000_000)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    """Sizes are read as people write them."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("words", [["--nodes", "0"], ["--dataset", "0"], ["--dataset", "1XB"],
                                   ["--in-flight", "-1"], ["sleep"]])  # fmt: skip
def test_bad_arguments_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """They end the command with what is wrong."""
    with pytest.raises(SystemExit):
        main(words)
    assert words[-1] in capsys.readouterr().err


def test_units_grow_with_the_cluster() -> None:
    """Real ones where there are few transfers; otherwise so coarse that it takes minutes."""
    assert unit_size(8, 10**12) == 8 * MIB
    assert 10**4 * 10**12 / unit_size(10**4, 10**12) < 2_500_000


def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` gives one JSON object with the figures that are asked for."""
    assert main(["--nodes", "4", "--dataset", "512MiB", "--node-speed", "100MB", "--json"]) in (
        0,
        1,
    )
    seen = json.loads(capsys.readouterr().out)
    assert seen["complete"] and seen["nodes"] == 4
    assert seen["origin_egress_ratio"] <= 1.05
