"""Docker volumes that take changes, with a real store, proxy, mount service and kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import msgspec
import pytest

from lodefs.api.history import log
from lodefs.api.refs import Refs
from lodefs.api.writing.writable_changes import commit
from lodefs.api.writing.writable_volumes import WritableVolumes
from lodefs.chunkstore.errors import Diverged
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.mount.docker.volumes import wanted_of
from lodefs.mount.docker.writing import WORDS
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.kernel_mounts import KernelMounts
from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.service.interface import DOCKER, User
from lodefs.mount.volumes.changes import WritableVolume
from lodefs.mount.volumes.openings import Openings
from lodefs.mount.writable import upper_place
from lodefs.settings.session import Session
from lodefs.slurm import change_records
from lodefs.slurm.change_records import Change, ChangeRecords
from lodefs.slurm.job_liveness import JobEnd
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown
from lodefs.slurm.node_changes import NodeChanges, Settled, told
from tests.mount.writable.conftest import skip_where_unfit
from tests.support.docker.writer_suite import BRANCH, WriterGiven, WriterSuite
from tests.support.hpc.node_mounter import node_mounter
from tests.support.lodefs.dataset_node import DatasetNode, dataset_node
from tests.support.mount.mounts import WAIT_S
from tests.support.proxy.node_process import REPO

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


class RealGiven(WriterGiven):
    """``folder``: a directory of the test."""

    writer: WritableVolumes

    def __init__(self, node: DatasetNode, folder: Path, service: Path) -> None:
        environment = {
            "HOME": str(folder),
            "LODEFS_STORE": str(node.store),
            "LODEFS_PROXY": node.address,
            "LODEFS_CONFIG": os.devnull,
        }
        self.session = Session(environment)
        self.service = RemoteMounts(service)
        self.folder = folder
        super().__init__(WritableVolumes(self.session, folder / "docker", service), REPO)

    def hold(self, volume: WritableVolume) -> WritableVolume:
        source, base = self.writer.base(volume)
        user = User(volume.name, "one", driver=DOCKER)
        self.service.release(user, WAIT_S)  # of a time before
        self.service.acquire(user, wanted_of(source, base), None, WAIT_S)
        return super().hold(volume)

    def change(self, place: str, name: str) -> None:
        Path(place, name).write_text("changed")

    def messages(self) -> list[str]:
        first = {entry.id for entry in log(f"{REPO}@main", session=self.session)}
        found = [*log(f"{REPO}@{BRANCH}", session=self.session)]
        return [one.commit.message for one in reversed(found) if one.id not in first]

    def copy_of(self, place: str) -> None:
        (self.folder / "copy").mkdir()
        subprocess.run(["mount", "--bind", place, self.folder / "copy"], check=True)

    def end_copy(self, place: str) -> None:
        mount_syscalls.detach(str(self.folder / "copy"), lazy=False)

    def close(self) -> None:
        for name in ("a", "b"):
            self.service.release(User(name, "one", driver=DOCKER), WAIT_S)
        self.session.close()
        for mounted in reversed(mount_table.read_table()):
            if mounted.mountpoint.startswith(f"{self.folder}/"):
                mount_syscalls.detach(mounted.mountpoint, lazy=True)


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[DatasetNode, Path]]:
    """A node with a dataset, and the socket of its mount service."""
    if os.geteuid() != 0:
        pytest.skip("the mount service needs root")
    with ExitStack() as stack:
        node = stack.enter_context(dataset_node())
        made = stack.enter_context(node_mounter(node.store.parent / "m", node.address))
        yield node, made.folder / "mounter.sock"


@pytest.fixture
def given(
    service: tuple[DatasetNode, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RealGiven]:
    skip_where_unfit(tmp_path)
    monkeypatch.setattr(upper_place, "OF_ROOT", tmp_path / "of-root")
    made = RealGiven(service[0], tmp_path, service[1])
    yield made
    made.close()
    if BRANCH in [one.name for one in Refs(BRANCHES).list(REPO, session=made.session)]:
        Refs(BRANCHES).delete(REPO, BRANCH, session=made.session)


class TestWritableVolumes(WriterSuite):
    """The contract."""


def test_a_container_shows_the_mount(given: RealGiven) -> None:
    """It has the mount at a place of its own, which the mount service sees; to mount it once more
    changes nothing of it."""
    volume = given.hold(given.volume())
    place = given.writer.mount(volume, None)
    node = KernelMounts(cast("MountHelper", None), lambda *_: "", environ={}, log=print)
    assert node.showing({place}) == {}
    given.copy_of(given.writer.mount(volume, None))
    assert node.showing({place}) == {place: frozenset({0})}
    given.end_copy(place)
    assert os.stat(place).st_mode & 0o777 == 0o755
    assert not given.writer.close(volume, "nothing").commit


def test_what_no_commit_holds_is_logged(given: RealGiven, caplog: pytest.LogCaptureFixture) -> None:
    """A FIFO ends with the volume; the log of its driver names it."""
    volume = given.hold(given.volume())
    place = given.writer.mount(volume, None)
    given.change(place, "new")
    os.mkfifo(f"{place}/fifo")
    openings = Openings(given.service, given.writer, lambda _: None, wanted_of, WORDS)
    assert openings.close(volume).commit
    assert "the commit of volume a leaves out: fifo is a FIFO" in caplog.text
    assert given.messages() == ["Docker volume a\n"]


def test_a_conflict_is_solved_by_hand(given: RealGiven) -> None:
    """The branch has another version of a changed file: the changes stay, `lodefs commit` of the
    volume's place puts them on another branch, and the volume goes on."""
    one = given.volume()
    other = msgspec.structs.replace(one, name="b")
    for volume in (one, other):
        given.hold(volume)
        given.change(given.writer.mount(volume, None), "file")
        Path(given.writer.place(volume), "text").write_text(volume.name)
    assert given.writer.close(other, "first").commit
    for _ in range(2):
        with pytest.raises(Diverged, match="text"):
            given.writer.close(one, "second")
    done = commit(given.writer.place(one), branch="solved", session=given.session, workers=0)
    assert done.commit
    assert not given.writer.close(one, "third").kept
    assert given.messages() == ["first"]
    one = given.hold(one)
    assert Path(given.writer.mount(one, None), "text").read_text() == "b"
    given.writer.close(one, "")
    assert not os.listdir(given.folder / "of-root")


