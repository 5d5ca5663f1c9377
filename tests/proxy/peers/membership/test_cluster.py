"""Cluster, Addresses and Oneself: where members are, and which of them this node is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.proxy.peers.membership import cluster as clusters
from lodefs.proxy.peers.membership.addresses import Addresses, SocketAddress, is_local, look_up
from lodefs.proxy.peers.membership.cluster import Cluster, SelfDetector
from lodefs.proxy.peers.membership.dns_members import DnsMembers
from lodefs.proxy.peers.membership.members import FileMembers, StaticMembers
from lodefs.proxy.peers.membership.peer import Peer, parse_dns_name, parse_peer
from lodefs.proxy.runtime.thread_pools import Pool

HERE = "10.0.0.1"


class Names:
    """Names and their addresses, and which of them were looked up."""

    def __init__(self, **known: str) -> None:
        self.known = known
        self.asked: list[str] = []
        self.now_s = 1000.0

    def look_up(self, name: str) -> list[str]:
        self.asked.append(name)
        if name not in self.known:
            raise Unavailable(f"{name}: Name or service not known")
        return self.known[name].split(",")

    def addresses(self) -> Addresses:
        return Addresses(lambda: self.now_s, look_up=self.look_up)


def refresh(addresses: Addresses, *texts: str) -> float:
    return asyncio.run(addresses.refresh(map(parse_peer, texts)))


def hosts(addresses: Addresses, address: str) -> list[str]:
    return [endpoint.host for endpoint in addresses.of(address)]


def test_addresses_need_no_lookup() -> None:
    """An IP address is where it says, from the beginning."""
    names = Names()
    addresses = names.addresses()
    assert addresses.of("10.0.0.1:7") == (SocketAddress(socket.AF_INET, "10.0.0.1", 7),)
    assert addresses.of("[fd00::1]:7") == (SocketAddress(socket.AF_INET6, "fd00::1", 7),)
    refresh(addresses, "10.0.0.1:7", "[fd00::1]:7")
    assert names.asked == []


def test_names_are_looked_up_once_in_a_while() -> None:
    """New names at once, known ones again after a minute, gone ones never."""
    names = Names(a="10.0.0.1,fd00::1", b="10.0.0.2")
    addresses = names.addresses()
    assert addresses.of("a:7") == ()
    refresh(addresses, "a:7", "b:7", "b:8")
    assert hosts(addresses, "a:7") == ["10.0.0.1", "fd00::1"]
    assert hosts(addresses, "b:8") == ["10.0.0.2"]
    names.now_s += 59
    refresh(addresses, "a:7", "b:7")
    assert sorted(names.asked) == ["a", "b"]
    names.now_s += 1
    names.known["a"] = "10.0.0.9"
    refresh(addresses, "a:7")
    assert sorted(names.asked) == ["a", "a", "b"]
    assert hosts(addresses, "a:7") == ["10.0.0.9"]
    assert addresses.of("b:7") == ()


def test_names_without_an_address(caplog: pytest.LogCaptureFixture) -> None:
    """They are named once; a name that had an address keeps it."""
    names = Names(a="10.0.0.1")
    addresses = names.addresses()
    for _ in range(3):
        refresh(addresses, "a:7", "gone:7")
        names.now_s += 60
        names.known.clear()
    assert hosts(addresses, "a:7") == ["10.0.0.1"]
    assert addresses.of("gone:7") == ()
    assert caplog.messages == ["members without an address: gone"]


def test_many_names_do_not_wear_a_name_server_out() -> None:
    """Known names are looked up again at a bounded rate, the oldest first."""
    names = Names(**{f"n{number}": "10.0.0.1" for number in range(2000)})
    addresses = names.addresses()
    texts = [f"n{number}" for number in range(2000)]
    refresh(addresses, *texts)
    assert len(names.asked) == 2000
    names.now_s += 100
    again_s = refresh(addresses, *texts)
    assert len(names.asked) - 2000 <= 20 * again_s


def test_the_systems_resolver() -> None:
    """/etc/hosts counts; what has no address is Unavailable, and named."""
    assert set(look_up("localhost")) & {"127.0.0.1", "::1"}
    with pytest.raises(Unavailable, match=r"1\.2\.3\.x"):
        look_up("1.2.3.x" + "y" * 60)  # no label is so long: nobody is asked


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("192.0.2.1", False), ("0.0.0.0", False), ("2001:db8::1", False)],
)
def test_addresses_of_this_machine(host: str, here: bool) -> None:
    """An address is local where a socket can be bound to it; the wildcard is nobody's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    assert is_local(SocketAddress(family, host, 7441)) is here


def oneself(
    members: Sequence[str], *, port: int | None = 7441, setting: str | None = None
) -> SelfDetector:
    found = SelfDetector(port, setting, is_local=lambda endpoint: endpoint.host == HERE)
    names = Names(me=HERE, other="10.0.0.2")
    addresses = names.addresses()
    peers = [parse_peer(text) for text in members]
    asyncio.run(addresses.refresh(peers))
    found.look(peers, addresses.of)
    found.look(peers, addresses.of)
    return found


