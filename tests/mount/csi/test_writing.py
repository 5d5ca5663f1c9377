"""Pods' volumes that take changes: one mount for all pods of a node, one commit after the last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    Diverged,
    InUse,
    InvalidInput,
    Unavailable,
    Unsupported,
)
from lodefs.mount.csi.node import NodeServer
from lodefs.mount.csi.writing import AGAIN_S
from lodefs.mount.volumes.changes import WritableVolume, key_of
from lodefs.mount.volumes.volume_files import VolumeFiles
from tests.mount.docker.test_crash import Fuse, KilledError, MortalFiles, MortalMounts
from tests.support.csi.kubelet import EPHEMERAL, MODE, capability
from tests.support.csi.writing_rig import (
    ATTRIBUTES,
    BRANCH,
    SECRET,
    NodeTargets,
    WritingRig,
)
from tests.support.docker.memory_writer import MemoryWriter
from tests.support.docker.rig import NEW, OLD, WAIT_S, memory_mounts

REPO = "vision/cats"
STEPS = 50
ALONE = capability(MODE.SINGLE_NODE_SINGLE_WRITER)
INLINE = {**ATTRIBUTES, EPHEMERAL: "true"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[WritingRig]:
    memory = memory_mounts()
    made = WritingRig(tmp_path, memory, NodeTargets(memory, MemoryWriter(memory.repos)))
    yield made
    made.close()


def test_the_last_pod_commits(rig: WritingRig) -> None:
    """Two share a mount; nothing is committed before both have ended, and then once, with a message
    that names volume and pods. Nothing is left then, and the next one begins at that commit."""
    place = rig.publish("v1", "one")
    assert rig.publish("v1", "two") == place
    assert rig.targets.writers == {rig.target("one"), rig.target("two")}
    rig.writer.changes[place].append("something")
    rig.unpublish("v1", "one")
    rig.settle()
    assert rig.writer.messages == []
    rig.unpublish("v1", "two")
    rig.settle()
    assert rig.writer.messages == ["Kubernetes volume v1\n\npod ns/one\npod ns/two"]
    assert rig.files.load() == rig.kept_secrets() == []
    assert not rig.service.slots()
    rig.use("v1", "three")
    rig.settle()
    assert len(rig.writer.messages) == 2


def test_a_republish_changes_nothing(rig: WritingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet repeats each publish every minute: no store is asked, and no file written. Other
    credentials take the place of the former."""
    place = rig.publish("v1", "one")
    rig.publish("v1", "two")

    def never(*_: object) -> Any:
        raise AssertionError

    monkeypatch.setattr(rig.writer, "branch", never)
    monkeypatch.setattr(rig.files, "write", never)
    for _ in range(2):
        assert rig.publish("v1", "one") == place
    rotated = {**SECRET, "AWS_SECRET_ACCESS_KEY": "hunter3"}
    rig.publish("v1", "one", secrets=rotated)
    assert rig.credentials.of(key_of("v1")) == rotated


def test_secrets_are_on_no_disk(rig: WritingRig) -> None:
    """They are where a reboot takes them away, for their owner alone."""
    rig.publish("v1", "one")
    for path in (rig.folder / "csi", rig.folder / "state"):
        found = [one for one in path.rglob("*") if one.is_file()]
        assert not [one for one in found if b"hunter2" in one.read_bytes()]
    [kept] = (rig.folder / "run/csi/credentials").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert "hunter2" in kept.read_text()


def test_readers_beside_writers(rig: WritingRig) -> None:
    """Who reads sees the commit at which the branch was, and keeps nobody from committing."""
    place = rig.publish("v1", "writer")
    rig.writer.changes[place].append("something")
    for number, fields in enumerate(({"readonly": True}, {"volume_capability": capability()})):
        read = rig.publish("v1", f"reader-{number}", **fields)
        assert read != place
        assert rig.target(f"reader-{number}") not in rig.targets.writers
    rig.unpublish("v1", "writer")
    rig.settle()
    assert len(rig.writer.messages) == 1
    assert len(rig.service.slots()) == 1
    for number in range(2):
        rig.unpublish("v1", f"reader-{number}")
    rig.settle()
    assert not rig.service.slots()


