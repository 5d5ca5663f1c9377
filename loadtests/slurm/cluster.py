"""The cluster, seen from outside: started, asked, ended without a trace.

Needs root and the Debian packages slurmctld, slurmd, slurm-client, munge, libslurm-dev, gcc. It
lives in mount, network, process, ipc and host name namespaces of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from loadtests.slurm import configs, nodes
from loadtests.slurm.nodes import Node
from tests.support.chunkstore.child_process import Child, ChildError, private_directory
from tests.support.chunkstore.child_process import run as run_child

ROOT = Path(__file__).parents[2]
OUTSIDE = Path(sys.executable).with_name("lodefs")
LODEFS = configs.PROGRAM  # on the cluster
START_TIMEOUT_S = 150.0
CALL_TIMEOUT_S = 120.0
_POLL_S = 0.1
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")
_ENDS = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})
_PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "gcc", "make", "ip", "unshare", "nsenter")


class Cluster:
    """A cluster that runs. All that it writes lies below ``folder``; jobs are of configs.USER."""

    def __init__(self, folder: Path) -> None:
        """Returns when all nodes are idle; ChildError with the logs' ends where that fails."""
        self.folder = folder
        self.ends: dict[str, float] = {}  # seconds from scancel to free nodes, by what it was
        self._nodes: dict[str, Node] = {}
        folder.chmod(0o755)
        for name in ("log", "proxy", "jobs"):
            (folder / name).mkdir()
        (folder / "jobs").chmod(0o1777)
        run_child(["make", "-s", "-C", ROOT / "deploy/slurm", f"BUILD={folder}"])
        self.lodefs("init", folder / "store")
        self._child = Child(
            [
                *("unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
                *("--propagation", "private", sys.executable),
                *("-m", "loadtests.slurm.cluster_init", folder),
            ],
            cwd=ROOT,
        )
        try:
            self._init = self._first_process()
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def argv_inside(self, node: str = "") -> list[str]:
        """What a command begins with that runs on the submit host, or on a node."""
        pid = self.node(node).pid if node else self._init
        return ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-i", "-u", "-w/tmp"]

    @property
    def environment(self) -> dict[str, str]:
        """What users have set."""
        return {
            "PATH": os.environ["PATH"],
            "USER": configs.USER,
            "HOME": str(self.folder / "jobs"),
            "LODEFS_PROGRAM": str(LODEFS),
            "LODEFS_PROXY": f"unix:{self.folder}/proxy/proxy.sock",
        }

    def _own_proxy(self, node: str) -> dict[str, str]:
        return {"LODEFS_PROXY": f"unix:{configs.RUN}/proxy.sock"} if node else {}

    def lodefs(self, *words: str | Path) -> str:
        """A call of lodefs on the cluster's store, outside of it."""
        environ = {"LODEFS_STORE": str(self.folder / "store"), "HOME": str(self.folder)}
        return run_child([OUTSIDE, *words], env=environ)

    def call(
        self, *words: str | Path, user: str = configs.USER, node: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """A command of a user, however it ends, on the submit host or a node."""
        as_user = () if user == "root" else (f"--reuid={user}", f"--regid={user}", "--init-groups")
        inside = [*self.argv_inside(node), *(["setpriv", *as_user] if as_user else [])]
        return subprocess.run(
            [*inside, *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment | self._own_proxy(node),
            timeout=CALL_TIMEOUT_S,
            check=False,
        )

    def output(self, *words: str | Path, user: str = configs.USER, node: str = "") -> str:
        """What such a command writes. ChildError where it fails."""
        done = self.call(*words, user=user, node=node)
        if done.returncode:
            raise ChildError(f"{' '.join(map(str, words))}: {done.stderr}\n{done.stdout}")
        return done.stdout.strip()

    def submit(self, script: str, *words: str) -> int:
        """sbatch; the job's id. What it writes goes to FOLDER/jobs/ID."""
        path = self.folder / "jobs" / f"script-{time.monotonic_ns()}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        pattern = f"--output={self.folder}/jobs/%j"
        return int(self.output("sbatch", "--parsable", pattern, *words, path).partition(";")[0])

    def said(self, job: int) -> str:
        """What a job has written so far."""
        path = self.folder / "jobs" / str(job)
        return path.read_text() if path.exists() else ""

    def state(self, job: int) -> str:
        """JobState, as scontrol shows it."""
        return self.field(job, "JobState")

    def field(self, job: int, name: str) -> str:
        """One field of scontrol's."""
        shown = self.output("scontrol", "show", "job", str(job))
        line = next(line for line in shown.splitlines() if f" {name}=" in line)
        value = line.partition(f"{name}=")[2]
        return value if name.endswith("Comment") else value.split()[0]

    def await_state(self, job: int, *states: str) -> str:
        """Waits until a job is in one of these states. ChildError where it ends in another."""
        seen = ""

        def is_so() -> bool:
            nonlocal seen
            seen = self.state(job)
            if seen in _ENDS and seen not in states:
                raise ChildError(f"job {job} is {seen}, not {states}:\n{self.said(job)}")
            return seen in states

        self.until(is_so, f"job {job} in {states}")
        return seen

    def until(self, is_so: Callable[[], bool], what: str, timeout_s: float = 90.0) -> float:
        """Waits until it is so; the seconds it took. ChildError with the queue after that."""
        began_s = time.monotonic()
        while not is_so():
            if time.monotonic() - began_s > timeout_s:
                seen = [self.call(*words).stdout for words in (("squeue",), ("sinfo", "-N", "-l"))]
                raise ChildError(f"late: {what}\n{''.join(seen)}\n{self.logs()}")
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def leftovers(self) -> list[str]:
        """What is not as on a cluster without jobs: nodes, mounts, records, references, pins."""
        found = [
            f"node {line}"
            for line in self.output("sinfo", "-h", "-N", "-o", "%N %T %E").splitlines()
            if line.split()[1] != "idle"
        ]
        found += [f"process {one.command!r}" for one in nodes.of_jobs(self._pid_namespace)]
        for name in configs.NODES:
            found += [f"{name}: {one}" for one in self.node(name).remains()]
        return found

    def node(self, name: str) -> Node:
        """A node, to look at from outside."""
        if name not in self._nodes:
            inside = int((self.folder / f"{name}.pid").read_text())
            found = nodes.processes(self._pid_namespace)
            pid = next(one.pid for one in found if one.inside == inside)
            self._nodes[name] = Node(name, pid, self._pid_namespace)
        return self._nodes[name]

    def await_clean(self) -> None:
        """Waits until nothing is left of any job."""
        seen: list[str] = []

        def is_clean() -> bool:
            seen[:] = self.leftovers()
            return not seen

        try:
            self.until(is_clean, "a clean cluster")
        except ChildError as error:
            raise ChildError("\n".join(["left over:", *seen, str(error)])) from error

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a server: proxy, proxy-n1, mounter-n1, slurmd-n1."""
        self.output("kill", f"-{number.value}", self.pid_of(name), user="root")

    def pid_of(self, name: str) -> str:
        """A server's process, as the cluster counts them."""
        return (self.folder / f"{name}.pid").read_text().strip()

    def set_prolog_options(self, options: str) -> None:
        """LODEFS_PROLOG_OPTIONS, of all nodes."""
        path = Path(f"/proc/{self._init}/root/run/default/lodefs-slurm")
        path.write_text(configs.defaults(LODEFS, options, self.folder / "log"))

    def requeue(self, job: int) -> None:
        """Ends a job, and has it begin again soon."""
        self.output("scontrol", "requeue", str(job))
        self.await_state(job, "PENDING")
        # Not at once: a node takes no job again in the second in which it has ended it.
        self.output("scontrol", "update", f"jobid={job}", "starttime=now+3", user="root")

    def logs(self) -> str:
        """The ends of all logs."""
        logs = sorted((self.folder / "log").glob("*"))
        return "".join(f"\n== {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in logs)

    def close(self) -> None:
        """Ends all processes and mounts of the cluster."""
        with suppress(AttributeError, ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        with suppress(ChildError):
            self._child.wait()
        self._child.kill()
        for group in sorted(configs.FREEZER.glob(f"{self.folder.name}/**/"), reverse=True):
            with suppress(OSError):
                group.rmdir()

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children")
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._child.process.poll() is None:
            if found := children.read_text().split():
                self._pid_namespace = os.readlink(f"/proc/{found[0]}/ns/pid")
                return int(found[0])
            self._child.pause()
        raise self._child.failed("has no child")

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (self.folder / "ready").exists():
            if self._child.process.poll() is not None or time.monotonic() > deadline_s:
                raise ChildError(f"{self._child.failed('is not ready')}{self.logs()}")
            self._child.pause()


def missing() -> str:
    """What the cluster lacks on this machine; "" where it can be started."""
    if os.geteuid() != 0:
        return "root"
    found: Sequence[str] = [name for name in _PROGRAMS if not shutil.which(name)]
    header = [] if Path("/usr/include/slurm/spank.h").exists() else ["slurm/spank.h"]
    return ", ".join([*found, *header])


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A running cluster; it is ended afterwards."""
    with private_directory("ls-") as folder:
        made = Cluster(folder)
        try:
            yield made
        finally:
            made.close()