@pytest.mark.parametrize(
    ("members", "port", "setting", "expected", "words"),
    [
        (["10.0.0.2", HERE], 7441, None, [f"{HERE}:7441"], ""),
        (["other", "me"], 7441, None, ["me:7441"], ""),
        ([f"{HERE}:1", f"{HERE}:2"], 2, None, [f"{HERE}:2"], ""),
        (["x", "me"], 7441, "me:7441", ["me:7441"], ""),
        (["nat:9", "10.0.0.2"], 7441, "nat:9", ["nat:9"], ""),
        ([HERE, "me"], 7441, None, [f"{HERE}:7441", "me:7441"], "list every node once"),
        ([HERE, "me"], 7441, "me:7441", ["me:7441", f"{HERE}:7441"], "list every node once"),
        (["10.0.0.2", f"{HERE}:9"], 7441, None, [], "set peer_address"),
        (["10.0.0.2"], 7441, "me:7441", ["me:7441"], "not among the members"),
        ([], 7441, None, [], ""),
        ([HERE], None, None, [], ""),
    ],
)
def test_which_member_this_node_is(
    members: list[str],
    port: int | None,
    setting: str | None,
    expected: list[str],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The setting first, else a member with this machine's address and the door's port; what is
    odd is said once."""
    found = oneself(members, port=port, setting=setting)
    assert list(found.addresses()) == expected
    said = [text for text in caplog.messages if not text.startswith("members without an address")]
    assert len(said) == bool(words)
    assert words in "".join(said)


@pytest.mark.parametrize(
    ("host", "members", "expected"),
    [
        ("127.0.0.2", ["127.0.0.1", "127.0.0.2"], ["127.0.0.2:7441"]),
        ("127.0.0.1", ["127.0.0.1", "127.0.0.2"], ["127.0.0.1:7441"]),
        ("0.0.0.0", ["127.0.0.1", "127.0.0.2"], ["127.0.0.1:7441", "127.0.0.2:7441"]),
        ("127.0.0.2", ["127.0.0.1", "192.0.2.1"], []),
        ("::", ["127.0.0.1"], ["127.0.0.1:7441"]),
        ("192.0.2.1", ["127.0.1.1", "192.0.2.2"], ["127.0.1.1:7441"]),
    ],
)
def test_the_doors_own_address_wins(host: str, members: list[str], expected: list[str]) -> None:
    """Of members with this machine's addresses and one port, the node is the one at the address
    that its door listens on; one that is not listed is none of the others. The loopback address of
    /etc/hosts stands for the machine's own."""
    peers = [parse_peer(text) for text in members]
    addresses = Addresses(lambda: 0.0)
    asyncio.run(addresses.refresh(peers))
    found = SelfDetector(7441, None, host=host)
    found.look(peers, addresses.of)
    assert list(found.addresses()) == expected


def test_a_cluster_looks_and_goes_on_looking(disk: Pool) -> None:
    """After the start members, addresses and oneself are known; close ends it."""
    names = Names(me="127.0.0.1")

    async def scenario() -> None:
        cluster = Cluster(
            StaticMembers([Peer("10.9.9.9:7441"), Peer("me:7441")]),
            names.addresses(),
            SelfDetector(7441, None),
            disk,
        )
        await cluster.start()
        assert [peer.address for peer in cluster.members()] == ["10.9.9.9:7441", "me:7441"]
        assert cluster.own_addresses() == ("me:7441",)
        assert cluster.endpoints("me:7441") == (SocketAddress(socket.AF_INET, "127.0.0.1", 7441),)
        await cluster.close()

    asyncio.run(scenario())


def test_a_cluster_starts_without_its_members(disk: Pool, caplog: pytest.LogCaptureFixture) -> None:
    """A source that hangs does not hold the node up."""

    class Hanging(StaticMembers):
        async def refresh(self) -> float:
            await asyncio.Event().wait()
            return 0.0

    async def scenario() -> None:
        cluster = Cluster(Hanging([]), Names().addresses(), SelfDetector(7441, None), disk)
        await cluster.start(timeout_s=0.01)
        assert cluster.members() == ()
        await cluster.close()

    asyncio.run(scenario())
    assert "unknown after" in caplog.text


def test_settings_choose_the_membership(disk: Pool, tmp_path: Path) -> None:
    """A file, DNS, a list, or nobody."""
    assert isinstance(clusters.membership(disk, peers_file=tmp_path / "peers"), FileMembers)
    assert isinstance(clusters.membership(disk, peers_dns=parse_dns_name("nodes")), DnsMembers)
    assert clusters.membership(disk, peers=[Peer("a:1")]).members() == (Peer("a:1"),)
    assert clusters.membership(disk).members() == ()