def test_what_becomes_of_changes(rig: WritingRig) -> None:
    """They are kept for the volume's next pods, or given up."""
    for policy, left in (("never", ["one"]), ("discard", [])):
        rig.use(policy, "one", attributes={**ATTRIBUTES, "commit": policy})
        rig.settle()
        assert rig.writer.messages == rig.files.load() == []
        place = rig.publish(policy, "two", {**ATTRIBUTES, "commit": policy})
        assert rig.writer.changes[place] == left
        rig.unpublish(policy, "two")


def test_one_pod_alone(rig: WritingRig) -> None:
    """ReadWriteOncePod: another target is refused while one has the volume, which is as it was."""
    place = rig.publish("v1", "one", volume_capability=ALONE)
    with pytest.raises(InUse, match="ReadWriteOncePod"):
        rig.publish("v1", "two", volume_capability=ALONE)
    assert rig.publish("v1", "one", volume_capability=ALONE) == place
    rig.unpublish("v1", "one")
    assert rig.publish("v1", "two", volume_capability=ALONE) == place


def test_an_inline_volume(rig: WritingRig) -> None:
    """Each pod has a volume, and a branch by its name; what would be found by nobody is refused."""
    named = {**INLINE, "branch": "${pod.namespace}-${pod.name}"}
    rig.use("csi-1", "job-0", attributes=named)
    rig.settle()
    assert rig.writer.repos[REPO].revisions["ns-job-0"] == "01" * 32
    with pytest.raises(InvalidInput, match="ends with its pod"):
        rig.publish("csi-2", "job-0", {**INLINE, "commit": "never"})
    with pytest.raises(InvalidInput, match=r"no \$\{pod.name\}"):
        rig.publish("v1", "job-0", {**ATTRIBUTES, "branch": "${pod.name}"})


def test_a_store_that_is_away_is_tried_again(rig: WritingRig) -> None:
    """Each round, until it is there."""
    rig.writer.failures = [Unavailable("the store is away")] * 2
    rig.use("v1", "one")
    rig.round(2)
    assert rig.changes.by_state() == {"open": 0, "failing": 1}
    rig.round()
    assert len(rig.writer.messages) == 1
    assert rig.changes.by_state() == {"open": 0, "failing": 0}


def test_a_conflict_waits(rig: WritingRig, caplog: pytest.LogCaptureFixture) -> None:
    """The log names it once, and where the changes are; so does the condition of the next pod's
    volume. It is tried again when that has ended, and after a while."""
    rig.writer.failures = [Diverged("both changed labels.csv")] * 2
    rig.use("v1", "one")
    rig.settle()
    assert len(rig.writer.failures) == 1
    lines = [one.getMessage() for one in caplog.records if "labels.csv" in one.getMessage()]
    assert len(lines) == 1
    assert "/writable/v1-" in lines[0]
    rig.use("v1", "two")
    rig.settle()
    assert rig.writer.failures == []
    assert rig.changes.by_state()["failing"] == 1
    rig.hands.forward(AGAIN_S)
    rig.round()
    assert rig.writer.messages == ["Kubernetes volume v1\n\npod ns/one\npod ns/two"]


def test_the_condition_tells_of_a_conflict(rig: WritingRig) -> None:
    """While a pod that has ended before could not commit."""
    place = rig.publish("v1", "one")
    assert rig.changes.look("v1", WAIT_S) == (place, "")
    rig.writer.failures = [Diverged("both changed labels.csv")]
    rig.writer.changes[place].append("something")
    rig.unpublish("v1", "one")
    rig.settle()
    assert "labels.csv" in rig.changes.look("v1", WAIT_S)[1]


