"""Volumes that take changes: one mount for all containers, one commit when the last has ended."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Diverged, InUse, InvalidInput, NotFound, Unavailable
from lodefs.mount.docker.status import status_of
from tests.mount.docker.test_crash import Fuse, KilledError, MortalMounts, mortal_rig
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.memory_writer import MemoryWriter
from tests.support.docker.rig import OLD, WAIT_S, Rig, memory_mounts
from tests.support.docker.writer_suite import BRANCH, WriterGiven, WriterSuite

REPO = "vision/cats"
RUN = {"repo": REPO, "write": "true", "branch": BRANCH}
STEPS = 60


class MemoryGiven(WriterGiven):
    writer: MemoryWriter

    def change(self, place: str, name: str) -> None:
        self.writer.changes[place].append(name)

    def messages(self) -> list[str]:
        return self.writer.messages

    def copy_of(self, place: str) -> None:
        self.writer.in_use.add(place)

    def end_copy(self, place: str) -> None:
        self.writer.in_use.remove(place)


class TestMemoryWriter(WriterSuite):
    """The one that the tests below have."""

    @pytest.fixture
    def given(self) -> WriterGiven:
        return MemoryGiven(MemoryWriter(memory_mounts().repos), REPO)


@pytest.fixture
def writer(rig: Rig, memory: MemoryMounts) -> MemoryWriter:
    made = MemoryWriter(memory.repos)
    rig.write_with(made)
    return made


def use(rig: Rig, writer: MemoryWriter, *mount_ids: str) -> None:
    """Containers that write, one beside the other, and end."""
    for one in mount_ids:
        writer.changes[rig.volumes.mount("a", one)].append(one)
    for one in mount_ids:
        rig.volumes.unmount("a", one)


def status(rig: Rig) -> dict[str, object]:
    return status_of(rig.volumes.get("a"))


def test_the_last_container_commits(rig: Rig, writer: MemoryWriter) -> None:
    """Two share a mount; nothing is committed before both have ended, and then once, with a message
    that names volume and mounts. The next one begins at that commit."""
    rig.volumes.create("a", RUN)
    place = rig.volumes.mount("a", "one")
    assert rig.volumes.mount("a", "two") == place == rig.volumes.path("a")
    writer.changes[place].append("something")
    rig.volumes.unmount("a", "one")
    rig.settle()
    assert writer.messages == []
    rig.volumes.unmount("a", "two")
    rig.settle()
    assert writer.messages == ["Docker volume a\n\nmount one\nmount two"]
    assert rig.volumes.path("a") == ""
    assert status(rig)["commit"] == "01" * 32
    use(rig, writer, "three")
    rig.settle()
    assert writer.messages[1:] == ["Docker volume a\n\nmount three"]
    rig.volumes.remove("a")
    assert rig.records.load() == []


def test_a_container_that_dockerd_forgot(rig: Rig, writer: MemoryWriter) -> None:
    """Its reference lapses a minute later, and the changes are committed; not while a mount
    namespace shows the writable mount, or the kernel says that it is in use."""
    rig.volumes.create("a", RUN)
    place = rig.volumes.mount("a", "one")
    writer.changes[place].append("something")
    writer.in_use.add(place)
    rig.hands.forward(61)
    rig.round(3)
    assert writer.messages == []
    assert "still" in str(status(rig)["commit_error"])
    writer.in_use.clear()
    rig.round()
    assert len(writer.messages) == 1
    assert "commit_error" not in status(rig)


def test_changes_can_be_kept(rig: Rig, writer: MemoryWriter) -> None:
    """With commit=never they stay, also for the next container, and keep the volume from being
    removed: the message has the two ways out."""
    rig.volumes.create("a", RUN | {"commit": "never"})
    use(rig, writer, "one")
    rig.settle()
    use(rig, writer, "two")
    rig.settle()
    assert writer.messages == []
    [place] = writer.bases
    assert writer.changes[place] == ["one", "two"]
    with pytest.raises(InUse, match=r"lodefs commit /.*lodefs unmount --discard /"):
        rig.volumes.remove("a")
    writer.changes.clear()
    rig.volumes.remove("a")


def test_a_store_that_is_away_is_tried_again(rig: Rig, writer: MemoryWriter) -> None:
    """Each round, until it is there; meanwhile inspect says why."""
    rig.volumes.create("a", RUN)
    writer.failures = [Unavailable("the store is away")] * 2
    use(rig, writer, "one")
    rig.round(2)
    assert status(rig)["commit_error"] == "the store is away"
    assert status(rig)["mount_ids"] == ["one"]
    rig.round()
    assert len(writer.messages) == 1
    assert status(rig)["mount_ids"] == []


def test_what_somebody_has_to_solve_waits(rig: Rig, writer: MemoryWriter) -> None:
    """A branch that went another way is not tried again by itself, but when another container has
    ended, or the volume is to be removed; the changes stay."""
    rig.volumes.create("a", RUN)
    writer.failures = [Diverged("both changed labels.csv")] * 3
    use(rig, writer, "one")
    rig.settle()
    assert len(writer.failures) == 2
    assert status(rig)["commit_error"] == "both changed labels.csv"
    use(rig, writer, "two")
    rig.settle()
    assert len(writer.failures) == 1
    with pytest.raises(Diverged):
        rig.volumes.remove("a")
    rig.volumes.remove("a")
    assert writer.messages == ["Docker volume a\n\nmount one\nmount two"]


def test_removing_commits_what_upkeep_has_not(rig: Rig, writer: MemoryWriter) -> None:
    """`docker rm` and `docker volume rm` at once lose nothing."""
    rig.volumes.create("a", RUN)
    use(rig, writer, "one")
    rig.volumes.remove("a")
    assert len(writer.messages) == 1


def test_a_reboot_commits(rig: Rig, writer: MemoryWriter, memory: MemoryMounts) -> None:
    """Containers of before have gone with it; what is on the disk is committed once."""
    rig.volumes.create("a", RUN)
    writer.changes[rig.volumes.mount("a", "one")].append("something")
    rig.close()
    memory.mounts.clear()
    writer.mounted.clear()
    rig.hands.reboot()
    again = Rig(rig.state, memory, rig.hands)
    again.write_with(writer)
    again.settle()
    assert writer.messages == ["Docker volume a\n\nmount one"]
    again.close()


def test_what_cannot_be_created(rig: Rig, memory: MemoryMounts) -> None:
    """Without a mount service; options that do not go together; no repository, no write access."""
    with pytest.raises(InvalidInput, match="--mounter"):
        rig.volumes.create("a", RUN)
    rig.write_with(MemoryWriter(memory.repos))
    for more, why in (
        ({"commit": "main"}, "on-last, never or discard"),
        ({"follow": "1h"}, "follow"),
        ({"store": "s3://bucket/prefix"}, "the store of the node's proxy"),
        ({"write": "yes"}, "must be true or false"),
        ({"write": "false", "commit": "main"}, "commit=BRANCH"),
        ({"branch": "a/b"}, "branch"),
    ):
        with pytest.raises(InvalidInput, match=why):
            rig.volumes.create("a", RUN | more)
    with pytest.raises(NotFound, match="no/such"):
        rig.volumes.create("a", RUN | {"repo": "no/such"})
    assert rig.volumes.list() == []


def tell(rig: Rig, writer: MemoryWriter, promised: list[str]) -> None:
    """Two containers write, the plugin's upkeep does what it does."""
    rig.volumes.create("a", RUN)
    for one in ("one", "two"):
        writer.changes[rig.volumes.mount("a", one)].append(one)
        promised.append(one)
    for one in ("one", "two"):
        rig.volumes.unmount("a", one)
    rig.round(2)


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_kill_at_any_step(tmp_path: Path, steps: int) -> None:
    """The next plugin commits what containers have written, and once."""
    memory = MortalMounts(memory_mounts().repos)
    memory.fuse = fuse = Fuse(steps)
    writer, promised = MemoryWriter(memory.repos), list[str]()
    writer.step = fuse.step
    first = mortal_rig(tmp_path, memory, fuse)
    first.write_with(writer)
    with contextlib.suppress(KilledError):
        tell(first, writer, promised)
    assert first.calls.wait_idle(WAIT_S)
    assert first.chores.wait_idle(WAIT_S)
    first.close()
    memory.fuse, writer.step = Fuse(10**9), lambda: None

    rig = Rig(tmp_path, memory, first.hands)
    rig.write_with(writer)
    rig.hands.forward(61)  # what is not unmounted lapses: nobody shows it
    rig.settle()
    assert len(writer.messages) == bool(promised)
    assert not any(writer.changes.values())
    assert all(not shown.held.references for shown in rig.volumes.list())
    rig.close()


def test_the_story_has_fewer_steps_than_are_tried(tmp_path: Path) -> None:
    """The kills of the test above are all that there can be."""
    memory = MortalMounts(memory_mounts().repos)
    memory.fuse = fuse = Fuse(10**9)
    writer = MemoryWriter(memory.repos)
    writer.step = fuse.step
    rig = mortal_rig(tmp_path, memory, fuse)
    rig.write_with(writer)
    tell(rig, writer, [])
    assert 10**9 - fuse.left < STEPS
    assert memory.repos[REPO].revisions[BRANCH] != OLD
    rig.close()