def test_changes_of_a_job_of_slurm(
    given: RealGiven, service: tuple[DatasetNode, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are mounted as a volume is, for the job's user; committed once when the job has ended
    well, and else kept. A node of which nothing else is left knows them."""
    monkeypatch.setattr(change_records, "MOUNTED", given.folder / "mounted")
    records = ChangeRecords(given.folder / "slurm", given.folder / "mounted")
    jobs = JobRecords(given.folder / "jobs")
    made = NodeChanges(given.session, service[1], records=records, jobs=jobs)
    head = given.session.store.resolve(REPO, "main").hex()
    shown = Shown(REPO, head, b"", "/tmp/d", BRANCH)
    job = JobRecord(job=7, uid=65534, gid=65534, begun_s=100.0, datasets=(shown,))
    ends = {7: JobEnd.AT_WORK, 8: JobEnd.FAILED}

    def settle(change: Change) -> Settled | None:
        return made.settle(change, lambda n, _: ends[n], told)

    for one in (job, msgspec.structs.replace(job, job=8)):
        jobs.write(one)
        at = Path(made.begin(one, shown))
        assert (at.stat().st_uid, at.parent.stat().st_mode & 0o777) == (65534, 0o700)
        (at / f"of-{one.job}").write_text("changed")
        assert [settle(each) for each in made.changes()] == [None]
        jobs.remove(one.job)
        if one is job:
            assert [settle(each) for each in made.changes()] == [None]
            ends[7] = JobEnd.SUCCEEDED
        (change,) = made.changes()
        settled = settle(change)
        assert settled is not None
        assert (settled.change.commit != "", settled.kept is not None) == (
            one is job,
            one is not job,
        )
        assert settle(change) is None
    assert given.messages() == ["Slurm job 7"]
    done = commit(change.mountpoint, session=given.session, workers=0)
    assert done.commit
    assert not list(records.root.iterdir())