def test_a_commit_that_is_under_way(rig: WritingRig) -> None:
    """Pods that read, or have ended, do not wait for it; one that writes is told to try again."""
    place = rig.publish("v1", "one")
    rig.writer.changes[place].append("something")
    rig.publish("v1", "reader", readonly=True)
    rig.unpublish("v1", "one")
    seen = []

    def meanwhile() -> None:
        rig.writer.step = lambda: None
        rig.unpublish("v1", "reader")
        rig.unpublish("v1", "one")
        with pytest.raises(Conflict):
            rig.publish("v1", "two")
        seen.append(True)

    rig.writer.step = meanwhile
    rig.round()
    assert seen == [True]
    assert len(rig.writer.messages) == 1


def test_a_container_that_is_left(rig: WritingRig) -> None:
    """The kernel says that somebody has the mount still: nothing is committed before it has
    ended."""
    place = rig.publish("v1", "one")
    rig.writer.changes[place].append("something")
    rig.writer.in_use.add(place)
    rig.unpublish("v1", "one")
    rig.round(3)
    assert rig.writer.messages == []
    rig.writer.in_use.clear()
    rig.round()
    assert len(rig.writer.messages) == 1


def again(rig: WritingRig, memory: Any) -> WritingRig:
    """The next driver and mount service."""
    rig.close()
    return WritingRig(rig.folder, memory, rig.targets, rig.hands)


def test_a_reboot_commits(rig: WritingRig) -> None:
    """Pods of before have gone with it; what is on the disk is committed once."""
    memory = rig.targets.node
    place = rig.publish("v1", "one")
    rig.writer.changes[place].append("something")
    memory.mounts.clear()
    rig.writer.mounted.clear()
    rig.targets.bound.clear()
    rig.hands.reboot()
    next_ = again(rig, memory)
    next_.settle()
    assert next_.writer.messages == ["Kubernetes volume v1\n\npod ns/one"]
    next_.close()


def test_other_credentials_are_tried(rig: WritingRig) -> None:
    """A commit without rights waits, until the same pod comes with other credentials: after a
    reboot those of before are gone, and the driver has tried without them."""
    rig.use("v1", "one")
    rig.writer.failures.append(Denied("there are no credentials"))
    rig.round(2)
    rig.publish("v1", "one")
    rig.unpublish("v1", "one")
    rig.round(2)
    assert rig.writer.messages == []
    rig.publish("v1", "one", secrets=SECRET | {"AWS_SESSION_TOKEN": "another"})
    rig.unpublish("v1", "one")
    rig.round(2)
    assert rig.writer.messages == ["Kubernetes volume v1\n\npod ns/one"]


def test_a_record_that_is_damaged(rig: WritingRig, caplog: pytest.LogCaptureFixture) -> None:
    """It is put aside, and told; its changes and other volumes go on."""
    for name in ("v1", "v2"):
        rig.writer.changes[rig.publish(name, name)].append(name)
    [path] = (rig.folder / "csi/volumes").glob("v1-*.json")
    path.write_bytes(b"?")
    next_ = again(rig, rig.targets.node)
    assert "--uncommitted" in caplog.text
    for name in ("v1", "v2"):
        next_.unpublish(name, name)
    next_.settle()
    assert next_.writer.messages == ["Kubernetes volume v2\n\npod ns/v2"]
    next_.use("v1", "again")
    next_.settle()
    assert next_.writer.messages[1:] == ["Kubernetes volume v1\n\npod ns/again"]
    next_.close()


