"""The attach socket: what it hands out, and what it does with callers of bad will."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Spec, parse_spec
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.access import AccessRule, AccessRules, hidden
from lodefs.chunkstore.system.sockets import peer_of
from lodefs.mount.attach import server
from lodefs.mount.attach.client import AttachClient
from lodefs.mount.attach.wire import AttachAnswer, AttachCall
from tests.support.mount.mounts import until
from tests.support.service.attach_rig import AttachRig
from tests.support.service.service_rig import WAIT_S

CATS = Spec("vision/cats", "main", b"")


def connected(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.settimeout(WAIT_S)
    found.connect(str(path))
    return found


def asked(sock: socket.socket, data: bytes) -> AttachAnswer:
    sock.send(data)
    return msgspec.msgpack.decode(sock.recv(rpc.PACKET_BYTES_MAX), type=AttachAnswer)


def client(path: Path, said: list[str]) -> AttachClient:
    return AttachClient(path, say=said.append, timeout_s=WAIT_S)


def test_mounts_come_as_descriptors(rig: AttachRig, tmp_path: Path) -> None:
    """Two datasets over one connection, for this process's user, who holds them while it is
    open."""
    path = tmp_path / "attach.sock"
    with rig.served(path), client(path, []) as own:
        first, second = own.attach(CATS), own.attach(parse_spec("vision/cats:train"))
        assert first is not None
        assert second is not None
        places = [os.pread(one.fd, 1000, 0).decode() for one in (first, second)]
        assert sorted(places) == sorted(rig.memory.mounts)
        assert not os.get_inheritable(first.fd)
        assert rig.holders() == [os.getuid()] * 2
        rig.later()
        assert rig.holders() == [os.getuid()] * 2
    until(lambda: rig.later() or rig.holders() == [])


def test_errors_are_those_of_the_node(rig: AttachRig, tmp_path: Path) -> None:
    """What does not exist is so for the caller, too; what the node has no room for is not."""
    path, said = tmp_path / "attach.sock", list[str]()
    with rig.served(path), client(path, said) as own:
        with pytest.raises(NotFound, match="no/such"):
            own.attach(Spec("no/such", "main", b""))
        with pytest.raises(InvalidInput, match="no directory"):
            own.attach(parse_spec("vision/cats:a-file"))
        assert own.attach(CATS) is not None
        assert said == []
        rig.references_max = 0
        rig.again()
        rig.is_ours = False
        assert own.attach(CATS) is None
        assert own.attach(CATS) is None
    assert said == []


def test_where_there_is_no_service(tmp_path: Path) -> None:
    """Where no service listens nothing is said; one that hangs is named once, and left alone."""
    said: list[str] = []
    assert client(tmp_path / "none", said).attach(CATS) is None
    assert said == []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hanging:
        hanging.bind(str(tmp_path / "hangs"))
        hanging.listen()
        with AttachClient(tmp_path / "hangs", say=said.append, timeout_s=0.01) as own:
            assert own.attach(CATS) is own.attach(CATS) is None
    (line,) = said
    assert "did not answer within 0.01 s" in line


def test_rules_of_access(rig: AttachRig, tmp_path: Path) -> None:
    """What this user's groups may not read is as what does not exist, and nothing is named."""
    group = os.getegid() + 1
    rig.rules = AccessRules((AccessRule("vision/*", frozenset({group})),), frozenset())
    with rig.served(tmp_path / "s"), client(tmp_path / "s", []) as own:
        with pytest.raises(NotFound) as there:
            own.attach(CATS)
        assert rig.memory.calls["resolve"] == 0
        rig.memory.fail("resolve", hidden("other/cats"))
        with pytest.raises(NotFound) as missing:
            own.attach(Spec("other/cats", "main", b""))
    assert str(there.value) == "there is no repository vision/cats that you may read"
    assert str(missing.value) == str(there.value).replace("vision", "other")
    rig.rules = AccessRules((AccessRule("vision/*", frozenset({os.getegid()})),), frozenset())
    with rig.served(tmp_path / "s"), client(tmp_path / "s", []) as own:
        assert own.attach(CATS) is not None


def test_rubbish(rig: AttachRig, tmp_path: Path) -> None:
    """Packets that are none are answered so, and the connection goes on."""
    call = AttachCall(repo="vision/cats", rev="main", timeout_s=WAIT_S)
    with rig.served(tmp_path / "s"), connected(tmp_path / "s") as sock:
        for data in (b"\xc1", b"{}", b"\x93" * 9000, msgspec.msgpack.encode({"repo": 7})):
            answer = asked(sock, data)
            assert answer.failure is not None
            assert answer.failure.error == "InvalidInput"
        newer = msgspec.structs.replace(call, version=2)
        assert "version 1" in asked(sock, msgspec.msgpack.encode(newer)).declined
        for timeout_s in (-1.0, float("nan"), 1e300):
            odd = msgspec.structs.replace(call, timeout_s=timeout_s)
            assert asked(sock, msgspec.msgpack.encode(odd)).commit


def test_a_user_takes_no_more_than_a_share(rig: AttachRig, tmp_path: Path) -> None:
    """Of connections that say nothing a user has so many; the next one is told to mount by itself,
    and the first ones go on being served."""
    path, said = tmp_path / "s", list[str]()
    with rig.served(path):
        silent = [connected(path) for _ in range(server.USER_CONNECTIONS_MAX)]
        with connected(path) as late:
            answer = late.recv(rpc.PACKET_BYTES_MAX)
            assert "too many" in msgspec.msgpack.decode(answer, type=AttachAnswer).declined
        with client(path, said) as own:
            assert own.attach(CATS) is None
        assert "too many others" in said[0]
        call = AttachCall(repo="vision/cats", rev="main", timeout_s=WAIT_S)
        assert asked(silent[0], msgspec.msgpack.encode(call)).commit
        for one in silent:
            one.close()
        until(lambda: client(path, said).attach(CATS) is not None)


def test_connections_without_a_mount_end_soon(rig: AttachRig, tmp_path: Path) -> None:
    """So that nobody fills the socket under many numbers: those that say nothing, and those that
    only say rubbish; with a mount there is time to put it in its place."""
    call = AttachCall(repo="vision/cats", rev="main", timeout_s=WAIT_S)
    with rig.served(tmp_path / "s"), connected(tmp_path / "s") as sock:
        for _ in range(server.EMPTY_CALLS_MAX):
            assert asked(sock, b"{}").failure is not None
        assert sock.recv(1) == b""
        with connected(tmp_path / "s") as good:
            assert asked(good, msgspec.msgpack.encode(call)).commit
            for _ in range(server.EMPTY_CALLS_MAX):
                assert asked(good, b"{}").failure is not None
    rig.empty_timeout_s = 0.05
    with rig.served(tmp_path / "t"), connected(tmp_path / "t") as silent:
        assert silent.recv(1) == b""


def test_groups_of_a_peer() -> None:
    """More groups than Python's getsockopt can tell are all told."""
    former = os.getgroups()
    many = set(range(70000, 70300))
    try:
        os.setgroups(sorted(many))
    except PermissionError:
        pytest.skip("needs root, to have groups")
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert peer_of(ours) == (os.geteuid(), frozenset({os.getegid(), *many}), os.getpid())
    finally:
        os.setgroups(former)
