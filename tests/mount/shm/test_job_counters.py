"""What a mount counts for jobs: by the process that asks, for several processes of the mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lodefs.chunkstore.nodeapi.figures.figure_files import directory_of
from lodefs.chunkstore.nodeapi.figures.job_counts import (
    OTHERS,
    PROCESSES,
    ROWS,
    JobReads,
    Word,
    read_files,
    reads_of,
)
from lodefs.chunkstore.nodeapi.figures.mount_counts import Column
from lodefs.mount.shm import job_counters
from lodefs.mount.shm.job_counters import JobCounter, JobTable, RequestCounter, job_of
from lodefs.mount.shm.traffic_counters import uncounted
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import Mounts
from tests.support.proxy.rig import REPO, Rig, serve_rig

CGROUPS = {
    "v1": "6:freezer:/slurm/uid_5/job_77/step_0\n4:memory:/\n0::/\n",
    "v1 of several slurmds": "4:memory:/\n6:freezer:/slurm_n1/uid_5/job_77/step_batch\n",
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


def counter_of(table: JobTable, slot: int, jobs: dict[int, int]) -> JobCounter:
    """Knows the jobs of processes from a table."""
    found = table.counter(slot, lambda pid: jobs.get(pid, 0))
    assert found is not None
    return found


def reads(directory: Path) -> dict[int, JobReads]:
    """Of the only file in a directory."""
    ((_, jobs),) = read_files(directory)
    return jobs


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
    assert job_of(9, tmp_path) == 0
    assert job_of(10, tmp_path) == 0


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
        counter = RequestCounter(uncounted(), counter_of(table, slot, jobs), lambda: asked)  # noqa: B023
        counter.read(column, 10 + slot)
    found = reads(tmp_path)
    assert found.keys() == {7, 8}
    assert found[7].figures == (11, 0, 12, 12, 0, 0)
    assert found[8].figures == (0, 11, 0, 0, 0, 0)
    assert reads_of(7, [(1, found), (2, found)]).store_bytes == 24


def test_a_request_counts_for_the_mount_too(table: JobTable, tmp_path: Path) -> None:
    """Bytes that the proxy brought, and opens that the kernel reads by itself."""
    row = uncounted()
    counter = RequestCounter(row, counter_of(table, 1, {50: 7}), lambda: 50)
    counter.brought(b"store", 5)
    counter.brought(b"what is this", 6)
    counter.add(Column.KERNEL_OPENS, 1)
    counter.add(Column.KERNEL_OPENED_BYTES, 1000)
    counter.add(Column.WAITING, 1)
    assert reads(tmp_path)[7].figures == (0, 6, 0, 5, 1, 1000)
    assert row._words[Column.STORE_BYTES] == 5
    assert row._words[Column.WAITING] == 1


def test_a_worker_that_comes_after_another_goes_on(table: JobTable, tmp_path: Path) -> None:
    """It counts in the rows of the slot that it has."""
    for amount in (1, 2):
        counter_of(table, 3, {50: 7}).add(50, Word.STORE_BYTES, amount)
    assert reads(tmp_path)[7].store_bytes == 3
    assert list(table.rows_of(3)) == [7]


def test_a_process_number_that_is_used_again_counts_for_its_new_job(
    table: JobTable, tmp_path: Path
) -> None:
    """After some seconds the job of a number is looked up again."""
    jobs, now_s = {50: 7}, [100.0]
    counter = JobCounter(table, 1, lambda pid: jobs[pid], lambda: now_s[0])
    counter.add(50, Word.STORE_BYTES, 1)
    jobs[50] = 8
    counter.add(50, Word.STORE_BYTES, 1)
    now_s[0] += job_counters.REMEMBERED_S
    counter.add(50, Word.STORE_BYTES, 5)
    found = reads(tmp_path)
    assert (found[7].store_bytes, found[8].store_bytes) == (2, 5)


def test_jobs_beyond_the_rows_count_together_until_others_are_idle(
    table: JobTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then one of them takes the row of a job that has not read for an hour."""
    rows = ROWS - PROCESSES
    counter = counter_of(table, 1, {pid: pid for pid in range(1, rows + 100)})
    monkeypatch.setattr("time.time", lambda: 1000.0)
    for pid in range(1, rows + 3):
        counter.add(pid, Word.CACHE_BYTES, pid)
    found = reads(tmp_path)
    assert found[OTHERS].cache_bytes == rows + 1 + rows + 2
    assert found.keys() == {OTHERS, *range(1, rows + 1)}
    monkeypatch.setattr("time.time", lambda: 1001.0 + job_counters.IDLE_S)
    counter.add(rows + 50, Word.CACHE_BYTES, 4)
    found = reads(tmp_path)
    assert found[rows + 50].figures == (0, 4, 0, 0, 0, 0)
    assert 1 not in found
    assert 2 in found


def test_files_that_are_none_are_left_out(table: JobTable, tmp_path: Path) -> None:
    """Short ones, and those of another form, count nothing, and break nothing."""
    counter_of(table, 1, {50: 7}).add(50, Word.STORE_BYTES, 1)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for data in (b"", whole[:3], b"x" * len(whole), whole[:80]):
        file.write_bytes(data)
        assert reads(tmp_path) == {} if len(data) > 15 else not list(read_files(tmp_path))
    file.write_bytes(whole)
    assert reads(tmp_path)[7].store_bytes == 1


@contextmanager
def group_of_job(job: int) -> Iterator[Path]:
    """A control group as Slurm makes it, in any hierarchy where this machine lets us."""
    for root in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer")):
        top = root / f"slurm_test{os.getpid()}"
        made = [top, top / "uid_0", top / "uid_0" / f"job_{job}"]
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
            figures = directory_of(proxy.socket_path)
            figures.mkdir()
            try:
                mounts.mount(repo=REPO, workers=2, passthrough="off")
                (mounts.place / "theirs").read_bytes()
                script = f"echo $$ >{group}/cgroup.procs; cat {mounts.place}/mine | cksum"
                subprocess.run(["sh", "-c", script], check=True, timeout=60)
                found = reads(figures)
                assert found.keys() == {4711}
                assert sum(found[4711].figures) == len(files[b"mine"])
                assert found[4711].store_bytes > 0
            finally:
                mounts.close()