def test_what_is_refused(rig: WritingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials; another volume of the same name; a driver that takes no changes, which shows
    the branch to those who read. Nothing is held, and nothing left."""

    def no_write(*_: object) -> Any:
        raise Denied("these credentials only read")

    with monkeypatch.context() as patch:
        patch.setattr(rig.writer, "branch", no_write)
        with pytest.raises(Denied, match="only read"):
            rig.publish("v1", "one")
    assert rig.files.load() == rig.service.slots() == list(rig.pods.iterdir()) == []
    assert rig.kept_secrets() == []
    rig.publish("v1", "one")
    others = {**SECRET, "AWS_SECRET_ACCESS_KEY": "hunter3"}
    with pytest.raises(AlreadyExists, match="v1"):
        rig.publish("v1", "two", {**ATTRIBUTES, "branch": "other"}, secrets=others)
    assert rig.credentials.of(key_of("v1")) == SECRET
    rig.node = NodeServer(rig.service, "node-1", rig.targets)
    with pytest.raises(Unsupported, match="--writable"):
        rig.publish("v2", "two")
    assert rig.publish("v2", "two", readonly=True)
    rig.unpublish("v1", "one")  # also by a driver that takes none any more
    rig.unpublish("v2", "two")
    rig.settle()
    assert not rig.service.holdings("csi", "v1", WAIT_S)


class MortalVolumes(VolumeFiles[WritableVolume]):
    """The driver's disk, by orders of a process that may die before and after each."""

    def __init__(self, folder: Path, fuse: Fuse) -> None:
        super().__init__(WritableVolume, folder / "csi", "another driver")
        self._fuse = fuse

    def write(self, volume: WritableVolume) -> None:
        write = super().write
        self._fuse.around(lambda: write(volume))

    def remove(self, key: str) -> None:
        remove = super().remove
        self._fuse.around(lambda: remove(key))


def mortal_rig(folder: Path, fuse: Fuse) -> WritingRig:
    """A node whose driver and mount service die where the fuse says."""
    memory = MortalMounts(memory_mounts().repos)
    memory.fuse = fuse
    targets = NodeTargets(memory, MemoryWriter(memory.repos))
    targets.step = fuse.step
    assert targets.writer is not None
    targets.writer.step = fuse.step
    state = folder / "state"
    mounts = MortalFiles(state / "mounter", state.with_name("run"), state / "mounts")
    mounts.fuse = fuse
    return WritingRig(folder, memory, targets, files=MortalVolumes(folder, fuse), mounts=mounts)


def tell(rig: WritingRig, promised: list[str]) -> None:
    """Two pods write, and the driver's upkeep does what it does."""
    for pod in ("one", "two"):
        rig.writer.changes[rig.publish("v1", pod)].append(pod)
        promised.append(pod)
    for pod in ("one", "two"):
        rig.unpublish("v1", pod)
    rig.round(2)


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_kill_at_any_step(tmp_path: Path, steps: int) -> None:
    """The next driver commits what pods have written, and once; nothing is left."""
    fuse, promised = Fuse(steps), list[str]()
    first = mortal_rig(tmp_path, fuse)
    with contextlib.suppress(KilledError):
        tell(first, promised)
    for calls in (first.calls, first.chores):
        assert calls.wait_idle(WAIT_S)
    fuse.left = 10**9
    rig = again(first, first.targets.node)
    for pod in ("one", "two"):  # the kubelet asks until it is told that it is done
        rig.unpublish("v1", pod)
    rig.settle()
    assert len(rig.writer.messages) == bool(promised)
    assert not any(rig.writer.changes.values())
    assert rig.files.load() == rig.service.slots() == rig.kept_secrets() == []
    assert rig.targets.bound == {}
    rig.close()


def test_the_story_has_fewer_steps_than_are_tried(tmp_path: Path) -> None:
    """The kills of the test above are all that there can be."""
    fuse = Fuse(10**9)
    rig = mortal_rig(tmp_path, fuse)
    tell(rig, [])
    assert 10**9 - fuse.left < STEPS
    assert rig.writer.repos[REPO].revisions[BRANCH] not in (OLD, NEW)
    rig.close()
