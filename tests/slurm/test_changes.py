"""What jobs of a real Slurm change in datasets becomes one commit, or is kept, as they asked.

The fixture ``cluster`` looks after each test for mounts, records, and changes that were not settled
or given up.
"""

from __future__ import annotations

import signal
from functools import partial

import pytest

from loadtests.slurm import configs
from loadtests.slurm.cluster import LODEFS, Cluster
from tests.slurm import faults
from tests.slurm.changed import ALWAYS, REPO, WRITER, Changed
from tests.slurm.dataset import Dataset
from tests.support.chunkstore.child_process import ChildError


def test_a_job_that_ends_well_makes_one_commit(cluster: Cluster, changed: Changed) -> None:
    """Of what its script and its steps have written, by its user; other nodes of it see the base,
    read-only. Nothing of the node's settings reaches it."""
    place = changed.directory
    script = (
        f"echo $SLURM_JOB_ID > {place}/job; srun -N1 -n1 -w n1 sh -c 'id -un > {place}/who'\n"
        f"srun -N1 -n1 -w n2 touch {place}/other || echo only the first node\n"
        "env | grep -c LODEFS_CONFIG || true"
    )
    job = cluster.submit(script, changed.option(), "-N2", "-w", "n1,n2")
    cluster.await_state(job, "COMPLETED")
    changed.await_commit(job)
    assert "Read-only file system" in cluster.said(job)
    assert "only the first node\n0\n" in cluster.said(job)
    assert (changed.read("job"), changed.read("who")) == (f"{job}\n", f"{configs.USER}\n")
    cluster.until(lambda: "are commit " in cluster.said(job), "what its output says")
    assert len([one for one in changed.messages() if f'Slurm job {job}"' in one]) == 1


def _wrote(cluster: Cluster, job: int) -> bool:
    return "wrote" in cluster.said(job)


def _fails(cluster: Cluster, job: int) -> None:
    cluster.await_state(job, "FAILED")


def _is_cancelled(cluster: Cluster, job: int) -> None:
    cluster.output("scancel", str(job))
    cluster.await_state(job, "CANCELLED")


def _is_late(cluster: Cluster, job: int) -> None:
    cluster.output("scontrol", "update", f"jobid={job}", "endtime=now+1", user="root")
    cluster.await_state(job, "TIMEOUT")


def _slurmd_is_killed(cluster: Cluster, job: int) -> None:
    """And the node's services, in mid-job; the job is cancelled then."""
    for name in (f"slurmd-{WRITER}", f"mounter-{WRITER}", f"proxy-{WRITER}"):
        cluster.signal(name, signal.SIGKILL)
    _is_cancelled(cluster, job)


