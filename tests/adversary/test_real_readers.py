"""The trial that once broke the promise, against a real proxy, real mounts and the real kernel."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.pull.pull import pull
from lodefs.chunkstore.repo.store import open_store
from tests.adversary.hostile_repo import FileClaim, lying_commit
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts
from tests.support.proxy.fake_node import Client
from tests.support.proxy.node_process import REPO, NodeProcess

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

MIB = 1024 * 1024
FILES = {
    f"{size}": random.Random(size).randbytes(size) for size in (50_000, 300_000, 2 * MIB, 9 * MIB)
}
HOSTILE = {name: random.Random(f"hostile {name}").randbytes(len(FILES[name])) for name in FILES}


class Scene:
    """An honest dataset and one that claims to be it, in one store, and a cold node."""

    def __init__(self, folder: Path, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.mkdir()
        for name, content in FILES.items():
            (source / name).write_bytes(content)
        self.node = NodeProcess(folder, source, size_bytes_max=256 * MIB)
        self.store = open_store(DirectoryObjects(str(self.node.store)))
        files = {name.encode(): content for name, content in FILES.items()}
        claims = {name.encode(): FileClaim(content) for name, content in HOSTILE.items()}
        self.lying = lying_commit(self.store, "hostile", files, claims).hex()
        self.folder = tmp_path
        self.socket = str(folder / "node.sock")

    def get(self, repo: str, commit: str, name: str, *, size: int | None = None) -> bytes:
        """A file over HTTP, or its first bytes."""
        headers = {} if size is None else {"Range": f"bytes=0-{size - 1}"}
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(self.socket)
        with Client(connected) as client:
            reply = client.get(f"/files/{repo}@{commit}/{name}", **headers)
        assert reply.status == (200 if size is None else 206)
        return reply.body

    def check_all(self) -> None:
        """Everybody who reads the honest commit gets its bytes."""
        for name, content in FILES.items():
            assert self.get(REPO, self.node.commit, name) == content
        target = self.folder / "pulled"
        pull(self.store, Spec(REPO, self.node.commit, b""), target)
        for name, content in FILES.items():
            assert (target / name).read_bytes() == content


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """All of it, gone afterwards."""
    with private_directory() as folder:
        made = Scene(Path(folder), tmp_path)
        try:
            yield made
        finally:
            made.node.kill()


def mounted_bytes(scene: Scene, rounds: int = 2, **options: object) -> list[dict[str, bytes]]:
    """The honest files through a mount, read so many times."""
    mounts = Mounts(scene.folder, scene.node)
    try:
        mounts.mount(repo=REPO, rev=scene.node.commit, **options)
        return [{name: (mounts.place / name).read_bytes() for name in FILES} for _ in range(rounds)]
    finally:
        mounts.close()
        mounts.place.rmdir()


@pytest.mark.parametrize("size", [10, None], ids=["ten bytes", "whole"])
def test_a_liar_is_read_first(scene: Scene, size: int | None) -> None:
    """A cold node reads the attacker's files; then mounts, passthrough, HTTP and pull, also after
    a restart of the proxy, show the honest files."""
    for name, content in HOSTILE.items():
        assert scene.get("hostile", scene.lying, name, size=size) == content[:size]
    assert mounted_bytes(scene, passthrough="on") == [FILES, FILES]
    scene.node.restart()
    assert mounted_bytes(scene, passthrough="off") == [FILES, FILES]
    scene.check_all()
