"""What users and machines do that no mount likes: a device that is closed, a umount in a job.

The fixture ``cluster`` looks after each test for nodes that are not idle, mounts, processes, pins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.slurm.cluster import LODEFS, Cluster
from tests.slurm.dataset import REPO, Dataset

UMOUNTS = ("umount {0}", "umount -l {0}", "fusermount3 -u {0}", "unshare -rm umount -l {0}")


@pytest.fixture
def place(cluster: Cluster) -> str:
    """A directory for `lodefs run`, the user's own."""
    found = Path(cluster.folder, "jobs/run-place")
    cluster.output("mkdir", "-p", found)
    return str(found)


@contextmanager
def device_of_root_alone(cluster: Cluster) -> Iterator[None]:
    """/dev/fuse of mode 0600, as machines without udev's rule have it."""
    cluster.output("chmod", "600", "/dev/fuse", user="root", node="n1")
    try:
        yield
    finally:
        cluster.output("chmod", "666", "/dev/fuse", user="root", node="n1")


def test_a_device_of_root_alone_is_enough_for_datasets_of_jobs(
    cluster: Cluster, dataset: Dataset
) -> None:
    """Root mounts them; a user of the node cannot open the device."""
    with device_of_root_alone(cluster):
        words = f"{dataset.read}; cat /dev/fuse"
        done = cluster.call("srun", "-w", "n1", dataset.option, "sh", "-c", words)
    assert done.stdout.strip() == dataset.text
    assert "Permission denied" in done.stderr


def test_a_mount_of_a_users_own_says_that_the_device_is_closed(
    cluster: Cluster, dataset: Dataset, place: str
) -> None:
    """Before the command begins, with the way out."""
    words = ("srun", "-w", "n1", LODEFS, "run", f"{REPO}@main:{place}", "--", "cat")
    with device_of_root_alone(cluster):
        done = cluster.call(*words, f"{place}/version")
    assert done.returncode != 0
    assert "/dev/fuse" in done.stderr
    assert "0666" in done.stderr, done.stderr
    assert cluster.output(*words, f"{place}/version") == dataset.text


@pytest.mark.parametrize("umount", UMOUNTS)
def test_a_job_cannot_unmount_its_dataset(cluster: Cluster, dataset: Dataset, umount: str) -> None:
    """It goes on reading it, and so does another job of the node."""
    other = cluster.submit(f"{dataset.read}; read go < $HOME/go-$SLURM_JOB_ID; {dataset.read}",
                           "-w", "n1", "-n1", dataset.option)  # fmt: skip
    cluster.output("mkfifo", cluster.folder / f"jobs/go-{other}")
    cluster.until(lambda: dataset.text in cluster.said(other), "its first read")
    script = f"{umount.format(dataset.directory)} && echo gone; {dataset.read}"
    done = cluster.call("srun", "-w", "n1", "-n1", dataset.option, "sh", "-c", script)
    assert done.stdout.strip() == dataset.text, done.stderr
    cluster.output("sh", "-c", f"echo > {cluster.folder}/jobs/go-{other}")
    cluster.await_state(other, "COMPLETED")
    assert cluster.said(other).splitlines() == [dataset.text] * 2


def test_a_command_of_lodefs_run_may_unmount_and_others_keep_theirs(
    cluster: Cluster, dataset: Dataset, place: str
) -> None:
    """Its own mount is gone then, also by force; a job with the same dataset reads on."""
    go = cluster.folder / "jobs"
    other = cluster.submit(f"{dataset.read}; read go < $HOME/go-$SLURM_JOB_ID; {dataset.read}",
                           "-w", "n1", "-n1", dataset.option)  # fmt: skip
    cluster.output("mkfifo", go / f"go-{other}")
    cluster.until(lambda: dataset.text in cluster.said(other), "its first read")
    words = f"cat {place}/version; umount -f -l {place}; ls {place} | wc -l"
    run = (LODEFS, "run", f"{REPO}@main:{place}", "--", "sh", "-c", words)
    done = cluster.call("srun", "-w", "n1", "-n1", *run)
    said = done.stdout.split("\n")
    assert said[0] == dataset.text
    assert said[1] in ("0", "2"), done.stderr  # it may, where the namespace is its own
    cluster.output("sh", "-c", f"echo > {go}/go-{other}")
    cluster.await_state(other, "COMPLETED")
    assert cluster.said(other).splitlines() == [dataset.text] * 2
