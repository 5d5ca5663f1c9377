"""What a mount counts for jobs: by the process that asks, for several processes of the mount."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from lodefs.chunkstore.protocol.figures.figure_files import private_directory_of
from lodefs.chunkstore.protocol.figures.job_counts import (
    GAP_NOW,
    OTHERS,
    PROCESS_ROWS,
    PROCESSES,
    JobColumn,
    Jobs,
    MountJobs,
    read_files,
)
from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.mount.kernel import mount_table
from lodefs.mount.shm import job_counters
from lodefs.mount.shm.job_counters import (
    JobCounter,
    JobRows,
    JobTable,
    RequestCounter,
    is_told,
    job_of,
)
from lodefs.mount.shm.traffic_counters import uncounted
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts, until
from tests.support.proxy.rig import REPO, Rig, serve_rig

CGROUPS = {
    "v1": "6:freezer:/slurm/uid_5/job_77/step_0\n4:memory:/\n0::/\n",
    "v1 of several slurmds": "4:memory:/\n6:freezer:/slurm_n1/uid_5/job_77/step_batch\n",
    "v1 in a container": "3:cpu,freezer:/box/slurm/uid_5/job_77/x/slurm/uid_5/job_78/x\n0::/\n",
    "v2": "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n",
    "v2 of several slurmds": "0::/system.slice/n1_slurmstepd.scope/job_77/step_0/user/task_0\n",
    "a container in it": "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0/box\n",
    "the job's own": "0::/system.slice/slurmstepd.scope/job_77\n",
}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[JobTable]:
    fd = JobTable.create(tmp_path)
    yield JobTable(fd)
    os.close(fd)


def rows_of(table: JobTable, slot: int = 1) -> JobRows:
    found = table.rows(slot)
    assert found is not None
    return found


def counter_of(table: JobTable, slot: int, jobs: dict[int, int]) -> JobCounter:
    """Knows the jobs of processes from a table."""
    return JobCounter(rows_of(table, slot), lambda pid: jobs.get(pid, 0))


def reads(directory: Path) -> Jobs:
    """Of the only file in a directory."""
    return only(directory).jobs


def only(directory: Path) -> MountJobs:
    """What the only file in a directory tells."""
    (found,) = read_files(directory)
    return found


@pytest.mark.parametrize("text", CGROUPS.values(), ids=CGROUPS)
def test_the_control_group_tells_the_job(tmp_path: Path, text: str) -> None:
    """As Slurm's plugins of both versions name it."""
    (tmp_path / "9").mkdir()
    (tmp_path / "9/cgroup").write_text(text)
    assert job_of(9, tmp_path) == 77


@pytest.mark.parametrize(
    "text",
    [
        "0::/\n",
        "0::/user.slice/user-5.slice/job_77/x\n",
        "0::/user.slice/slurmstepd.scope/job_77/x\n",
        "0::/user.slice/user-5.slice/user@5.service/app.slice/slurmstepd.scope/job_77/x\n",
        "0::/system.slice/mine.service/slurmstepd.scope/job_77/x\n",
        "0::/system.slice/mine.service/slurm/uid_0/job_77/x\n",
        "0::/slurm/uid_0/job_77/x\n",
        "1:name=systemd:/slurm/uid_0/job_77/x\n",
        "6:freezer:/user.slice/slurm/uid_0/job_77/x\n",
        "6:freezer:/user/alice/0/slurm/uid_0/job_77/x\n",
        "0::/system.slice/slurmstepd.scope/job_/slurmstepd.scope/job_77/x\n",
        "0::/system.slice/slurmstepd.scope/job_77x/step_0\n",
        "0::/system.slice/slurmstepd.scope/system\n",
        "0::/system.slice/slurmstepd.scope/job_99999999999/step_0\n",
        "\xff\n",
    ],
)
def test_what_names_no_job_of_slurm_is_none(tmp_path: Path, text: str) -> None:
    """Other groups, however they are called; and no process at all."""
    (tmp_path / "9").mkdir()
    (tmp_path / "9/cgroup").write_text(text)
    stat = "9 (a ) b) S 1 9 9 0 -1 {} 0 0"
    (tmp_path / "9/stat").write_text(stat.format(4194560))
    assert job_of(9, tmp_path) == 0
    (tmp_path / "9/stat").write_text(stat.format(4194564))
    assert job_of(9, tmp_path) is None  # it is about to end
    assert job_of(10, tmp_path) is None


def test_reads_count_for_the_job_of_the_process(table: JobTable, tmp_path: Path) -> None:
    """By source, over all processes of the mount; what belongs to no job, or comes from a process
    that cannot be seen, counts for none."""
    jobs = {50: 7, 51: 7, 60: 8}
    for slot, pid, column in (
        (1, 50, Column.DIRECT_READS),
        (1, 60, Column.CACHE_READS),
        (2, 51, Column.PEERS_READS),
        (2, 51, Column.STORE_READS),
        (1, 70, Column.STORE_READS),
        (1, 0, Column.STORE_READS),
    ):
        asked = pid
        counter = counter_of(table, slot, jobs)
        RequestCounter(uncounted(), counter, lambda: asked).read(column, 10 + slot)  # noqa: B023
        counter.settle()
    found = reads(tmp_path)
    assert found.keys() == {7, 8}
    assert found[7].figures == (11, 0, 12, 12, 0, 0)
    assert found[8].figures == (0, 11, 0, 0, 0, 0)
    assert found[7].plus(found[7]).store_bytes == 24


