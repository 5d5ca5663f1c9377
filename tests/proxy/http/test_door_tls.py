"""TLS of the doors for clients: what files are taken, and that new ones are followed."""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, Unavailable
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client as ReadClient
from lodefs.proxy.http import door_tls
from lodefs.proxy.http.door_tls import DoorTls
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.peers.security.tls import load_certificate
from lodefs.proxy.s3.buckets import S3Settings
from tests.proxy.peers.certificates import Authority
from tests.support.chunkstore.certificates import certificate
from tests.support.proxy.fake_node import Client, DictNode, start_proxy

BIG = bytes(range(256)) * 2048
METRIC = 'lodefs_certificate_not_after_timestamp_seconds{listener="tcp"} '


def write(folder: Path, cert: bytes, key: bytes) -> tuple[Path, Path]:
    """The two files."""
    paths = folder / "tls.crt", folder / "tls.key"
    for path, data in zip(paths, (cert, key), strict=True):
        new = path.with_suffix(".new")
        new.touch(0o600)
        new.write_bytes(data)
        new.replace(path)
    return paths


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.check_hostname = False  # these certificates name nobody
    return context


def test_reading_over_tls(tmp_path: Path) -> None:
    """Files, ranges and S3's objects come over TLS as without it, by the fast path too."""
    authority = Authority()
    door = DoorTls(*write(tmp_path, *authority.issue()))
    node = DictNode({b"big": BIG, b"small": b"x"}, extents=True)
    settings = S3Settings()
    with start_proxy(node, certificate=door, s3=settings) as proxy:
        base = f"demo@{node.commit}"
        context = trusting(authority)
        for path in (f"/files/{base}/", f"/lodefs/{base}/"):
            s3 = path.startswith("/lodefs")
            connected = proxy.connect(tcp=True, s3=s3)
            with Client(context.wrap_socket(connected)) as client:
                for _ in range(3):
                    assert client.get(f"{path}big").body == BIG
                    assert client.get(f"{path}small").body == b"x"
                    assert (
                        client.get(f"{path}big", Range="bytes=100-299999").body == BIG[100:300000]
                    )
        assert proxy.call(lambda: proxy.server.metrics.fast_answers) > 4
    node.close()


