"""A job's mounts on a node, without a kernel: held, recorded, and given back however it ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable, UnknownFormat
from lodefs.settings.datasets import parse
from lodefs.slurm.job_mounts import NOT_DONE, JobMounts
from lodefs.slurm.job_namespace import check_asked
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown
from tests.support.docker.memory_mounts import Repo
from tests.support.service.memory_service import MemoryService

COMMIT = "0123456789abcdef" * 4
COMMENT = f"lodefs=cats@{COMMIT}:/data/cats,dogs@{COMMIT}:/data/dogs"
JOB = JobRecord(job=7, uid=os.getuid())
LONG_S = 30.0


class Node:
    """Records in a directory, mounts in memory, and what was bound."""

    def __init__(self, folder: Path) -> None:
        repos = {name: Repo({"main": COMMIT}) for name in ("cats", "dogs")}
        self.service = MemoryService(repos, folder / "mounts")
        self.records = JobRecords(folder / "jobs")
        self.bound: list[str] = []
        self.mounts = JobMounts(self.records, self.service, self.bind, patience_s=0)

    def bind(self, place: str, shown: Shown, directory_fd: int) -> None:
        assert place.startswith(str(self.service.root))
        self.bound.append(os.readlink(f"/proc/self/fd/{directory_fd}"))

    def begin(self, comment: str = COMMENT, *, timeout_s: float = LONG_S) -> str:
        return self.mounts.begin(JOB, comment, pinned=False, timeout_s=timeout_s)

    @property
    def held(self) -> list[str]:
        """Directories of those who hold mounts."""
        return sorted(user.target for mount in self.service.mounts for user in mount.users)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_datasets_are_shown_below_the_jobs_tree(node: Node) -> None:
    """Each on its directory."""
    assert node.begin() == ""
    tree = os.path.realpath(node.records.tree(7))
    assert node.bound == [f"{tree}/data/cats", f"{tree}/data/dogs"]
    assert node.held == ["/data/cats", "/data/dogs"]


CHANGED = f"lodefs=cats@{COMMIT}:/data/cats:rw=main,dogs@{COMMIT}:/data/dogs,commit=always"


@pytest.mark.parametrize("writes_here", [True, False])
def test_one_node_of_a_job_writes(node: Node, *, writes_here: bool) -> None:
    """There a dataset that takes changes is not the mount service's; other nodes show it as any."""
    place, begun = node.service.root / "changes", list[Shown]()

    def begin(record: JobRecord, shown: Shown) -> str:
        assert (record.gid, record.restarts) == (60, 2)
        begun.append(shown)
        return str(place)

    node.mounts = JobMounts(
        node.records, node.service, node.bind, begin_changes=begin, patience_s=0
    )
    job = JobRecord(job=7, uid=os.getuid(), gid=60, restarts=2)
    said = node.mounts.begin(job, CHANGED, pinned=False, timeout_s=LONG_S, writes_here=writes_here)
    assert said == ""
    assert len(node.bound) == 2
    shown = [Shown("cats", COMMIT, b"", "/data/cats", "main", "always")]
    held = ["/data/dogs"] if writes_here else ["/data/cats", "/data/dogs"]
    assert (node.held, begun) == (held, shown if writes_here else [])
    node.mounts.end(7)
    assert node.held == []


def test_a_node_without_a_way_to_write_fails_the_job(node: Node) -> None:
    """It says so, and mounts nothing for reading alone in its place."""
    said = node.mounts.begin(JOB, CHANGED, pinned=False, timeout_s=LONG_S, writes_here=True)
    assert "no datasets for changes" in said
    assert node.bound == []


def test_a_branch_is_named_at_submission(node: Node) -> None:
    """A comment that nobody has checked says so."""
    assert "the branch for its changes" in node.begin(f"lodefs=cats@{COMMIT}:/data/cats:rw")


def test_what_is_left_of_a_job_is_not_built_upon(node: Node) -> None:
    """What cannot be removed fails the job, whose mounts are held no more."""
    node.begin()
    file = node.records.tree(7) / "data/file"
    file.touch()
    assert "Not a directory" in node.begin()
    assert (node.held, len(node.bound)) == ([], 2)
    file.unlink()
    assert node.begin() == ""


def test_the_end_of_a_job_releases_its_mounts_whatever_is_in_its_tree(node: Node) -> None:
    """What cannot be removed is said, and its record stays for another call; what is deep can."""
    node.begin()
    tree = node.records.tree(7)
    place = os.path.join(tree, *["d"] * 900)
    os.makedirs(place)
    (tree / "file").touch()
    with pytest.raises(Unavailable, match="Not a directory"):
        node.mounts.end(7)
    assert node.held == []
    assert [*node.records.jobs()] == [7]
    (tree / "file").unlink()
    node.mounts.end(7)
    assert [*node.records.jobs()] == []


