"""Network namespaces: names, links, partitions, and that nothing stays behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.cluster.network import (
    BURST_BYTES_MIN,
    Host,
    Link,
    Network,
    is_over,
    remove_leftovers,
    run_name,
    shaping,
)
from loadtests.errors import LoadtestError

PORT = 9
SOON_S = 0.3


@pytest.fixture
def network() -> Iterator[Network]:
    """A network of this process."""
    with Network.made() as made:
        yield made


def connects(one: Host, other: Host, timeout_s: float) -> bool:
    """Whether a connection from one host to the other comes about in time."""
    with other.entered():
        listener = socket.create_server((other.address, PORT))
    with one.entered():
        client = socket.socket()
    with listener, client:
        client.settimeout(timeout_s)
        try:
            client.connect((other.address, PORT))
        except TimeoutError:
            return False
        return True


@pytest.mark.parametrize(
    ("link", "lines"),
    [
        (Link(), []),
        (Link(bytes_per_s=10**8), [f"root handle 2: tbf rate 800000000bit burst {10**6} latency"]),
        (Link(bytes_per_s=1000), [f"root handle 2: tbf rate 8000bit burst {BURST_BYTES_MIN} lat"]),
        (Link(latency_s=0.02, loss=0.01), ["root handle 1: netem delay 20ms loss 1% limit"]),
        (Link(10**6, 0.01), ["root handle 1: netem delay 10ms", "parent 1: handle 2: tbf rate"]),
    ],
)
def test_what_tc_is_told(link: Link, lines: list[str]) -> None:
    """A rate is tbf's, latency and loss are netem's, and both together are one in the other."""
    told = shaping(link)
    assert len(told) == len(lines)
    assert all(line.startswith(start) for line, start in zip(told, lines, strict=True))


def test_names_tell_whether_their_run_is_over() -> None:
    """Names of a living process are kept, those of one that is gone or another are not."""
    assert not is_over(f"{run_name(os.getpid())}-n1")
    assert not is_over("somebody-1-2-n1")
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, text=True, check=True, timeout=60)  # fmt: skip
    assert is_over(f"lodefs-load-{int(ended.stdout)}-1-n1")
    assert is_over(f"lodefs-load-{os.getpid()}-1-n1")


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not root is told at once what is needed."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LoadtestError, match="root"), Network.made():
        pass


@pytest.mark.usefixtures("namespaces")
@pytest.mark.cluster
@pytest.mark.slow
def test_partition_and_healing(network: Network) -> None:
    """Parted hosts do not reach each other, but others; healed they do again."""
    one, two, three = (network.add(f"n{number}", 11 + number) for number in range(3))
    assert connects(one, two, 10)
    network.part([one], [two])
    assert not connects(one, two, SOON_S)
    assert connects(one, three, 10)
    network.heal()
    assert connects(one, two, 10)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.cluster
@pytest.mark.slow
def test_unplugged_host(network: Network) -> None:
    """A host whose link is down is not reached until it is up again."""
    one, two = network.add("n0", 11), network.add("n1", 12)
    network.unplug(two)
    assert not connects(one, two, SOON_S)
    network.plug(two)
    assert connects(one, two, 10)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.cluster
@pytest.mark.slow
def test_nothing_stays_behind() -> None:
    """The namespaces of a run are gone at its end, and those of a killed run with the next."""
    with Network.made() as network:
        own = network.add("n0", 11).namespace
        assert Path("/run/netns", own).exists()
    assert not Path("/run/netns", own).exists()
    left = f"lodefs-load-{os.getpid()}-1-n0"
    subprocess.run(["ip", "netns", "add", left], check=True, timeout=60)
    remove_leftovers()
    assert not Path("/run/netns", left).exists()
