"""Users who mean it, and users who do not care: their changes are committed once or kept, the other
jobs of the node go on, and root's processes do nothing that the user could not do.

The fixture ``cluster`` looks after each test for what is left on the nodes.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from functools import partial

from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster
from tests.slurm.changed import ALWAYS, REPO, WRITER, Changed

SMALL = configs.CHANGES / "small"
TASKS, CANCELLED, KILLS = 6, 6, 8
DEPTH, NAMES = 1500, 20_000
EVERYTHING = f"""
import os, stat
os.makedirs("many"), os.makedirs("closed"), os.makedirs("odd")
for number in range({NAMES}):
    open(f"many/{{number}}", "w").close()
for name in (b"line\\nfeed", b"\\x1b[2J", b"no\\xffutf8", b"a" * 255):
    open(b"odd/" + name, "w").close()
os.symlink("/etc/shadow", "odd/out"), os.symlink("../" * 30 + "root", "odd/up")
open("odd/setuid", "w").write("mine"), os.chmod("odd/setuid", 0o6755)
os.mkfifo("odd/\\x1b[31mfifo"), open("closed/file", "w").write("closed")
os.chmod("closed/file", 0), os.chmod("closed", 0)
for _ in range({DEPTH}):
    os.mkdir("deeper"), os.chdir("deeper")
open("end", "w").write("the end")
"""
FILL = """
import os
try:
    for number in range(10_000):
        open(f"small-{number}", "w").write("x")
except OSError as error:
    print("wrote until", error.strerror)
"""


def committed(changed: Changed, job: int) -> int:
    """How many commits a job has made."""
    return sum(json.loads(one)["message"] == f"Slurm job {job}" for one in changed.messages())


def are_settled(cluster: Cluster) -> bool:
    """Whether no node has changes of jobs of which nothing was decided."""
    words = ("ls", configs.CHANGES / "slurm")
    return not any(cluster.call(*words, user="root", node=name).stdout for name in configs.NODES)


def check_health(cluster: Cluster) -> None:
    words = ("env", f"SLURMD_NODENAME={WRITER}", "/etc/slurm/health.sh")
    cluster.call(*words, user="root", node=WRITER)


def in_python(changed: Changed, script: str) -> str:
    return f"cd {changed.directory} && /usr/bin/python3 - <<'PYTHON'\n{script}\nPYTHON\necho wrote"


def test_whatever_a_user_makes_is_committed(cluster: Cluster, changed: Changed) -> None:
    """Deep trees, many names, odd ones, symlinks that lead out, set-id bits, closed directories;
    what no commit can hold is named, and its name moves nobody's cursor."""
    job = changed.submit(in_python(changed, EVERYTHING), ALWAYS)
    cluster.await_state(job, "COMPLETED")
    changed.await_commit(job)
    cluster.until(lambda: "are commit " in cluster.said(job), "what its output says")
    assert "left out: odd/\\x1b[31mfifo" in cluster.said(job)
    assert changed.read("closed/file") == "closed"
    assert changed.read("/".join(["deeper"] * DEPTH + ["end"])) == "the end"
    listed = cluster.lodefs("ls", f"{REPO}@main:odd").splitlines()
    assert any("/etc/shadow" in line for line in listed) or "out" in " ".join(listed)
    remove = f"cd {changed.directory} && chmod 700 closed; rm -rf many closed odd deeper"
    again = changed.submit(remove)
    cluster.await_state(again, "COMPLETED")
    changed.await_commit(again)


def test_a_file_that_no_disk_could_hold_is_kept(cluster: Cluster, changed: Changed) -> None:
    """At once, and a job beside it is committed."""
    sparse = changed.submit(f"truncate -s 8191P {changed.directory}/sparse", ALWAYS)
    other = changed.submit(f"echo 1 > {changed.directory}/beside", ALWAYS)
    for job in (sparse, other):
        cluster.await_state(job, "COMPLETED")
    changed.await_commit(other)
    place = changed.await_kept(sparse)
    cluster.until(lambda: "truncate or remove it" in cluster.said(sparse), "what its output says")
    assert not committed(changed, sparse)
    changed.discard(place)