def test_the_end_leaves_nothing_and_may_be_repeated(node: Node) -> None:
    """The end leaves nothing and may be repeated."""
    node.begin()
    for _ in range(2):
        node.mounts.end(7)
        assert (node.held, list(node.records.jobs())) == ([], [])


def test_a_job_without_datasets_leaves_no_record(node: Node) -> None:
    """A job without datasets leaves no record."""
    assert node.begin("run 7") == ""
    assert not node.records.root.exists()


def test_a_second_prolog_of_a_job_begins_anew(node: Node) -> None:
    """A requeued job whose epilog never ran."""
    node.begin()
    node.begin(f"lodefs=dogs@{COMMIT}:/other")
    assert node.held == ["/other"]


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("lodefs=cats@main:/d", "was not fixed"),
        (f"lodefs=cats@{COMMIT}:/d,nosuch@{COMMIT}:/e", "nosuch"),
        ("lodefs=cats", "names no directory"),
    ],
)
def test_a_mistake_is_told_by_the_record_and_nothing_stays_shown(
    node: Node, comment: str, why: str
) -> None:
    """A mistake is told by the record and nothing stays shown."""
    assert why in node.begin(comment)
    record = node.records.read(7)
    assert record is not None
    assert why in record.problem
    assert not node.records.tree(7).exists()
    node.mounts.end(7)
    assert node.held == []


def test_a_job_gets_what_its_user_may_read(node: Node) -> None:
    """The node mounts with its own rights, so the rules are those of the job's user; nothing is
    mounted of a job that names something else, too."""

    def check(uid: int, repo: str) -> None:
        if (uid, repo) != (JOB.uid, "cats"):
            raise NotFound(f"there is no repository {repo} that you may read")

    node.mounts = JobMounts(node.records, node.service, node.bind, check_read=check, patience_s=0)
    assert node.begin() == "there is no repository dogs that you may read"
    assert node.held == []
    assert node.begin(COMMENT.partition(",")[0]) == ""
    assert node.held == ["/data/cats"]


def test_a_service_that_is_gone_is_told_and_the_record_stays_until_it_is_back(node: Node) -> None:
    """A service that is gone is told and the record stays until it is back."""
    node.begin()
    node.service.failure = Unavailable("it is gone")
    with pytest.raises(Unavailable):
        node.mounts.end(7)
    assert not node.records.tree(7).exists()
    assert list(node.records.jobs()) == [7]
    node.service.failure = None
    node.mounts.end(7)
    assert node.held == []


def test_a_service_that_is_being_started_is_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is being started is waited for."""
    node.service.failure = Unavailable("it is not there yet")

    def come_back(_pause_s: float) -> None:
        node.service.failure = None

    monkeypatch.setattr("lodefs.slurm.job_mounts.time.sleep", come_back)
    mounts = JobMounts(node.records, node.service, node.bind, patience_s=LONG_S)
    assert mounts.begin(JOB, COMMENT, pinned=False, timeout_s=LONG_S) == ""


def test_a_prolog_that_is_killed_leaves_a_record_that_says_so(node: Node) -> None:
    """A prolog that is killed leaves a record that says so."""

    def die(_place: str, _shown: Shown, _directory_fd: int) -> None:
        raise KeyboardInterrupt

    mounts = JobMounts(node.records, node.service, die, patience_s=0)
    with pytest.raises(KeyboardInterrupt):
        mounts.begin(JOB, COMMENT, pinned=False, timeout_s=LONG_S)
    record = node.records.read(7)
    assert record is not None
    assert record.problem == NOT_DONE
    mounts.end(7)
    assert node.held == []


def test_a_service_that_hangs_costs_no_more_than_the_time_limit(node: Node) -> None:
    """A service that hangs costs no more than the time limit."""
    with node.service.hold():
        assert "not done" in node.begin(timeout_s=0.05)


def test_a_record_of_another_version_is_refused(node: Node) -> None:
    """A record of another version is refused."""
    node.records.write(JobRecord(version=99, job=7, uid=0))
    with pytest.raises(UnknownFormat, match="version 99"):
        node.records.read(7)


def test_a_step_may_ask_for_what_its_job_has(node: Node) -> None:
    """A step may ask for what its job has."""
    node.begin()
    record = node.records.read(7)
    assert record is not None
    check_asked(record, [parse("cats@main:/data/cats")])
    with pytest.raises(InvalidInput, match="belong to a whole job"):
        check_asked(record, [parse("cats@main:/elsewhere")])
