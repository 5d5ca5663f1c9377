"""Whatever is killed, stopped or gone under a job: it ends soon, and nothing is left of it.

The fixture ``cluster`` looks after each test for nodes that are not idle, mounts, processes, pins.
"""

from __future__ import annotations

import pytest

from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster
from tests.slurm import faults
from tests.slurm.dataset import Dataset

READ_ON = "while :; do cat {0}/big >/dev/null && echo once || sleep 0.2; done"
SURVIVED = [
    faults.nothing,
    faults.workers_killed,
    faults.proxies_killed,
    faults.proxies_stopped,
    faults.services_killed,
    faults.slurmds_killed,
    faults.store_away,
]
TASKS = 50


def reading(cluster: Cluster, dataset: Dataset, *words: str) -> int:
    """A job that reads on and on, on all nodes; it has begun."""
    script = f"srun sh -c '{READ_ON.format(dataset.directory)}'"
    job = cluster.submit(script, "-N3", dataset.option, *words)
    cluster.until(lambda: _reads(cluster, job) >= 3, "its reading")
    return job


@pytest.mark.parametrize("fault", SURVIVED)
def test_a_job_reads_on_and_is_cancelled(
    cluster: Cluster, dataset: Dataset, fault: faults.Fault
) -> None:
    """What is on the node is read whatever else of lodefs is away."""
    job = reading(cluster, dataset)
    with fault(cluster):
        before = _reads(cluster, job)
        cluster.until(lambda: _reads(cluster, job) > before + 3, "more reads")
        _cancel(cluster, job, fault.__name__)


@pytest.mark.parametrize("fault", [faults.mounts_killed, faults.all_killed])
def test_a_job_whose_mounts_are_killed_is_cancelled(
    cluster: Cluster, dataset: Dataset, fault: faults.Fault
) -> None:
    """It reads nothing any more (ENOTCONN), and ends like others."""
    job = reading(cluster, dataset)
    with fault(cluster):
        _cancel(cluster, job, fault.__name__)


def test_a_job_is_cancelled_while_it_waits_for_a_page(cluster: Cluster, dataset: Dataset) -> None:
    """No node has the data, since nothing is fetched ahead, and the proxies are stopped."""
    dataset.replace()
    cluster.set_prolog_options("")
    script = f"echo begun; cat $HOME/go; cat {dataset.directory}/big"
    cluster.output("rm", "-f", cluster.folder / "jobs/go")
    cluster.output("mkfifo", cluster.folder / "jobs/go")
    try:
        job = cluster.submit(script, "-N1", "-w", "n1", dataset.option)
        cluster.until(lambda: "begun" in cluster.said(job), "its begin")
        with faults.proxies_stopped(cluster):
            cluster.output("sh", "-c", f"echo went > {cluster.folder}/jobs/go")
            cluster.until(lambda: "went" in cluster.said(job), "its read")
            _cancel(cluster, job, "a page that does not come")
    finally:
        cluster.set_prolog_options("--pin")


def test_a_job_for_what_is_on_no_node_fails_while_the_store_is_away(
    cluster: Cluster, dataset: Dataset
) -> None:
    """It says why, and costs no node."""
    dataset.push()
    job = cluster.submit(dataset.read, "--hold", "-N2", dataset.option)
    with faults.store_away(cluster):
        cluster.output("scontrol", "release", str(job))
        cluster.await_state(job, "FAILED")
    assert "lodefs: error:" in cluster.said(job)
    assert dataset.text not in cluster.said(job)


def test_a_job_that_is_requeued_while_it_reads_begins_again(
    cluster: Cluster, dataset: Dataset
) -> None:
    """With the same mounts, made anew."""
    job = reading(cluster, dataset, "--open-mode=append", "--requeue")
    cluster.requeue(job)
    before = _reads(cluster, job)
    cluster.until(lambda: _reads(cluster, job) > before + 3, "its second run")
    assert cluster.field(job, "Restarts") == "1"
    _cancel(cluster, job, "requeued once")


def test_a_heterogeneous_job_is_cancelled(cluster: Cluster, dataset: Dataset) -> None:
    """All its components end."""
    one = [f"--wrap={READ_ON.format(dataset.directory)}", dataset.option]
    done = cluster.output("sbatch", "--parsable", f"--output={cluster.folder}/jobs/%j", "-N1",
                          dataset.option, ":", "-N1", *one)  # fmt: skip
    job = int(done)
    cluster.until(lambda: _reads(cluster, job) > 1, "its reading")
    _cancel(cluster, job, "heterogeneous")


def test_an_array_of_fifty_tasks_reads_one_commit(cluster: Cluster, dataset: Dataset) -> None:
    """Also where another one is pushed meanwhile; the record of each task names it."""
    before, commit = dataset.text, dataset.commit
    pattern = f"--output={cluster.folder}/jobs/fifty-%a"
    array = cluster.submit(dataset.read, f"--array=1-{TASKS}", pattern, dataset.option)
    folder = cluster.folder / "jobs"
    cluster.until(lambda: any(folder.glob("fifty-*")), "the first task")
    dataset.push()
    shown = cluster.output("scontrol", "--oneliner", "show", "job", str(array))
    assert shown.count(f"@{commit}:") == len(shown.splitlines())
    cluster.until(lambda: not cluster.output("squeue", "-h"), "the array's end", timeout_s=300)
    said = [path.read_text().strip() for path in folder.glob("fifty-*")]
    assert said == [before] * TASKS


def _reads(cluster: Cluster, job: int) -> int:
    return cluster.said(job).count("once")


def _cancel(cluster: Cluster, job: int, what: str) -> None:
    """Cancel a job, and wait until all its nodes are free; the seconds are shown at the end."""
    cluster.output("scancel", str(job))
    done = {"idle", "planned"}
    words = ("sinfo", "-h", "-N", "-n", ",".join(configs.NODES), "-o", "%T")
    cluster.ends[what] = cluster.until(
        lambda: not cluster.output("squeue", "-h") and {*cluster.output(*words).split()} <= done,
        "free nodes",
    )
    assert cluster.state(job) == "CANCELLED"