def test_a_certificate_that_expires(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that expires soon is warned of, with the day; /metrics says when, also of the next."""
    authority = Authority()
    paths = write(tmp_path, *authority.issue(days=3))
    with caplog.at_level("WARNING", "lodefs"):
        door = DoorTls(*paths)
    assert f"{paths[0]} expires on " in caplog.text
    caplog.clear()
    with start_proxy(DictNode({b"f": b"x"}), certificate=door) as proxy:

        def shown_s() -> float:
            text = proxy.client().get("/metrics").body.decode()
            line = next(one for one in text.splitlines() if one.startswith(METRIC))
            return float(line.removeprefix(METRIC))

        first_s = shown_s()
        assert first_s == door.expires_s
        write(tmp_path, *authority.issue(days=300))
        door.refresh()  # unless the server has looked by itself
        proxy.call(proxy.server.sweep)
        assert shown_s() == door.expires_s > first_s
    assert "expires on" not in caplog.text


def test_new_files_are_followed(tmp_path: Path) -> None:
    """A new connection is shown the new certificate; files that cannot be used change nothing."""
    authority = Authority()
    paths = write(tmp_path, *authority.issue())
    door = DoorTls(*paths)
    with start_proxy(DictNode({b"f": b"x"}), certificate=door) as proxy:

        def shown() -> bytes:
            with trusting(authority).wrap_socket(proxy.connect(tcp=True)) as connected:
                found = connected.getpeercert(binary_form=True)
                assert found is not None
                return found

        first = shown()
        write(tmp_path, b"nonsense", b"nonsense")
        assert not door.refresh()
        assert shown() == first
        cert, key = authority.issue()
        write(tmp_path, cert, key)
        door.refresh()  # unless the server has looked by itself
        assert shown() == ssl.PEM_cert_to_DER_cert(cert.decode())


def test_a_certificate_that_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that is truncated between two looks at it is told as what it is, and is
    followed when it is whole."""
    authority = Authority()
    paths = write(tmp_path, *authority.issue())
    door = DoorTls(*paths)
    cert, key = authority.issue()
    write(tmp_path, cert, key)

    def truncate_behind(context: ssl.SSLContext, cert: Path, key: Path) -> None:
        load_certificate(context, cert, key)
        cert.write_bytes(b"-----BEGIN CERTIFICATE-----")

    with monkeypatch.context() as patched:
        patched.setattr(door_tls, "load_certificate", truncate_behind)
        assert not door.refresh()
    write(tmp_path, cert, key)
    assert door.refresh()


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("expired", r"certificate has expired \(valid from .* to .* GMT\)"),
        ("early", r"certificate is not yet valid \(valid from .* GMT to .*\)"),
        ("other key", "tls_cert_file .* and tls_key_file .* must be a PEM certificate and its key"),
        ("no cert", "tls_cert_file .*: No such file"),
        ("no key", "tls_key_file .*: No such file"),
        ("open key", "its mode 0644 lets others read it"),
        ("no PEM", "must be a PEM certificate"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, what: str, problem: str) -> None:
    """A start fails with the file's name and what is wrong with it."""
    authority = Authority()
    begin = 5 if what == "early" else -10
    cert, key = authority.issue(days={"expired": -1, "early": 9}.get(what, 1), begin_days=begin)
    if what == "other key":
        key = authority.issue()[1]
    paths = write(tmp_path, b"x" if what == "no PEM" else cert, key)
    if what == "open key":
        paths[1].chmod(0o644)
    for path, missing in zip(paths, ("no cert", "no key"), strict=True):
        if what == missing:
            path.unlink()
    with pytest.raises(InvalidInput, match=problem):
        DoorTls(*paths)


def test_the_client_of_mounts(tmp_path: Path) -> None:
    """It reads with a token over TLS if it knows the CA; otherwise it says what is missing."""
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    file, unknown = certificate(own), certificate(other)
    file.chmod(0o600)
    tokens = tmp_path / "tokens"
    token = create_token(tokens, "one", ["demo"], now_s=1)
    node = DictNode({b"big": BIG})
    door = DoorTls(file, file)
    with start_proxy(node, certificate=door, tokens_file=tokens) as proxy, ExitStack() as closing:
        place = f"127.0.0.1:{proxy.port}"

        def client(url: str, timeout_s: float = 60.0) -> ReadClient:
            made = ReadClient(parse_address(url), token=token, timeout_s=timeout_s)
            closing.callback(made.close)
            return made

        reader = client(f"https://{place}?ca={file}")
        snapshot = reader.snapshot("demo", "main")
        ino = reader.mounted(snapshot).lookup(1, b"big").ino
        for first in range(0, len(BIG), 100_000):
            assert bytes(reader.read(ino, first, 100_000)) == BIG[first : first + 100_000]
        with pytest.raises(Denied, match=r"is not trusted: .*https://HOST:PORT\?ca=FILE"):
            client(f"https://{place}?ca={unknown}").snapshot("demo", "main")
        with pytest.raises(InvalidInput, match="the CA file /nothing must hold PEM"):
            client(f"https://{place}?ca=/nothing").snapshot("demo", "main")
        with pytest.raises(Unavailable):
            client(f"http://{place}", 0.2).snapshot("demo", "main")
    with start_proxy(node) as proxy, pytest.raises(Unavailable, match="does not use TLS"):
        client(f"https://127.0.0.1:{proxy.port}?ca={file}", 2.0).snapshot("demo", "main")


@pytest.mark.parametrize("url", ["https://h?x=y", "http://h?ca=f", "https://h/p", "ftp://h"])
def test_addresses_that_are_none(url: str) -> None:
    """They are refused with what to write."""
    with pytest.raises(InvalidInput, match=r"https://HOST:PORT\?ca=FILE"):
        parse_address(url)