ENDS = {
    "fails": ("exit 3", _fails),
    "is cancelled": ("sleep 600", _is_cancelled),
    # By srun, whose tasks get SIGTERM twice; who ignores it is killed after KillWait.
    "ignores a time limit": ("srun sh -c 'trap : TERM; while :; do sleep 1; done'", _is_late),
    "loses its services": ("sleep 600", _slurmd_is_killed),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_ends_badly_commits_nothing_unless_it_always_does(
    cluster: Cluster, changed: Changed, end: str
) -> None:
    """What is not committed is kept on the node, where root finds it and commits it."""
    last, await_end = ENDS[end]
    script = f"echo $SLURM_JOB_ID > {changed.directory}/$1; echo wrote\n{last}"
    jobs = {more: changed.submit(f"set -- bad{more}\n{script}", more) for more in ("", ALWAYS)}
    for job in jobs.values():
        cluster.until(partial(_wrote, cluster, job), "its writing")
    for job in jobs.values():
        await_end(cluster, job)
    changed.await_commit(jobs[ALWAYS])
    place = changed.await_kept(jobs[""])
    cluster.until(lambda: "are kept in" in cluster.said(jobs[""]), "what its output says")
    assert not any(f'Slurm job {jobs[""]}"' in one for one in changed.messages())
    cluster.output("sh", "-c", f"{root_settings(cluster)} {LODEFS} unmount --commit {place}",
                   user="root", node=WRITER)  # fmt: skip
    assert changed.read("bad") == f"{jobs['']}\n"


def test_never_commits_nothing(cluster: Cluster, changed: Changed) -> None:
    """And keeps it."""
    job = changed.submit(f"rm {changed.directory}/version", ",commit=never")
    cluster.await_state(job, "COMPLETED")
    changed.discard(changed.await_kept(job))


def test_a_branch_of_its_own(cluster: Cluster, changed: Changed) -> None:
    """Is made where there is none; of a directory of the repository, too."""
    asked = f"--lodefs={REPO}@main:{changed.directory}:rw=run-42"
    job = cluster.submit(f"echo new > {changed.directory}/new", asked, "-w", WRITER)
    cluster.await_state(job, "COMPLETED")
    changed.await_commit(job, "run-42")
    assert changed.read("new", "run-42") == "new\n"


def test_two_jobs_of_one_branch(cluster: Cluster, changed: Changed) -> None:
    """Both from one base: what they changed apart is in the branch; a conflict is named, and kept
    on the node of the second."""
    go = cluster.folder / "jobs"
    script = (
        f"echo $1 > {changed.directory}/$1; echo $1 > {changed.directory}/both; cat $HOME/go-$1"
    )
    cluster.output("mkfifo", go / "go-a", go / "go-b", go / "go-c")
    asked = changed.option()
    only = f"echo c > {changed.directory}/c; cat $HOME/go-c"
    jobs = {
        "a": cluster.submit(f"set -- a\n{script}", asked, "-w", "n1", "-n1"),
        "b": cluster.submit(f"set -- b\n{script}", asked, "-w", "n2", "-n1"),
        "c": cluster.submit(only, asked, "-w", "n3", "-n1"),
    }
    for name in ("a", "c"):
        cluster.output("sh", "-c", f"echo > {go}/go-{name}")
        changed.await_commit(jobs[name])
    cluster.output("sh", "-c", f"echo > {go}/go-b")
    place = changed.await_kept(jobs["b"], "n2")
    cluster.until(lambda: "are not committed" in cluster.said(jobs["b"]), "its conflict")
    assert (changed.read("both"), changed.read("c")) == ("a\n", "c\n")
    changed.discard(place, "n2")


def test_a_requeued_job_commits_what_its_last_run_changed(
    cluster: Cluster, changed: Changed
) -> None:
    """What the first run changed is kept."""
    script = (
        f"echo $SLURM_RESTART_COUNT > {changed.directory}/run-$SLURM_RESTART_COUNT; echo wrote\n"
        "[ $SLURM_RESTART_COUNT ] || sleep 600"
    )
    job = changed.submit(script, "", "--requeue", "--open-mode=append")
    cluster.until(lambda: "wrote" in cluster.said(job), "its first run")
    cluster.requeue(job)
    cluster.await_state(job, "COMPLETED")
    changed.await_commit(job)
    changed.discard(changed.await_kept(job))
    assert changed.read("run-1") == "1\n"
    with pytest.raises(ChildError):
        changed.read("run-")


def test_a_commit_that_fails_is_made_later(cluster: Cluster, changed: Changed) -> None:
    """The store is away when the job ends; the epilog's process is killed; the health check does
    it. A second epilog changes nothing."""
    job = changed.submit(
        f"echo $SLURM_JOB_ID > {changed.directory}/late; echo wrote; cat $HOME/go-late"
    )
    cluster.output("mkfifo", cluster.folder / "jobs/go-late")
    cluster.until(lambda: "wrote" in cluster.said(job), "its writing")
    with faults.store_away(cluster):
        cluster.output("sh", "-c", f"echo > {cluster.folder}/jobs/go-late")
        cluster.await_state(job, "COMPLETED")
        command = f"slurm commit {job}"
        cluster.output("pkill", "-9", "-f", command, user="root", node=WRITER)
        assert changed.kept()
    words = ("env", f"SLURMD_NODENAME={WRITER}", f"SLURM_JOB_ID={job}")
    cluster.output(*words, "/etc/slurm/epilog.d/50-lodefs.sh", user="root", node=WRITER)
    cluster.call(*words, "/etc/slurm/health.sh", user="root", node=WRITER)
    changed.await_commit(job)
    assert len([one for one in changed.messages() if f'Slurm job {job}"' in one]) == 1


def test_after_a_reboot_changes_are_kept(cluster: Cluster, changed: Changed) -> None:
    """Also of a job that always commits. /run is empty then, nothing is mounted, and the boot has
    another id, which is the part that can be had here."""
    job = changed.submit(f"echo 1 > {changed.directory}/boot; echo wrote; sleep 600", ALWAYS)
    cluster.until(lambda: "wrote" in cluster.said(job), "its writing")
    boot = cluster.folder / "boot_id"
    boot.write_text("another boot")
    over = "/proc/sys/kernel/random/boot_id"
    cluster.output("mount", "--bind", boot, over, user="root", node=WRITER)
    try:
        cluster.output("scancel", str(job))
        place = changed.await_kept(job)
    finally:
        cluster.output("umount", over, user="root", node=WRITER)
    changed.discard(place)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("team/cats@main:{0}:rw", "you may read it, but jobs of yours may not commit to it"),
        (f"{REPO}@v1:{{0}}:rw", "is a tag of"),
    ],
)
def test_what_a_user_may_not_change_is_refused_before_the_job_starts(
    cluster: Cluster, dataset: Dataset, changed: Changed, asked: str, why: str
) -> None:
    """By the node, with the rules of groups."""
    if "@v1" in asked:
        cluster.lodefs("tag", REPO, "v1")
    done = cluster.call("srun", f"--lodefs={asked.format(dataset.directory)}", "echo", "ran")
    assert done.returncode != 0
    assert why in done.stderr
    assert "ran" not in done.stdout


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (":rw,commit=often", "write one of on-success, always, never"),
        (",commit=always", "is for a dataset that takes changes"),
    ],
)
def test_mistakes_are_told_at_submission(
    cluster: Cluster, dataset: Dataset, more: str, why: str
) -> None:
    """With the reason."""
    done = cluster.call("srun", f"--lodefs={REPO}@main:{dataset.directory}{more}", "true")
    assert done.returncode != 0
    assert why in done.stderr


def test_no_other_user_of_the_node_sees_changes(cluster: Cluster, changed: Changed) -> None:
    """Neither where they are mounted nor where they lie; the job's user by the job alone."""
    job = changed.submit(f"echo 1 > {changed.directory}/mine; echo wrote; sleep 600", ALWAYS)
    cluster.until(lambda: "wrote" in cluster.said(job), "its writing")
    for user in ("daemon", configs.USER):
        for place in (configs.RUN / "changes", configs.CHANGES / "writable"):
            done = cluster.call("ls", place, user=user, node=WRITER)
            assert "Permission denied" in done.stderr
    cluster.output("scancel", str(job))
    changed.await_commit(job)


def root_settings(cluster: Cluster) -> str:
    """What root of a node has set."""
    return f"LODEFS_CONFIG={cluster.folder}/{WRITER}.toml"
