"""However a job ends, and whatever it asked for: nodes stay idle, and nothing is left of it.

The fixture ``cluster`` looks for that after each test.
"""

from __future__ import annotations

import signal

import pytest

from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster
from tests.slurm.dataset import REPO, Dataset
from tests.slurm.faults import run_full
from tests.slurm.test_faults import reading


def test_a_time_limit(cluster: Cluster, dataset: Dataset) -> None:
    """A job that reads beyond its time limit."""
    job = reading(cluster, dataset)
    cluster.output("scontrol", "update", f"jobid={job}", "endtime=now+1", user="root")
    cluster.await_state(job, "TIMEOUT")


def test_slurmstepd_is_killed(cluster: Cluster, dataset: Dataset) -> None:
    """kill -9 of the processes that start and watch its tasks."""
    job = reading(cluster, dataset)
    cluster.output("pkill", "-9", "-f", rf"^slurmstepd: \[{job}\.0\]", user="root")
    cluster.call("pkill", "-9", "-u", configs.USER, "cat", user="root")  # nobody waits for them
    cluster.output("scancel", str(job))
    cluster.await_state(job, "FAILED", "CANCELLED")


def test_a_job_goes_on_while_the_mount_service_is_killed(
    cluster: Cluster, dataset: Dataset
) -> None:
    """Its mounts are processes of their own; another service, which is started, knows them."""
    script = f"{dataset.read}; read go < $HOME/go-$SLURM_JOB_ID; {dataset.read}"
    job = cluster.submit(script, "-w", "n1", dataset.option)
    cluster.output("mkfifo", cluster.folder / f"jobs/go-{job}")
    cluster.until(lambda: dataset.text in cluster.said(job), "its first read")
    cluster.signal("mounter-n1", signal.SIGKILL)
    cluster.output("sh", "-c", f"echo > {cluster.folder}/jobs/go-{job}")
    cluster.await_state(job, "COMPLETED")
    assert cluster.said(job).splitlines() == [dataset.text] * 2


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("team/nosuch@main:/tmp/x", "there is no repository team/nosuch that you may read"),
        (f"{REPO}@nosuch:/tmp/x", "nosuch"),
        (f"{REPO}@main:/etc/x", "may not mount over the system"),
        (f"{REPO}@main:/tmp/../etc", "'..'"),
        (f"{REPO}@main", "names no directory"),
        ("", "no dataset is named"),
        (f"{REPO}@main:/tmp/x,{REPO}@main:/tmp/x/y", "lies in the other"),
        (f"{REPO}:nodir:/tmp/x", "nodir"),
        (f"{REPO}@main:/", "may not mount over the system"),
        (f"{REPO}@main:/proc/1", "may not mount over the system"),
        (",".join(f"{REPO}@main:/tmp/x{n}" for n in range(1000)), "64"),
    ],
)
def test_what_cannot_be_is_refused_at_submission_with_the_reason(
    cluster: Cluster, dataset: Dataset, asked: str, why: str
) -> None:
    """What cannot be is refused at submission with the reason."""
    done = cluster.call("srun", f"--lodefs={asked}", "true")
    assert done.returncode != 0
    assert why in done.stderr
    assert dataset.text not in done.stdout


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        (f"lodefs={REPO}@main:/tmp/x", "was not fixed when the job was submitted"),
        (f"lodefs=team/nosuch@{'0' * 64}:/tmp/x", "team/nosuch"),
        (f"lodefs={REPO}@{'0' * 64}:/usr/lib", "may not mount over the system"),
        ("lodefs=,,", "no dataset is named"),
    ],
)
def test_a_comment_that_nobody_has_checked_fails_the_job_and_no_node(
    cluster: Cluster, dataset: Dataset, comment: str, why: str
) -> None:
    """A comment that nobody has checked fails the job and no node."""
    job = cluster.submit(dataset.read, "--hold", "-N2")
    cluster.output("scontrol", "update", f"jobid={job}", f"comment={comment}")
    cluster.output("scontrol", "release", str(job))
    cluster.await_state(job, "FAILED")
    assert why in cluster.said(job)