def test_a_request_counts_for_the_mount_too(table: JobTable, tmp_path: Path) -> None:
    """Bytes that the proxy brought, and opens that the kernel reads by itself."""
    row = uncounted()
    jobs = counter_of(table, 1, {50: 7})
    counter = RequestCounter(row, jobs, lambda: 50)
    counter.brought(b"store", 5)
    counter.brought(b"what is this", 6)
    counter.add(Column.KERNEL_OPENS, 1)
    counter.add(Column.KERNEL_OPENED_BYTES, 1000)
    counter.add(Column.WAITING, 1)
    jobs.settle()
    assert reads(tmp_path)[7].figures == (0, 6, 0, 5, 1, 1000)
    assert row._words[Column.STORE_BYTES] == 5
    assert row._words[Column.WAITING] == 1


def count(counter: JobCounter, pid: int, amount: int) -> None:
    """Bytes of the store, which are counted at once."""
    counter.add(pid, JobColumn.STORE_BYTES, amount)
    counter.settle()


def test_a_worker_that_comes_after_another_goes_on(table: JobTable, tmp_path: Path) -> None:
    """It counts in the rows of the slot that it has."""
    for amount in (1, 2):
        count(counter_of(table, 3, {50: 7}), 50, amount)
    assert reads(tmp_path)[7].store_bytes == 3
    assert reads(tmp_path).keys() == {7}


def test_a_read_waits_for_nobody_and_is_counted_once_its_job_is_known(
    table: JobTable, tmp_path: Path
) -> None:
    """Not for who looks a job up, who may have to wait himself."""
    asked: list[int] = []

    def slow(pid: int) -> int:
        asked.append(pid)
        counter.add(
            pid, JobColumn.STORE_BYTES, 20
        )  # a reader meanwhile: it needs no lock that we hold
        return 7

    counter = JobCounter(rows_of(table), slow)
    counter.add(50, JobColumn.STORE_BYTES, 1)
    assert not asked
    assert not reads(tmp_path)
    counter.settle()
    assert asked == [50]
    assert reads(tmp_path)[7].store_bytes == 21


def test_a_thread_settles_what_waits(table: JobTable, tmp_path: Path) -> None:
    """Without being called by who reads."""
    is_asked = Event()
    counter = JobCounter(rows_of(table), lambda _pid: is_asked.set() or 7)
    counter.start()
    counter.add(50, JobColumn.STORE_BYTES, 3)
    assert is_asked.wait(60)
    until(lambda: 7 in reads(tmp_path) and reads(tmp_path)[7].store_bytes == 3)


def test_a_process_number_that_is_used_again_counts_for_its_new_job(
    table: JobTable, tmp_path: Path
) -> None:
    """After some seconds the job of a number is looked up again."""
    jobs, now_s = {50: 7}, [100.0]
    counter = JobCounter(rows_of(table), lambda pid: jobs[pid], lambda: now_s[0])
    count(counter, 50, 1)
    jobs[50] = 8
    count(counter, 50, 1)
    now_s[0] += job_counters.REMEMBERED_S
    counter.settle()
    count(counter, 50, 5)
    found = reads(tmp_path)
    assert (found[7].store_bytes, found[8].store_bytes) == (2, 5)


def test_what_an_ended_process_read_is_its_jobs_or_else_nobodys_known(
    table: JobTable, tmp_path: Path
) -> None:
    """The job's, where it was known some seconds ago; and nothing is lost."""
    jobs, now_s = {50: 7}, [100.0]
    counter = JobCounter(rows_of(table), jobs.get, lambda: now_s[0])
    count(counter, 50, 1)
    now_s[0] += job_counters.REMEMBERED_S
    counter.settle()
    jobs.clear()
    count(counter, 50, 5)
    count(counter, 51, 40)
    found = reads(tmp_path)
    assert (found[7].store_bytes, found[OTHERS].store_bytes) == (6, 40)


