"""URLs that name a store and a repository in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repo.store import create_store
from lodefs.proxies.store_url import _splits, split_url
from lodefs.settings.session import Session
from tests.support.proxy.rig import Rig, serve_rig

NO_PROXY = "unix:/nonexistent/proxy.sock"


@pytest.fixture
def session() -> Session:
    return Session({"LODEFS_CONFIG": os.devnull})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "store"
    create_store(open_objects(str(folder)))
    return folder


def test_all_places_are_tried() -> None:
    """The shortest first, and the bucket or the root at the earliest."""
    assert list(_splits("s3://b/p/vision/cats")) == [
        ("s3://b", "p/vision/cats"),
        ("s3://b/p", "vision/cats"),
        ("s3://b/p/vision", "cats"),
    ]
    assert list(_splits("/srv/s/cats")) == [("/srv", "s/cats"), ("/srv/s", "cats")]
    assert list(_splits("file:///srv/cats")) == [("file:///srv", "cats")]
    assert list(_splits("s3://b")) == []


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_store_on_the_way(session: Session, store: Path, scheme: str) -> None:
    """The directory with a store.json is the store, what follows the repository."""
    url = f"{scheme}{store}/vision/cats"
    assert split_url(session, NO_PROXY, url) == (f"{scheme}{store}", "vision/cats")


def test_a_path_with_a_question_mark(session: Session, tmp_path: Path) -> None:
    """A '?' in a path belongs to it; a file URL with settings is refused, and names them."""
    folder = tmp_path / "what?" / "store"
    create_store(open_objects(str(folder)))
    assert split_url(session, NO_PROXY, f"{folder}/cats") == (str(folder), "cats")
    with pytest.raises(InvalidInput, match="'region'"):
        split_url(session, NO_PROXY, f"file://{tmp_path}/cats?region=x")


def test_no_store(session: Session, store: Path) -> None:
    """What was tried is told; a store alone is no repository."""
    with pytest.raises(NotFound, match="data") as error:
        split_url(session, NO_PROXY, f"{store.parent}/other/vision/cats")
    assert f"{store.parent}/other (no store.json)" in str(error.value)
    for url in (str(store), f"{store}/", "s3://bucket", "memory:"):
        with pytest.raises((InvalidInput, NotFound)):
            split_url(session, NO_PROXY, url)
    with pytest.raises(InvalidInput, match="repository name"):
        split_url(session, NO_PROXY, f"{store}/no name")


def test_credentials_are_refused(session: Session) -> None:
    """A URL with a password is not repeated."""
    with pytest.raises((InvalidInput, NotFound)) as error:
        split_url(session, NO_PROXY, "s3://key:s3cr3t@bucket/vision/cats")
    assert "s3cr3t" not in str(error.value)


def test_the_stores_of_the_node(session: Session, tmp_path: Path) -> None:
    """What the node's proxy serves needs no look at the store; its name is "" then."""
    rig = Rig(tmp_path, {b"a": b"a"})
    with serve_rig(rig) as (proxy, _):
        served = rig.objects.url
        assert split_url(session, proxy.address, f"{served}/vision/cats")[1] == "vision/cats"
