"""Mutual TLS: who gets in, and how files are renewed."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.peers.membership.addresses import Addresses
from lodefs.proxy.peers.membership.readiness import probe
from lodefs.proxy.peers.security.request_signing import NoAuthenticator
from lodefs.proxy.peers.security.tls import PeerTls, TlsFiles
from tests.proxy.peers.certificates import Authority, key_pem, write


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def greet(server: ssl.SSLContext, client: ssl.SSLContext, *, loop: str = "asyncio") -> str:
    """What comes of a connection: "welcome", or what the server said against it."""
    said = "welcome"

    def complain(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        nonlocal said
        said = str(context.get("exception"))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    async def scenario() -> bool:
        asyncio.get_running_loop().set_exception_handler(complain)
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
        async with listening:
            address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            signing = NoAuthenticator(tuple[str, ...])
            found = await probe(address, Addresses(lambda: 0.0).of, signing, lambda: client)
            return found.fault is None

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        ready = runner.run(scenario())
    return "welcome" if ready else f"refused: {said}"


def fingerprint(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """The certificate that a client sees."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other, one, other):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = one.getpeercert(binary_form=True)
    assert found is not None
    return found


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_nodes_of_one_authority_meet(authority: Authority, tmp_path: Path, loop: str) -> None:
    """Each with a certificate of its own, whatever their names."""
    one, other = (PeerTls(authority.files(tmp_path / name)) for name in "ab")
    assert greet(one.server(), other.client(), loop=loop) == "welcome"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_certificate_no_entry(authority: Authority, tmp_path: Path, loop: str) -> None:
    """A client that shows none is refused, also one that does not care who answers."""
    door = PeerTls(authority.files(tmp_path)).server()
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname = False
    stranger.verify_mode = ssl.CERT_NONE
    assert greet(door, stranger, loop=loop).startswith("refused")


@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize("wrong", ["another authority", "expired", "for servers only"])
def test_wrong_certificates(
    authority: Authority,
    tmp_path: Path,
    side: str,
    wrong: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On either side they are refused; the node that has one says so when it starts."""
    if wrong == "another authority":
        cert, key = Authority("others").issue()
    elif wrong == "expired":
        cert, key = authority.issue(days=-1)
    else:
        cert, key = authority.issue(usages=(ExtendedKeyUsageOID.SERVER_AUTH,))
    bad = PeerTls(write(tmp_path, cert, key, authority.pem))
    assert "other nodes would refuse it" in caplog.text
    good = PeerTls(authority.files(tmp_path / "good"))
    if side == "server":
        may = wrong == "for servers only"
        assert (greet(bad.server(), good.client()) == "welcome") is may
    else:
        assert greet(good.server(), bad.client()).startswith("refused")


def test_plain_clients_are_refused(authority: Authority, tmp_path: Path) -> None:
    """Without TLS nobody gets an answer, and old TLS counts as none."""
    door = PeerTls(authority.files(tmp_path))
    old = door.client()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert greet(door.server(), old).startswith("refused")


def test_renewed_files_are_used_by_new_connections(authority: Authority, tmp_path: Path) -> None:
    """Without a restart, by the same listening context, on both sides, also another authority."""
    files = authority.files(tmp_path / "a")
    node = PeerTls(files)
    door = node.server()
    before = fingerprint(door, node.client())
    assert not node.refresh()
    authority.files(tmp_path / "a")
    assert node.refresh()
    assert node.server() is door
    assert fingerprint(door, node.client()) != before
    successor = Authority("successor")
    other = PeerTls(successor.files(tmp_path / "b"))
    assert greet(door, other.client()).startswith("refused")
    successor.files(tmp_path / "a")
    assert node.refresh()
    assert greet(door, other.client()) == "welcome"
    assert greet(other.server(), node.client()) == "welcome"
    assert greet(door, PeerTls(authority.files(tmp_path / "c")).client()).startswith("refused")


@pytest.mark.parametrize("broken", ["half", "garbage", "missing", "expired", "open key"])
def test_broken_files_change_nothing(
    authority: Authority, tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was loaded stays in use, one line says why, and good files are taken up again."""
    files = authority.files(tmp_path)
    node = PeerTls(files)
    before = fingerprint(node.server(), node.client())
    spoil(files, broken, authority)
    assert [node.refresh() for _ in range(3)] == [False] * 3
    assert fingerprint(node.server(), node.client()) == before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(tmp_path) in caplog.text
    authority.files(tmp_path)
    assert node.refresh()
    assert fingerprint(node.server(), node.client()) != before


def spoil(files: TlsFiles, how: str, authority: Authority) -> None:
    cert, key = authority.issue(days=-1 if how == "expired" else 1)
    if how == "half":
        files.cert.write_bytes(cert)
    elif how == "garbage":
        files.ca.write_bytes(b"garbage")
    elif how == "missing":
        files.key.unlink()
    elif how == "expired":
        write(files.cert.parent, cert, key, authority.pem)
    else:
        files.key.chmod(0o644)


def locked_key() -> bytes:
    return key_pem(ec.generate_private_key(ec.SECP256R1()), b"a password")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("cert", b"", "peer_tls_cert_file"),
        ("cert", None, "peer_tls_cert_file"),
        ("key", b"garbage", "peer_tls_key_file"),
        ("key", None, "peer_tls_key_file"),
        ("key", locked_key(), "without a password"),
        ("ca", b"", "peer_tls_ca_file"),
        ("ca", None, "peer_tls_ca_file"),
    ],
)
def test_files_that_cannot_be_used(
    authority: Authority, tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    """A node does not start with them; the error names the setting and the file."""
    files = authority.files(tmp_path)
    path: Path = getattr(files, name)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    with pytest.raises(InvalidInput, match=words) as caught:
        PeerTls(files)
    assert str(path) in str(caught.value)


def test_a_key_that_others_may_read(authority: Authority, tmp_path: Path) -> None:
    """It is refused, with the way out."""
    files = authority.files(tmp_path)
    files.key.chmod(0o604)
    with pytest.raises(InvalidInput, match="chmod"):
        PeerTls(files)


def test_no_session_is_resumed(authority: Authority, tmp_path: Path) -> None:
    """A second connection shows certificates again: there is no ticket that would spare it."""
    node = PeerTls(authority.files(tmp_path))
    client = node.client()
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server)
    other = node.server().wrap_bio(to_server, to_client, server_side=True)
    for side in (one, other, one, other):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    other.write(b"x")
    assert one.read(1) == b"x"
    assert one.session is None or not one.session.has_ticket