def test_more_processes_than_are_looked_up_are_nobodys_known(
    table: JobTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded where the look-ups wait."""
    monkeypatch.setattr(job_counters, "WAITING_MAX", 1)
    counter = counter_of(table, 1, {50: 7, 51: 7})
    counter.add(50, JobColumn.STORE_BYTES, 1)
    counter.add(51, JobColumn.STORE_BYTES, 2)
    counter.settle()
    found = reads(tmp_path)
    assert (found[7].store_bytes, found[OTHERS].store_bytes) == (1, 2)


def test_a_row_is_anothers_once_its_job_is_told_and_has_not_read_for_minutes(
    table: JobTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs beyond the rows count together until then; another process has its own rows."""
    told: set[int] = set()
    table_rows = rows_of(table)
    rows = JobRows(table_rows.words, table._used[1:2], told.__contains__)
    counter = JobCounter(rows, lambda pid: pid)
    last = PROCESS_ROWS - 1
    monkeypatch.setattr("time.time", lambda: 1000.0)
    for pid in range(1, last + 3):
        count(counter, pid, pid)
    found = reads(tmp_path)
    assert found[OTHERS].store_bytes == last + 1 + last + 2
    assert found.keys() == {OTHERS, *range(1, last + 1)}
    count(counter_of(table, 2, {60: last + 1}), 60, 9)
    assert reads(tmp_path)[last + 1].store_bytes == 9
    told.update({3, 5})
    count(counter, 1000, 4)
    assert 1000 not in reads(tmp_path)
    monkeypatch.setattr("time.time", lambda: 1001.0 + job_counters.IDLE_S)
    count(counter, 1001, 4)
    found = reads(tmp_path)
    assert found[1001].figures == (0, 0, 0, 4, 0, 0)
    assert 3 not in found
    assert {1, 2, 5} <= found.keys()


def test_a_job_is_told_when_it_has_no_record(tmp_path: Path) -> None:
    """The epilog removes that after its line."""
    (tmp_path / "7.json").touch()
    assert not is_told(7, tmp_path)
    assert is_told(8, tmp_path)


def test_processes_beyond_those_with_rows_count_nothing(table: JobTable, tmp_path: Path) -> None:
    """They serve all the same; the file tells."""
    assert only(tmp_path).gap_s == 0
    assert table.counter(PROCESSES) is None
    assert only(tmp_path).gap_s == GAP_NOW
    assert table.counter(-1) is None


def test_a_process_without_space_for_its_rows_is_told(
    table: JobTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves; until another comes in its place that can count, and of the time before that."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        assert table.counter(2) is None
    assert only(tmp_path).gap_s == GAP_NOW
    monkeypatch.setattr("time.time", lambda: 1000.5)
    count(counter_of(table, 2, {50: 7}), 50, 1)
    assert only(tmp_path).gap_s == 1001


def test_a_file_tells_which_mounts_it_is(tmp_path: Path) -> None:
    """As the table of mounts has its device."""
    fd = JobTable.create(tmp_path, "1048575:4294967295")
    assert only(tmp_path).device == "1048575:4294967295"
    os.close(fd)


def test_files_that_are_none_are_left_out(table: JobTable, tmp_path: Path) -> None:
    """Short ones, and those of another form, tell nothing, and break nothing."""
    count(counter_of(table, 1, {50: 7}), 50, 1)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for data in (b"", whole[:3], b"x" * len(whole), whole[:80]):
        file.write_bytes(data)
        assert list(read_files(tmp_path)) == []
    file.write_bytes(whole)
    assert reads(tmp_path)[7].store_bytes == 1


def found_of(directory: Path, job: int) -> tuple[int, ...]:
    """Its figures, of the only file in a directory."""
    jobs = reads(directory)
    return jobs[job].figures if job in jobs else ()


@contextmanager
def group_of_job(job: int) -> Iterator[Path]:
    """A control group as Slurm makes it, in any hierarchy where this machine lets us."""
    for root in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer")):
        if root.name == "freezer":
            user = root / f"slurm_test{os.getpid()}" / "uid_0"
            made = [user.parent, user, user / f"job_{job}"]
        else:
            top = root / f"test{os.getpid()}_slurmstepd.scope"
            made = [top, top / f"job_{job}"]
        if not (root / "cgroup.procs").exists() or not os.access(root, os.W_OK):
            continue
        try:
            for group in made:
                group.mkdir()
            yield made[-1]
        finally:
            for group in reversed(made):
                if group.exists():
                    group.rmdir()
        return
    pytest.skip("no control groups can be made here")


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.skipif(os.geteuid() != 0, reason="makes control groups")
def test_a_job_reads_through_a_real_mount() -> None:
    """What a process in a job's control group reads is the job's, byte for byte, and what others
    read of the same mount is not."""
    files = {b"mine": os.urandom(300_000), b"theirs": os.urandom(200_000)}
    with private_directory() as folder, group_of_job(4711) as group:
        rig = Rig(folder, files)
        with serve_rig(rig) as (proxy, _):
            mounts = Mounts(folder, proxy)
            figures = private_directory_of(proxy.socket_path)
            figures.mkdir()
            try:
                mounts.mount(repo=REPO, workers=2, passthrough="off")
                (mounts.place / "theirs").read_bytes()
                script = f"echo $$ >{group}/cgroup.procs; exec cat {mounts.place}/mine -"
                with subprocess.Popen(
                    ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
                ) as reader:  # which lives until its job is known
                    size_bytes = len(files[b"mine"])
                    until(lambda: sum(found_of(figures, 4711)) == size_bytes)
                    assert reader.stdin is not None
                    reader.stdin.close()
                assert reads(figures).keys() == {4711}
                mounted = mount_table.on_top(str(mounts.place))
                assert mounted is not None and only(figures).device == mounted.device
                assert only(figures).gap_s == 0
                assert reads(figures)[4711].store_bytes > 0
            finally:
                mounts.close()