def test_a_quota_is_told_once(cluster: Cluster, changed: Changed) -> None:
    """However often the health check tries again; with a larger one it commits."""
    cluster.lodefs("quota", REPO, "--size-bytes-max", "4000000")
    try:
        job = changed.submit(f"head -c 90000000 /dev/urandom > {changed.directory}/large", ALWAYS)
        cluster.await_state(job, "COMPLETED")
        cluster.output("pkill", "-9", "-f", f"slurm commit {job}", user="root", node=WRITER)
        for _ in range(2):
            check_health(cluster)
            cluster.until(lambda: "the quota of" in cluster.said(job), "what its output says")
        assert cluster.said(job).count("the quota of") == 1
    finally:
        cluster.lodefs("quota", REPO, "--clear")
    check_health(cluster)
    changed.await_commit(job)


def test_a_disk_without_inodes(cluster: Cluster, changed: Changed) -> None:
    """The job sees that it is full; what it has written is committed all the same."""
    limits = ("mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=400,mode=700", "small")
    cluster.output("mkdir", SMALL, user="root", node=WRITER)
    cluster.output(*limits, SMALL, user="root", node=WRITER)
    cluster.set_prolog_options(f"--changes={SMALL}")
    try:
        job = changed.submit(in_python(changed, FILL), ALWAYS)
        cluster.await_state(job, "COMPLETED")
        assert "No space left" in cluster.said(job)
        changed.await_commit(job)
        assert changed.read("small-0") == "x"
        cluster.until(partial(are_settled, cluster), "its settling")
    finally:
        cluster.set_prolog_options("--pin")
        cluster.output("umount", SMALL, user="root", node=WRITER)
        cluster.output("rmdir", SMALL, user="root", node=WRITER)


def test_tasks_of_an_array_commit_once_each(cluster: Cluster, changed: Changed) -> None:
    """At the same time, to one branch, from one base."""
    before = len(changed.messages())
    script = f"echo 1 > {changed.directory}/task-$SLURM_ARRAY_TASK_ID"
    cluster.submit(script, changed.option(), f"--array=1-{TASKS}", "-n1")
    cluster.until(lambda: len(changed.messages()) == before + TASKS, "their commits", 240)
    cluster.until(partial(are_settled, cluster), "their settling")
    assert len(changed.messages()) == before + TASKS
    for number in range(1, TASKS + 1):
        assert changed.read(f"task-{number}") == "1\n"


def test_jobs_that_are_cancelled_at_any_moment(cluster: Cluster, changed: Changed) -> None:
    """Before their prolog, in it, while they write, in their epilog: each has one commit or
    none."""
    chance = random.Random(28)
    script = (
        f"mkdir {changed.directory}/of-$SLURM_JOB_ID; for i in $(seq 400); do "
        f"echo $i > {changed.directory}/of-$SLURM_JOB_ID/$i; done; echo wrote"
    )
    jobs = [cluster.submit(script, changed.option(ALWAYS), "-n1") for _ in range(CANCELLED)]
    for job in chance.sample(jobs, CANCELLED):
        threading.Event().wait(chance.uniform(0, 1.5))
        cluster.call("scancel", str(job))
    cluster.until(lambda: not cluster.output("squeue", "-h"), "their end", 180)
    cluster.until(partial(are_settled, cluster), "their settling", 180)
    made = Counter(json.loads(one)["message"] for one in changed.messages())
    for job in jobs:
        assert made[f"Slurm job {job}"] == ("are commit" in cluster.said(job))


def test_services_that_are_killed_while_changes_are_committed(
    cluster: Cluster, changed: Changed
) -> None:
    """The process that commits, the proxy and the mount service, again and again: there is one
    commit, with all changes, and the user hears of it."""
    chance = random.Random(28)
    script = f"for i in $(seq 500); do echo $i > {changed.directory}/killed-$i; done"
    job = changed.submit(script)
    cluster.await_state(job, "COMPLETED")
    for _ in range(KILLS):
        threading.Event().wait(chance.uniform(0, 1))
        for victim in chance.sample(["commit", "proxy", "mounter"], 2):
            if victim == "commit":
                words = ("pkill", "-9", "-f", "lodefs slurm commit")
                cluster.call(*words, user="root", node=WRITER)
            else:
                pid = cluster.pid_of(f"{victim}-{WRITER}")
                cluster.call("kill", "-9", pid, user="root")
        check_health(cluster)
    cluster.until(partial(are_settled, cluster), "its settling")
    assert committed(changed, job) == 1
    assert "are commit" in cluster.said(job)
    assert changed.read("killed-500") == "500\n"
    check_health(cluster)  # which has drained the node while the proxy was away
    # A service that was killed drops users that it was not told of when it next looks for them
    cluster.until(lambda: not cluster.leftovers(), "a clean node", 240)
