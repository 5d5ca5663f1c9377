"""Trust: what the settings make of secrets and certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.proxy.peers.security.credentials import REFRESH_S, Credentials
from lodefs.proxy.runtime.thread_pools import Pool
from tests.proxy.peers.certificates import Authority

OLD, NEW = b"an old secret of 24 bytes", b"a new secret of 24 bytes."


def secret_file(path: Path, data: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path


def passes(asker: Credentials, answerer: Credentials) -> bool:
    headers = dict(asker.authenticator.sign("GET", "/x", to="b:1"))
    try:
        return answerer.authenticator.check("GET", "/x", headers, at="b:1") == "a:1"
    except Denied:
        return False


def test_a_secret_is_checked_and_followed(tmp_path: Path, disk: Pool) -> None:
    """Nodes with one secret pass; a file that changed is taken up at the next look."""
    path = secret_file(tmp_path / "a", OLD)
    asker = Credentials(lambda: ("a:1",), disk, secret_file=path)
    answerer = Credentials(lambda: ("b:1",), disk, secret_file=secret_file(tmp_path / "b", NEW))
    assert not passes(asker, answerer)
    secret_file(path, NEW + b"\n" + OLD)
    assert asyncio.run(asker.refresh()) == REFRESH_S
    assert passes(asker, answerer)


def test_certificates_may_be_enough(tmp_path: Path, disk: Pool) -> None:
    """With TLS alone requests carry a name and no proof; renewed files are followed."""
    authority = Authority()
    trust = Credentials(lambda: ("a:1",), disk, tls_files=authority.files(tmp_path))
    assert passes(trust, trust)
    assert trust.tls is not None
    before = trust.tls.client()
    authority.files(tmp_path)
    asyncio.run(trust.refresh())
    assert trust.tls.client() is not before


def test_with_both_a_certificate_does_not_replace_the_secret(tmp_path: Path, disk: Pool) -> None:
    """Requests are signed inside of TLS, too."""
    files = Authority().files(tmp_path)
    path = secret_file(tmp_path / "s", NEW)
    both = Credentials(lambda: ("b:1",), disk, tls_files=files, secret_file=path)
    only_tls = Credentials(lambda: ("a:1",), disk, tls_files=files)
    assert not passes(only_tls, both)


def test_nobody_is_trusted_by_accident(disk: Pool) -> None:
    """Neither secret nor certificates must be asked for."""
    with pytest.raises(InvalidInput, match="peer_allow_anonymous"):
        Credentials(tuple, disk)
    everybody = Credentials(lambda: ("a:1",), disk, allow_anonymous=True)
    assert passes(everybody, everybody)
    assert everybody.tls is None
    assert asyncio.run(everybody.refresh()) == REFRESH_S