@pytest.mark.parametrize("kind", ["full", "link", "file"])
def test_a_directory_that_a_mount_would_spoil_fails_the_job(
    cluster: Cluster, dataset: Dataset, kind: str
) -> None:
    """A directory that a mount would spoil fails the job."""
    place = cluster.folder / "jobs" / f"place-{kind}"
    if kind == "full":
        place.mkdir()
        (place / "mine").touch()
    elif kind == "link":
        place.symlink_to("/etc")
    else:
        place.touch()
    done = cluster.call("srun", f"--lodefs={REPO}@main:{place}", "ls", place)
    assert done.returncode != 0
    why = {"full": "is not empty", "link": "may not mount over", "file": "Not a directory"}[kind]
    assert why in done.stderr
    assert dataset.text not in done.stdout


def test_a_directory_may_have_any_name(cluster: Cluster, dataset: Dataset) -> None:
    """With blanks, a comma, colons, a quote."""
    name = f"{cluster.folder}/jobs/a b, c: 'd'"
    asked = f"{REPO}@main:{name}".replace(",", "\\,")
    done = cluster.call("srun", f"--lodefs={asked}", "cat", f"{name}/version")
    assert done.stdout.strip() == dataset.text, done.stderr


def test_a_full_run_fails_the_job_and_no_node(cluster: Cluster, dataset: Dataset) -> None:
    """It says so; what was there stays as it was."""
    with run_full(cluster, "n1"):
        done = cluster.call("srun", "-w", "n1", dataset.option, *dataset.read.split())
        assert done.returncode != 0
        assert "lodefs: error:" in done.stderr
        assert dataset.text not in done.stdout
        assert cluster.output("sinfo", "-h", "-n", "n1", "-o", "%T") in ("idle", "completing")


def test_a_step_cannot_ask_for_more_than_its_job(cluster: Cluster, dataset: Dataset) -> None:
    """A step cannot ask for more than its job."""
    more = f"srun --lodefs={REPO}@main:/tmp/more true"
    job = cluster.submit(f"{more}; {dataset.read}", dataset.option)
    cluster.await_state(job, "COMPLETED")
    assert "datasets belong to a whole job" in cluster.said(job)
    assert dataset.text in cluster.said(job)


def test_a_proxy_that_does_not_answer_fails_jobs_and_is_told_by_the_health_check(
    cluster: Cluster, dataset: Dataset
) -> None:
    """Stopped by SIGSTOP, after the job was submitted. The node is drained on purpose."""
    dataset.push()  # a commit that no mount has
    job = cluster.submit(dataset.read, "--hold", "-w", "n1", dataset.option)
    cluster.signal("proxy-n1", signal.SIGSTOP)
    try:
        cluster.output("scontrol", "release", str(job))
        cluster.await_state(job, "FAILED")
        assert "lodefs: error:" in cluster.said(job)
        assert cluster.output("sinfo", "-h", "-n", "n1", "-o", "%T") in ("idle", "completing")
        _check_health(cluster)
        cluster.until(lambda: "drain" in _state_of(cluster, "n1"), "a drained node")
        assert "lodefs: the proxy" in _state_of(cluster, "n1")
    finally:
        cluster.signal("proxy-n1", signal.SIGCONT)
    _check_health(cluster)


def test_what_a_job_without_an_epilog_left_is_swept(cluster: Cluster, dataset: Dataset) -> None:
    """A prolog for a job that Slurm does not know, as a node that failed has it in its /run."""
    comment = f"lodefs={REPO}@{dataset.commit}:{dataset.directory}"
    environ = ["SLURM_JOB_ID=999999", "SLURM_JOB_UID=5", f"SLURM_JOB_COMMENT={comment}"]
    words = ["env", "SLURMD_NODENAME=n1", *environ, "/etc/slurm/prolog.d/50-lodefs.sh"]
    cluster.output(*words, user="root", node="n1")
    assert any("999999" in left for left in cluster.leftovers())
    record = configs.RUN / "jobs/999999.json"
    cluster.output("touch", "-d", "2 hours ago", record, user="root", node="n1")
    _check_health(cluster)


def _check_health(cluster: Cluster) -> None:
    words = ["env", "SLURMD_NODENAME=n1", "/etc/slurm/health.sh"]
    cluster.call(*words, user="root", node="n1")


def _state_of(cluster: Cluster, node: str) -> str:
    return cluster.output("sinfo", "-h", "-n", node, "-o", "%T %E")
