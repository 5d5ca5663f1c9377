"""Memberships: one suite for all of them, and what is special of each."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import dns.rcode
import pytest

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.proxy.peers.membership.dns_members import REFRESH_S_MAX, REFRESH_S_MIN, DnsMembers
from lodefs.proxy.peers.membership.members import (
    FileMembers,
    Membership,
    StaticMembers,
    distinct,
    follow,
    named,
    read_members,
)
from lodefs.proxy.peers.membership.peer import Peer, parse_dns_name
from lodefs.proxy.runtime.thread_pools import Pool
from tests.proxy.peers.nameserver import HOST, NameServer, name_server

SERVICE = "_lodefs._tcp.nodes.example."
NODES = "nodes.example."


@pytest.fixture
def names() -> Iterator[NameServer]:
    with name_server() as server:
        yield server


class Site(Protocol):
    """Where a membership comes from, as a test changes it."""

    def peer(self, number: int) -> Peer: ...
    def write(self, peers: Sequence[Peer]) -> None: ...
    def spoil(self) -> None: ...
    def membership(self) -> Membership: ...


class FileSite:
    def __init__(self, path: Path, disk: Pool) -> None:
        self.path, self.disk = path, disk

    def peer(self, number: int) -> Peer:
        return Peer(f"10.0.0.{number}:7441")

    def write(self, peers: Sequence[Peer]) -> None:
        self.path.write_text(json.dumps([{"targets": [peer.address for peer in peers]}]))

    def spoil(self) -> None:
        self.path.write_text('[{"targets": ["10.0.0')

    def membership(self) -> Membership:
        return FileMembers(self.path, self.disk)


class AddressSite(FileSite):
    kind = "A"

    def __init__(self, names: NameServer, disk: Pool) -> None:
        self.names, self.disk = names, disk

    def write(self, peers: Sequence[Peer]) -> None:
        self.names.rcode = None
        self.names.set(NODES, self.kind, [self.record(peer.address) for peer in peers])

    def record(self, address: str) -> str:
        return address.rpartition(":")[0].strip("[]")

    def spoil(self) -> None:
        self.names.rcode = dns.rcode.SERVFAIL

    def membership(self) -> Membership:
        return self.of("nodes.example")

    def of(self, name: str, timeout_s: float = 5.0) -> Membership:
        nameserver = (HOST, self.names.port)
        return DnsMembers(
            parse_dns_name(name), self.disk, nameserver=nameserver, timeout_s=timeout_s
        )


class Address6Site(AddressSite):
    kind = "AAAA"

    def peer(self, number: int) -> Peer:
        return Peer(f"[fd00::{number}]:7441")


class ServiceSite(AddressSite):
    def peer(self, number: int) -> Peer:
        return Peer(f"node{number}.example:{7000 + number}", 10.0 * number)

    def write(self, peers: Sequence[Peer]) -> None:
        self.names.rcode = None
        self.names.set(SERVICE, "SRV", [self.service(peer) for peer in peers])

    def service(self, peer: Peer) -> str:
        host, _, port = peer.address.partition(":")
        return f"{len(host) % 3} {peer.weight:.0f} {port} {host.upper()}."

    def membership(self) -> Membership:
        return self.of(SERVICE)


SITES = {"A": AddressSite, "AAAA": Address6Site, "SRV": ServiceSite}


@pytest.fixture(params=["file", *SITES])
def site(request: pytest.FixtureRequest, tmp_path: Path, names: NameServer, disk: Pool) -> Site:
    if request.param == "file":
        return FileSite(tmp_path / "peers.json", disk)
    return SITES[request.param](names, disk)


def look(membership: Membership) -> float:
    async def refresh() -> float:
        return await membership.refresh()

    return asyncio.run(refresh())


def test_members_join_and_leave(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """What the site says is what is known after the next look, in order; changes are logged."""
    caplog.set_level(logging.INFO)
    first, second, third = (site.peer(number) for number in (1, 2, 3))
    membership = site.membership()
    assert membership.members() == ()
    site.write([second, first])
    assert 0 < look(membership) < 60
    assert membership.members() == (first, second)
    site.write([third, second])
    look(membership)
    assert membership.members() == (second, third)
    assert f"joined: {third.address}; left: {first.address}" in caplog.messages[-1]


def test_nothing_changes_until_something_does(site: Site) -> None:
    """Looking again gives the very same tuple, so that others can tell cheaply."""
    membership = site.membership()
    site.write([site.peer(1), site.peer(2)])
    look(membership)
    before = membership.members()
    look(membership)
    assert membership.members() is before


def test_a_broken_source_keeps_the_last_good_members(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, however long it lasts, and the next good state is taken up."""
    membership = site.membership()
    site.write([site.peer(1)])
    look(membership)
    site.spoil()
    for _ in range(3):
        assert 0 < look(membership) < 60
    assert membership.members() == (site.peer(1),)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    site.write([site.peer(2)])
    look(membership)
    assert membership.members() == (site.peer(2),)


