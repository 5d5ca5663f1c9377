"""The contract of interface.py as tests: every NodeMounts passes them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import (
    Denied,
    InUse,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.mount.helper.interface import NodeMounts, Source

TIMEOUT_S = 30.0
NO_SUCH_COMMIT = "ab" * 32


@dataclass
class Given:
    """What an implementation is tried with.

    ``source`` is of a repository with a branch ``main`` at ``commit``, a directory ``directory``
    and a file ``file`` in it. ``secret`` is the same repository, or another one, with a right
    token; ``denied`` with a wrong one. ``place`` is an empty directory.
    """

    node: NodeMounts
    source: Source
    commit: str
    directory: bytes
    file: bytes
    secret: Source
    denied: Source
    place: Path

    def lose(self) -> None:
        """End all processes of the mount on ``place``."""
        raise NotImplementedError

    def lose_supervisor(self) -> None:
        """End the supervisor of the mount on ``place``, and not its workers."""
        raise NotImplementedError


class NodeMountsSuite:
    """Subclasses have a fixture ``given`` that makes a Given."""

    def test_a_branch_is_resolved(self, given: Given) -> None:
        """A branch, the commit and its beginning are the same commit, with files and bytes."""
        found = given.node.resolve(given.source, "main", TIMEOUT_S)
        assert found.commit == given.commit
        assert found.files > 0
        assert found.size_bytes > 0
        assert given.node.resolve(given.source, given.commit, TIMEOUT_S) == found

    def test_what_does_not_exist_is_named(self, given: Given) -> None:
        """A repository, revision or path that is not there is an error that names it."""
        nowhere = msgspec.structs.replace(given.source, repo="no/such-repo")
        with pytest.raises(NotFound, match="no/such-repo"):
            given.node.resolve(nowhere, "main", TIMEOUT_S)
        with pytest.raises(NotFound, match="no-such-branch"):
            given.node.resolve(given.source, "no-such-branch", TIMEOUT_S)
        for path in (b"no-such-directory", given.file):
            lost = msgspec.structs.replace(given.source, path=path)
            with pytest.raises((InvalidInput, NotFound), match=path.decode()):
                given.node.resolve(lost, "main", TIMEOUT_S)

    def test_tokens(self, given: Given) -> None:
        """A right token opens, a wrong one is Denied, a reference to nothing InvalidInput; the
        token is never told."""
        assert given.node.resolve(given.secret, "main", TIMEOUT_S)
        with pytest.raises(Denied) as denied:
            given.node.resolve(given.denied, "main", TIMEOUT_S)
        assert Path(given.denied.token_file).read_text().strip() not in str(denied.value)
        lost = msgspec.structs.replace(given.secret, token_file=f"{given.place}/no-such-file")
        with pytest.raises(InvalidInput, match="no-such-file"):
            given.node.resolve(lost, "main", TIMEOUT_S)

    def test_mount_and_unmount(self, given: Given) -> None:
        """A mount stands, alive and supervised, until it is taken away; away twice is fine."""
        place = str(given.place)
        given.node.mount(given.source, given.commit, place, TIMEOUT_S)
        [standing] = [one for one in given.node.list_mounts(TIMEOUT_S) if one.place == place]
        assert (standing.repo, standing.commit) == (given.source.repo, given.commit)
        assert standing.alive
        assert standing.supervised
        given.node.unmount(place, TIMEOUT_S)
        given.node.unmount(place, TIMEOUT_S)
        assert place not in [one.place for one in given.node.list_mounts(TIMEOUT_S)]
        assert given.place.is_dir()

    def test_a_part_is_mounted(self, given: Given) -> None:
        """A mount of a directory says so."""
        part = msgspec.structs.replace(given.source, path=given.directory)
        given.node.mount(part, given.commit, str(given.place), TIMEOUT_S)
        found = {one.place: one.path for one in given.node.list_mounts(TIMEOUT_S)}
        assert found[str(given.place)] == given.directory
        given.node.unmount(str(given.place), TIMEOUT_S)

    def test_a_living_mount_is_not_mounted_over(self, given: Given) -> None:
        """A second mount on a place is InUse, and the first one stays."""
        place = str(given.place)
        given.node.mount(given.source, given.commit, place, TIMEOUT_S)
        with pytest.raises(InUse):
            given.node.mount(given.source, given.commit, place, TIMEOUT_S)
        assert place in [one.place for one in given.node.list_mounts(TIMEOUT_S) if one.alive]
        given.node.unmount(place, TIMEOUT_S)

    def test_a_dead_mount_is_seen_and_replaced(self, given: Given) -> None:
        """A mount without processes is not alive; mounting again takes its place."""
        place = str(given.place)
        given.node.mount(given.source, given.commit, place, TIMEOUT_S)
        given.lose()
        assert {one.place: one.alive for one in given.node.list_mounts(TIMEOUT_S)}[place] is False
        given.node.mount(given.source, given.commit, place, TIMEOUT_S)
        assert {one.place: one.alive for one in given.node.list_mounts(TIMEOUT_S)}[place] is True
        given.lose()
        given.node.unmount(place, TIMEOUT_S)
        assert place not in [one.place for one in given.node.list_mounts(TIMEOUT_S)]

    def test_a_mount_is_revived(self, given: Given) -> None:
        """A mount that lost its supervisor is alive, and gets another one."""
        place = str(given.place)
        given.node.mount(given.source, given.commit, place, TIMEOUT_S)
        given.lose_supervisor()
        [standing] = [one for one in given.node.list_mounts(TIMEOUT_S) if one.place == place]
        assert standing.alive
        assert not standing.supervised
        given.node.revive(place, TIMEOUT_S)
        [standing] = [one for one in given.node.list_mounts(TIMEOUT_S) if one.place == place]
        assert standing.supervised
        given.node.unmount(place, TIMEOUT_S)

    def test_places_that_cannot_be_mounted_on(self, given: Given) -> None:
        """A symlink, a file, a directory with something in it and nothing at all are refused."""
        place = str(given.place)
        full = given.place / "full"
        link, file = given.place / "link", given.place / "file"
        empty = given.place / "empty"
        empty.mkdir()
        full.mkdir()
        (full / "x").touch()
        file.touch()
        link.symlink_to(empty)
        for bad in (link, file, full, given.place / "nothing"):
            with pytest.raises(InvalidInput, match=bad.name):
                given.node.mount(given.source, given.commit, str(bad), TIMEOUT_S)
        assert not [s for s in given.node.list_mounts(TIMEOUT_S) if s.place.startswith(place)]

    def test_a_mount_that_fails_leaves_nothing(self, given: Given) -> None:
        """A commit that is not there is NotFound, and nothing is mounted."""
        place = str(given.place)
        with pytest.raises(NotFound):
            given.node.mount(given.source, NO_SUCH_COMMIT, place, TIMEOUT_S)
        assert not [s for s in given.node.list_mounts(TIMEOUT_S) if s.place.startswith(place)]

    def test_traffic_and_who_shows_it(self, given: Given) -> None:
        """A mount that nobody used is shown nowhere, and its traffic can be asked; without a mount
        there is none."""
        place = str(given.place)
        with pytest.raises(NotFound):
            given.node.traffic(place, TIMEOUT_S)
        given.node.mount(given.source, given.commit, place, TIMEOUT_S)
        traffic = given.node.traffic(place, TIMEOUT_S)
        assert traffic is None or traffic.store_bytes >= 0
        with suppress(Unavailable):  # a process namespace of our own
            assert given.node.showing({place}) == {}
        given.node.unmount(place, TIMEOUT_S)

    def test_pins(self, given: Given) -> None:
        """Data can be pinned, again, and let go, twice; of what is not there it cannot."""
        for _ in range(2):
            given.node.pin(given.source, given.commit, 60, TIMEOUT_S)
        for _ in range(2):
            given.node.unpin(given.source, given.commit, TIMEOUT_S)
        nowhere = msgspec.structs.replace(given.source, repo="no/such-repo")
        with pytest.raises(NotFound):
            given.node.pin(nowhere, given.commit, 60, TIMEOUT_S)

    def test_time_limits(self, given: Given) -> None:
        """A call with hardly any time returns or raises one of ours, soon."""
        place = str(given.place)
        begun_s = time.monotonic()
        for _ in range(3):
            try:
                given.node.mount(given.source, given.commit, place, 0.001)
            except LodefsError:
                continue
        given.node.unmount(place, TIMEOUT_S)
        assert time.monotonic() - begun_s < TIMEOUT_S
        assert place not in [one.place for one in given.node.list_mounts(TIMEOUT_S) if one.alive]
