"""What volumes of Docker and of Kubernetes share on one node.

A proxy, one mount service, `lodefs docker-plugin` and `lodefs csi`, all real; dockerd's and the
kubelet's calls are made here.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

from loadtests.errors import LoadtestError
from loadtests.results import Result
from loadtests.services.dockercalls import DockerCalls
from loadtests.services.pluginnode import plugin_node
from tests.support.csi.real_driver import RealDriver, children

SNAPSHOTS, VOLUMES = 10, 100  # for each driver


def shared_mounts(scratch: Path) -> Result:
    """100 volumes of each driver, of 10 snapshots: their mounts, processes and memory."""
    if os.geteuid() != 0:
        raise LoadtestError("shared-mounts: needs root")
    result = Result("shared-mounts")
    (folder := scratch / "n").mkdir()
    (below := scratch / "m").mkdir()
    with plugin_node(folder, mounter=below / "mounter.sock") as node:
        for number in range(SNAPSHOTS):
            (source := scratch / f"source{number}").mkdir()
            (source / "a.txt").write_text(f"{number}\n")
            node.push(source, f"set{number}")
        with RealDriver(below, node.proxy_url) as driver:
            docker = DockerCalls(node.socket)
            [mounter] = driver.mounters
            _add(result, "before", mounter.pid)
            begun_s = perf_counter()
            used = []
            for number in range(VOLUMES):
                docker.volume_create(f"v{number}", {"repo": f"set{number % SNAPSHOTS}"})
                used.append(docker.run(f"v{number}"))
            result.add("a volume of Docker: create and mount", _each_ms(begun_s), "ms")
            _add(result, "100 volumes of Docker", mounter.pid)
            begun_s = perf_counter()
            for number in range(VOLUMES):
                attributes = {"repo": f"set{number % SNAPSHOTS}"}
                driver.kubelet.publish(f"p{number}", driver.target(f"p{number}"), attributes)
            result.add("a volume of Kubernetes: publish", _each_ms(begun_s), "ms")
            _add(result, "100 of each", mounter.pid)
            mounts = len(driver.fuse_mounts())
            result.add("mounts, 100 of each", mounts, "", at_most=SNAPSHOTS)
            for one in used:
                docker.stop(one)
            for number in range(VOLUMES):
                driver.kubelet.unpublish(f"p{number}", driver.target(f"p{number}"))
            driver.await_no_mounts()
    return result


def _each_ms(begun_s: float) -> float:
    return (perf_counter() - begun_s) * 1e3 / VOLUMES


def _add(result: Result, when: str, mounter: int) -> None:
    """The mount service and all that it has started, above all its mounts."""
    found, waiting = [mounter], [mounter]
    while waiting:
        more = children(waiting.pop())
        found += more
        waiting += more
    result.add(f"processes, {when}", len(found), "")
    result.add(f"memory, {when}", sum(map(_own_mib, found)), "MiB")


def _own_mib(pid: int) -> float:
    """A process's proportional share of the memory that it uses (proc_pid_smaps(5))."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
