"""Whose credentials commit what pods change."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.objects.s3.boto import S3Options, S3Transfer, open_client
from lodefs.chunkstore.objects.s3.sigv4 import Credentials as Keys
from lodefs.commands.csi import _session_of, _writer
from lodefs.mount.csi.credentials import Credentials
from lodefs.mount.helper.interface import Source
from lodefs.mount.volumes.changes import WritableVolume
from lodefs.mount.volumes.options import ON_LAST
from lodefs.settings.session import Session

OF_POD = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "hunter2"}
VOLUME = WritableVolume(name="v1", source=Source(repo="a"), branch="main", commits=ON_LAST)


def test_a_pod_s_credentials_come_first(tmp_path: Path) -> None:
    """The driver's own are for volumes without, and only where the administrator has said so."""
    session = Session({"LODEFS_STORE": "s3://bucket/prefix", "HOME": str(tmp_path)})
    kept = Credentials(tmp_path)
    none = _session_of(session, kept, VOLUME, is_node_s_own=False)
    with pytest.raises(Denied, match="AWS_ACCESS_KEY_ID"), none:
        pass
    with _session_of(session, kept, VOLUME, is_node_s_own=True) as own:
        assert own is session
    kept.keep(VOLUME.key, OF_POD)
    for is_own in (False, True):
        with _session_of(session, kept, VOLUME, is_node_s_own=is_own) as made:
            assert made._store_options().credentials == Keys("AKIA", "hunter2", None)
            assert made.store_url == session.store_url
    kept.sweep([])
    assert kept.of(VOLUME.key) == {}


def test_a_store_is_reached_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand above those of the process, whose session token does not get among them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "other")
    keys = Keys("AKIA", "hunter2", None)
    client = open_client(S3Options(credentials=keys), S3Transfer())
    found = client._request_signer._credentials.get_frozen_credentials()
    assert tuple(found)[:3] == keys
    assert "hunter2" not in repr(S3Options(credentials=keys))


def test_a_directory_has_no_credentials(tmp_path: Path) -> None:
    """All may write to one, if anybody may: `--writable secret` would promise too much."""
    session = Session({"LODEFS_STORE": str(tmp_path), "HOME": str(tmp_path)})
    with pytest.raises(InvalidInput, match="--writable node"):
        _writer(session, "secret", tmp_path, tmp_path / "mounter.sock")
    assert _writer(session, "no", tmp_path, tmp_path / "mounter.sock") is None
