"""What a job read, by the line of its epilog and by the metrics of its nodes."""

from __future__ import annotations

import re
import socket
from functools import partial

from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster
from tests.slurm.dataset import BIG_BYTES, Dataset
from tests.slurm.faults import run_full
from tests.support.proxy.scrape import Samples, labels_of, samples

ROOM_KIB = 32  # for the record of a job, and not for the counts of two workers
# A reader that lives until its job is known, as `cat` may not
READ_AND_WAIT = """
import os, sys, time
open(sys.argv[1], "rb").read()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""
_LINE = re.compile(r"job (\d+) read(?: at least)?: (.*)")


def reported(cluster: Cluster, node: str, job: int) -> dict[str, int]:
    """The figures of the epilog's line, once it is there."""
    path = cluster.folder / "log" / f"scripts-{node}"

    def found() -> dict[str, int] | None:
        lines = _LINE.findall(path.read_text() if path.exists() else "")
        words = next((words for number, words in lines if int(number) == job), None)
        return words and {key: int(n) for key, n in (word.split("=") for word in words.split())}

    cluster.until(lambda: bool(found()), f"the epilog's line of job {job} on {node}")
    return found() or {}


def scraped(cluster: Cluster, node: str) -> Samples:
    """/metrics of a node's proxy."""
    place = cluster.node(node).root / configs.RUN.relative_to("/") / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0]
    assert b"chunked" not in head
    return samples(body)


def has_read(cluster: Cluster, node: str, job: int, size_bytes: int) -> bool:
    """Whether a job has read so much on a node, by its metrics."""
    found = scraped(cluster, node).items()
    name, label = "lodefs_job_read_bytes_total", ("job", str(job))
    sources = [value for (one, labels), value in found if one == name and label in labels]
    return sum(sources) >= size_bytes


def test_what_a_job_read_is_told_by_its_epilog_on_each_node(
    cluster: Cluster, dataset: Dataset
) -> None:
    """No byte less, though another job reads the same mount meanwhile, which is told to the byte.
    Both nodes read what only the store had."""
    dataset.replace()
    cluster.set_prolog_options("")  # so that nothing is there before the job reads
    try:
        # By a process that lives until its job is known
        script = (
            f"read line < {dataset.directory}/version; echo $line; read go < $HOME/go-$SLURM_JOB_ID"
        )
        other = cluster.submit(script, "-N1", "-w", "n1", "-n1", dataset.option)
        cluster.output("mkfifo", cluster.folder / f"jobs/go-{other}")
        cluster.until(lambda: dataset.text in cluster.said(other), "its read")
        job = cluster.submit(
            f"srun python3 -c '{READ_AND_WAIT}' {dataset.directory}/big $HOME/gone-$SLURM_JOB_ID",
            "-N2", "-n2", "-w", "n1,n2", dataset.option,
        )  # fmt: skip
        for node in ("n1", "n2"):
            cluster.until(partial(has_read, cluster, node, job, BIG_BYTES), "all of it")
        cluster.output("touch", cluster.folder / f"jobs/gone-{job}")
        cluster.await_state(job, "COMPLETED")
        both = [reported(cluster, node, job) for node in ("n1", "n2")]
        labels = labels_of(job=str(other), source="store")
        found = scraped(cluster, "n1")
        cluster.output("sh", "-c", f"echo > {cluster.folder}/jobs/go-{other}")
        cluster.await_state(other, "COMPLETED")
        alone = reported(cluster, "n1", other)
    finally:
        cluster.set_prolog_options("--pin")
    for figures in both:
        sources = [figures[f"{name}_bytes"] for name in ("cache", "peers", "store")]
        assert BIG_BYTES <= sum(sources) <= 2 * BIG_BYTES, figures  # some are asked for twice
        assert figures["passthrough_opens"] == 0
    # What is read ahead of the job comes from the cache. Who reads first waits for the first bytes;
    # the other node may have fetched them by then, as the one from whom the first asks them.
    assert sum(figures["peers_bytes"] + figures["store_bytes"] for figures in both) > 0
    assert (
        sum(alone[f"{name}_bytes"] for name in ("cache", "peers", "store")) == len(dataset.text) + 1
    )
    assert found["lodefs_job_read_bytes_total", labels] == alone["store_bytes"]


def test_what_a_mount_without_room_to_count_brought_is_not_told_as_nothing(
    cluster: Cluster, dataset: Dataset
) -> None:
    """It is read all the same."""
    path = cluster.folder / "log" / "scripts-n1"
    with run_full(cluster, "n1", left_kib=ROOM_KIB):
        job = cluster.submit(dataset.read, "-w", "n1", "-n1", dataset.option)
        cluster.await_state(job, "COMPLETED")
        cluster.until(lambda: f"job {job} read" in path.read_text(), "the epilog's line")
    assert dataset.text in cluster.said(job)
    (line,) = (line for line in path.read_text().splitlines() if f"job {job} read" in line)
    assert "read: not known" in line or "read at least" in line


def test_files_that_the_kernel_reads_by_itself_are_told_as_opens(
    cluster: Cluster, dataset: Dataset
) -> None:
    """What is pinned on the node is opened with passthrough, where the kernel has it; its bytes
    are in no figure then."""
    hold = cluster.submit(f"cat {dataset.directory}/big | cksum; sleep 60", "-w", "n1", "-n1",
                          dataset.option)  # fmt: skip
    cluster.until(lambda: str(BIG_BYTES) in cluster.said(hold), "its read")
    path = f"{dataset.directory}/big"
    known = "$HOME/known-$SLURM_JOB_ID"  # by then; there may be nothing to see that by
    script = (
        f"getfattr -n user.lodefs.read_path {path}; (sleep 3; touch {known}) & "
        f"python3 -c '{READ_AND_WAIT}' {path} {known}"
    )
    job = cluster.submit(script, "-w", "n1", "-n1", dataset.option)
    cluster.await_state(job, "COMPLETED")
    figures = reported(cluster, "n1", job)
    cluster.output("scancel", str(hold))
    read = sum(figures[f"{name}_bytes"] for name in ("cache", "peers", "store"))
    assert read in (0, BIG_BYTES), figures  # 0: from memory, or by the kernel
    assert figures["passthrough_opened_bytes"] == figures["passthrough_opens"] * BIG_BYTES
