"""burst_buffer.lua: data is on a job's nodes, and pinned, before its script begins."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster
from tests.slurm import faults
from tests.slurm.dataset import Dataset

WARM = "#BB_LUA lodefs"


def test_a_wrong_dataset_is_refused_at_submission(cluster: Cluster, dataset: Dataset) -> None:
    """With lodefs' text."""
    path = cluster.folder / "jobs/refused"
    path.write_text(f"#!/bin/sh\n{WARM}=team/nosuch@main:/tmp/x\ntrue\n")
    done = cluster.call("sbatch", path)
    assert done.returncode != 0
    assert "no repository team/nosuch" in done.stderr
    assert dataset.text not in done.stdout


def test_what_its_user_may_not_read_a_job_does_not_get(cluster: Cluster, dataset: Dataset) -> None:
    """Though the controller could; its records name no commit of it."""
    secret = dataset.push_to(f"{configs.SECRET}/cats")
    script = f"{WARM}={configs.SECRET}/cats@main:{dataset.directory}\ntrue"
    job = cluster.submit(script, "-w", "n1")
    hidden = f"there is no repository {configs.SECRET}/cats that you may read"
    shown = partial(cluster.output, "scontrol", "show", "job", str(job))
    cluster.until(lambda: hidden in shown(), "its reason", 120)
    assert secret not in shown()
    cluster.output("scancel", str(job))


@pytest.mark.parametrize("by_script", [True, False])
def test_exactly_the_nodes_of_a_job_have_its_data_when_it_begins(
    cluster: Cluster, dataset: Dataset, by_script: bool
) -> None:
    """The store is gone by then. The job's record names the commit."""
    dataset.replace()
    words = [] if by_script else [dataset.option]
    asked = f"{WARM}={dataset.branch}" if by_script else WARM
    gone = f"{cluster.folder}/jobs/gone"
    script = f"{asked}\necho begun; cat {gone}; cat {dataset.directory}/big | wc -c; sleep 60"
    cluster.output("mkfifo", gone)
    cluster.set_prolog_options("")
    try:
        job = cluster.submit(script, "-N2", "-w", "n1,n2", *words)
        cluster.until(lambda: "begun" in cluster.said(job), "its begin", timeout_s=120)
        pins = [left for left in cluster.leftovers() if f"pin of ['slurm-{job}']" in left]
        assert [pin.partition(":")[0] for pin in pins] == ["n1", "n2"]
        assert f"@{dataset.commit}:" in cluster.field(job, "Comment")
        with faults.store_away(cluster):
            cluster.output("sh", "-c", f"echo gone >{gone}")
            cluster.until(lambda: "3000001" in cluster.said(job), "its reading")
        cluster.output("scancel", str(job))
    finally:
        cluster.output("rm", gone)
        cluster.set_prolog_options("--pin")


def test_a_warming_that_fails_is_the_jobs_reason(cluster: Cluster, dataset: Dataset) -> None:
    """And costs no node."""
    dataset.replace()
    job = _submitted(cluster, dataset, "--hold")
    with faults.store_away(cluster):
        cluster.output("scontrol", "release", str(job))
        cluster.until(lambda: "pre_run error" in _reason(cluster, job), "its reason", 150)
        assert "lodefs: error:" in cluster.field(job, "SystemComment")
        states = cluster.output("sinfo", "-h", "-N", "-o", "%T").split()
        assert not any("drain" in state or "down" in state for state in states)
        cluster.output("scancel", str(job))
        cluster.until(lambda: not cluster.output("squeue", "-h"), "its end")


def test_a_job_that_is_cancelled_while_it_is_warmed_leaves_nothing(
    cluster: Cluster, dataset: Dataset
) -> None:
    """One node does not answer; the others have pinned it."""
    dataset.replace()
    cluster.signal("proxy-n3", signal.SIGSTOP)
    try:
        job = _submitted(cluster, dataset)
        cluster.until(lambda: _is_pinned(cluster, "n1", job), "a pin", timeout_s=120)
        cluster.output("scancel", str(job))
        cluster.until(lambda: not _is_pinned(cluster, "n1", job), "no pin")
    finally:
        cluster.signal("proxy-n3", signal.SIGCONT)


def test_a_controller_that_is_killed_while_a_job_is_warmed(
    cluster: Cluster, dataset: Dataset
) -> None:
    """Another one has it warmed again, or ends it; either way nothing is left."""
    dataset.replace()
    cluster.signal("proxy-n3", signal.SIGSTOP)
    try:
        job = _submitted(cluster, dataset)
        cluster.until(lambda: _is_pinned(cluster, "n1", job), "a pin", timeout_s=120)
        # Of a job that it has not saved yet, the next controller knows nothing
        saved = ("grep", "-q", dataset.commit, "/var/spool/slurm/ctld/job_state")
        cluster.until(lambda: not cluster.call(*saved, user="root").returncode, "its saved state")
        cluster.signal("slurmctld", signal.SIGKILL)
        cluster.until(lambda: not cluster.call("scontrol", "ping").returncode, "a controller")
    finally:
        cluster.signal("proxy-n3", signal.SIGCONT)
    ends = ("COMPLETED", "CANCELLED", "FAILED")
    cluster.until(
        lambda: cluster.state(job) in ends or "error" in _reason(cluster, job), "its end", 120
    )


def _submitted(cluster: Cluster, dataset: Dataset, *words: str) -> int:
    return cluster.submit(f"{WARM}\n{dataset.read}", "-N3", dataset.option, *words)


def _is_pinned(cluster: Cluster, node: str, job: int) -> bool:
    assert node in configs.NODES
    owner = f"'slurm-{job}'"
    return any("pin of" in one and owner in one for one in cluster.node(node).remains())


def _reason(cluster: Cluster, job: int) -> str:
    return cluster.output("squeue", "-h", "-j", str(job), "-o", "%r")