def test_a_source_that_is_broken_at_the_start(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A node without members starts too, and meets them later."""
    site.spoil()
    membership = site.membership()
    look(membership)
    assert membership.members() == ()
    assert len(caplog.records) == 1
    site.write([site.peer(1)])
    look(membership)
    assert membership.members() == (site.peer(1),)


def test_members_may_flap(site: Site) -> None:
    """A source that changes at every look is followed at every look."""
    membership = site.membership()
    for round_number in range(6):
        expected = [site.peer(1), site.peer(2)][: 1 + round_number % 2]
        site.write(expected)
        look(membership)
        assert membership.members() == tuple(expected)


def test_a_fixed_list() -> None:
    """It never changes, so nobody looks again; of a duplicate the heavier one counts."""
    peers = [Peer("b:1"), Peer("a:1", 1.0), Peer("a:1", 2.0)]
    membership = StaticMembers(peers)
    assert membership.members() == (Peer("a:1", 2.0), Peer("b:1"))
    assert membership.members() is membership.members()
    assert look(membership) == math.inf
    assert StaticMembers([]).members() == ()


def test_too_many_members() -> None:
    """A list without an end is a mistake."""
    with pytest.raises(InvalidInput, match="20001"):
        distinct(Peer(f"n{number}:1") for number in range(20_001))


def test_following_ends_when_there_is_nothing_to_look_for() -> None:
    """It looks as often as it is told to."""
    waits = [0.0, 0.0, math.inf]
    asyncio.run(follow(refresher(waits)))
    assert waits == []


def test_following_survives_failures(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong in one look, the next one comes."""
    monkeypatch.setattr("lodefs.proxy.peers.membership.members.RETRY_S", 0.0)
    outcomes: list[Exception | float] = [Unavailable("no threads"), KeyError("bug"), math.inf]

    async def refresh() -> float:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    asyncio.run(follow(refresh))
    assert outcomes == []
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def refresher(waits: list[float]) -> Callable[[], Awaitable[float]]:
    async def refresh() -> float:
        return waits.pop(0)

    return refresh


def test_few_are_named() -> None:
    """A line of the log stays one line."""
    assert named(["a", "b"]) == "a, b"
    assert named(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_a_file_with_weights_and_labels(tmp_path: Path) -> None:
    """The label weight counts; others, and keys that are not known, are left alone."""
    path = tmp_path / "peers.json"
    path.write_text(
        '[{"targets": ["A:1", "[::1]"], "labels": {"weight": "2", "zone": "x"}}, '
        '{"targets": ["b;weight=3", "a:1"], "source": "x"}]'
    )
    assert read_members(path) == (Peer("[::1]:7441", 2.0), Peer("a:1", 2.0), Peer("b:7441", 3.0))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "peers_file"),
        ("{}", "array"),
        ('["a:1"]', "object"),
        ('[{"labels": {}}]', "targets"),
        ('[{"targets": ["a:0"]}]', "'a:0'"),
        ('[{"targets": ["a:1", "b:1", "c d"]}]', "'c d'"),
        ('[{"targets": ["a:1"], "labels": {"weight": "0"}}]', "weight"),
        ('[{"targets": ["a:1"], "labels": {"weight": 2}}]', "str"),
        ('[{"targets": [7]}]', "str"),
        ('[{"more": ' + "[" * 200_000, "nested"),
        ("\udcff", "peers_file"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    """The error names the file, and what in it is wrong."""
    path = tmp_path / "peers.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidInput, match=words) as caught:
        read_members(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_huge_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is read on and on."""
    with pytest.raises(InvalidInput, match="No such file"):
        read_members(tmp_path / "none")
    (tmp_path / "big").write_bytes(b" " * 101)
    monkeypatch.setattr("lodefs.proxy.peers.membership.members.FILE_BYTES_MAX", 100)
    with pytest.raises(InvalidInput, match="larger"):
        read_members(tmp_path / "big")


def test_an_empty_file_list_means_nobody(tmp_path: Path, disk: Pool) -> None:
    """Zero members are members as well: the operator said so."""
    site = FileSite(tmp_path / "peers.json", disk)
    site.write([site.peer(1)])
    membership = site.membership()
    look(membership)
    site.write([])
    look(membership)
    assert membership.members() == ()


@pytest.mark.parametrize(("ttl_s", "wait_s"), [(1, REFRESH_S_MIN), (17, 17), (3600, REFRESH_S_MAX)])
def test_the_records_say_how_long_they_hold(
    names: NameServer, disk: Pool, ttl_s: int, wait_s: float
) -> None:
    """Within bounds."""
    names.ttl_s = ttl_s
    site = AddressSite(names, disk)
    site.write([site.peer(1)])
    assert look(site.membership()) == wait_s


@pytest.mark.parametrize("kind", ["NXDOMAIN", "no records", "silent"])
def test_names_that_give_nothing(
    names: NameServer, disk: Pool, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A name that is gone, empty, or a server that says nothing: the members stay."""
    site = AddressSite(names, disk)
    site.write([site.peer(1)])
    membership = site.of("nodes.example", timeout_s=2.0)
    look(membership)
    if kind == "silent":
        names.silent = True
    elif kind == "NXDOMAIN":
        names.records.clear()
    else:
        site.write([])
    assert look(membership) == REFRESH_S_MIN
    assert membership.members() == (site.peer(1),)
    assert "peers_dns nodes.example:7441" in caplog.text


def test_a_node_with_both_kinds_of_addresses_counts_once(names: NameServer, disk: Pool) -> None:
    """Where there are A records, AAAA are not asked for."""
    names.set(NODES, "A", ["10.0.0.1"])
    names.set(NODES, "AAAA", ["fd00::1"])
    membership = AddressSite(names, disk).of("nodes.example:99")
    look(membership)
    assert membership.members() == (Peer("10.0.0.1:99"),)


def test_a_thousand_nodes(names: NameServer, disk: Pool) -> None:
    """An answer that does not fit a datagram is asked for again by TCP."""
    addresses = [f"10.0.{high}.{low}" for high in range(4) for low in range(250)]
    names.set(NODES, "A", addresses)
    membership = AddressSite(names, disk).of("nodes.example")
    look(membership)
    assert {peer.address for peer in membership.members()} == {f"{ip}:7441" for ip in addresses}
    assert len(names.asked) >= 2  # more, if the answer to a datagram is late


def test_weights_of_nothing(names: NameServer, disk: Pool) -> None:
    """A service whose records say weight 0, as some do for all, has equal nodes."""
    names.set(SERVICE, "SRV", ["0 0 1 a.", "0 0 2 b.", "9 0 2 b."])
    membership = ServiceSite(names, disk).of(SERVICE)
    look(membership)
    assert membership.members() == (Peer("a:1"), Peer("b:2"))


def test_looking_does_not_hold_members_up(names: NameServer, disk: Pool) -> None:
    """While a name server says nothing, other threads get the members known so far at once."""
    site = AddressSite(names, disk)
    site.write([site.peer(1)])
    membership = site.of("nodes.example", timeout_s=3.0)
    look(membership)
    names.silent = True
    looking = threading.Thread(target=look, args=(membership,))
    looking.start()
    assert membership.members() == (site.peer(1),)
    assert looking.is_alive()
    looking.join()
