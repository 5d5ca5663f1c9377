"""`./run kube figures`: memory of a node, volumes under kills and an upgrade, a hanging pod."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from loadtests.kube.demo import Clock, prepared
from loadtests.kube.installation import Installation, inline, memory_bytes, pod
from loadtests.kube.node import Node
from tests.support.chunkstore.child_process import private_directory

SNAPSHOTS = 10
PODS, VOLUMES_EACH = 10, 10  # 100 volumes of 10 snapshots
READING_PODS = 5  # 50 volumes
ROUNDS = 3
GRACE_S = 5
# Each file past the page cache, compared with the sum that the pod was given; without end.
READ = """
rounds=0; bad=0
while true; do
  for n in $(seq 0 9); do
    got=$(dd if=/data/$n/a.bin bs=256k iflag=direct 2>/dev/null | sha256sum | cut -c1-64)
    [ "$got" = "$(cat /data/$n/sum)" ] || bad=$((bad+1))
  done
  rounds=$((rounds+1)); echo $rounds $bad >/tmp/seen
done
"""

Say = Callable[[str], None]


def run(kubenode: Path, say: Say) -> None:
    """All results, one line each."""
    clock = Clock(say)
    with private_directory("lkf-") as folder, prepared(kubenode, folder, clock.tell) as made:
        made.install()
        clock.tell("lodefs is installed")
        say(f"an idle node: {_megabytes(made)}")
        repos = list(_push_snapshots(made, folder))
        clock.tell(f"{SNAPSHOTS} snapshots are pushed")
        _hundred_volumes(made, repos, say)
        _kills(made, repos, say)
        _hanging(made, folder, say)


def _push_snapshots(made: Installation, folder: Path) -> Iterator[str]:

    for number in range(SNAPSHOTS):
        source = folder / f"snapshot-{number}"
        source.mkdir()
        data = os.urandom(1 << 20)
        (source / "a.bin").write_bytes(data)
        (source / "sum").write_text(sha256(data).hexdigest())
        made.push(source, f"figures/{number}")
        yield f"figures/{number}"


def _many(name: str, repos: list[str], script: str) -> dict[str, Any]:
    """A pod with a volume of each repository, on /data/0 and so on."""
    found = pod(name, inline(repos[0]), script)
    spec = found["spec"]
    spec["volumes"] = [{"name": f"v{i}", **inline(repo)} for i, repo in enumerate(repos)]
    mounts = [{"name": f"v{i}", "mountPath": f"/data/{i}"} for i in range(len(repos))]
    spec["containers"][0]["volumeMounts"] = mounts
    return found


def _hundred_volumes(made: Installation, repos: list[str], say: Say) -> None:
    names = [f"many-{number}" for number in range(PODS)]
    made.node.apply(*(_many(name, repos, "sleep 3600") for name in names))
    took_s = made.node.await_pods(names, "Running", timeout_s=300.0)
    mounts = _mounts(made.node)  # some are there a second time, in the node's own folder
    volumes = len(re.findall(r" /var/lib/kubelet/pods/\S+/kubernetes\.io~csi/", mounts))
    shared = mounts.count(" /var/lib/lodefs/mounts/")
    say(
        f"{volumes} volumes of {SNAPSHOTS} snapshots: {shared} mounts, running after {took_s:.1f} s"
    )
    say(f"with them: {_megabytes(made)}")
    made.node.kubectl("delete", "pods", "--all", "--timeout=180s")


def _kills(made: Installation, repos: list[str], say: Say) -> None:
    """Driver and proxy killed, an upgrade, and one that is undone, while 50 volumes are read."""
    node = made.node
    names = [f"reads-{number}" for number in range(READING_PODS)]
    script = f"echo 0 0 >/tmp/seen\n{READ}"
    node.apply(*(_many(name, repos, script) for name in names))
    node.await_pods(names, "Running", timeout_s=300.0)
    for part in ("csi", "proxy"):
        _read_on(node, names)
        pid = made.main_process(part)
        node.run("kill", "-9", str(pid))
        _read_on(node, names)
        node.until(lambda p=part, old=pid: made.main_process(p) not in (0, old), part)
        say(f"kill -9 of {part}: {_bad(node, names)} failed reads in {_rounds(node, names)} rounds")
    values = made.values()
    values["csi"] = {"logLevel": "debug"}
    values["proxy"]["podAnnotations"] = {"lodefs.dev/again": "1"}
    made.upgrade(values)
    _read_on(node, names)
    say(f"helm upgrade: {_bad(node, names)} failed reads in {_rounds(node, names)} rounds")
    old = made.roll_out_a_mounter_that_fails()
    _read_on(node, names)
    took_s = made.undo_rollout_of_mounter(old)
    _read_on(node, names)
    told = f"{_bad(node, names)} failed reads in {_rounds(node, names)} rounds"
    say(f"a rollout of the mounter undone half-way, mounts back after {took_s:.1f} s: {told}")
    node.kubectl("delete", "pods", "--all", "--timeout=180s")


def _hanging(made: Installation, folder: Path, say: Say) -> None:
    source = folder / "big"
    source.mkdir()
    (source / "big.bin").write_bytes(os.urandom(48 << 20))
    made.push(source, "figures/big")
    script = "until [ -e /tmp/go ]; do sleep 0.1; done; echo reads; cat /data/big.bin | wc -c"
    made.node.apply(pod("stuck", inline("figures/big"), script, grace_s=GRACE_S))
    made.node.await_pods(["stuck"], "Running")
    os.killpg(made.s3.pid, signal.SIGSTOP)
    try:
        made.node.kubectl("exec", "stuck", "--", "touch", "/tmp/go")
        made.node.until(lambda: "reads" in made.node.kubectl("logs", "stuck"), "it reads")
        made.node.kubectl("delete", "pod", "stuck", "--wait=false")
        gone = made.node.until(
            lambda: made.node.try_kubectl("get", "pod", "stuck").returncode != 0, "it is gone"
        )
    finally:
        os.killpg(made.s3.pid, signal.SIGCONT)
    say(f"a pod that hangs on a dead store, grace {GRACE_S} s: gone after {gone:.1f} s")


def _megabytes(made: Installation) -> str:
    """The proportional set sizes of lodefs' processes in each part's pod, but for mounts'."""
    listed = made.node.run("ps", "-eo", "pid,args").stdout.splitlines()
    found: dict[str, int] = {}
    for line in listed:
        pid, _, args = line.strip().partition(" ")
        part = _part(args)
        if part:
            found[part] = found.get(part, 0) + memory_bytes(int(pid), made.node)
    words = [f"{part} {size_bytes >> 20} MiB" for part, size_bytes in sorted(found.items())]
    return f"{', '.join(words)}; together {sum(found.values()) >> 20} MiB"


def _part(args: str) -> str:
    for part in ("serve", "csi", "mounter", "node-labels"):
        if f"/usr/bin/lodefs {part}" in args:
            return part
    if "lodefs.mount.helper.helper_process" in args:
        return "mounter"
    return "mounts" if "lodefs.mount" in args else ""


def _seen(node: Node, names: list[str]) -> list[tuple[int, int]]:
    found = []
    for name in names:
        text = node.kubectl("exec", name, "--", "cat", "/tmp/seen").split()
        found.append((int(text[0]), int(text[1])) if len(text) == 2 else (0, 0))
    return found


def _read_on(node: Node, names: list[str]) -> None:
    """Returns when every pod has read all its volumes a few more times."""
    before = [rounds for rounds, _ in _seen(node, names)]

    def all_did() -> bool:
        pairs = zip(_seen(node, names), before, strict=True)
        return all(rounds >= old + ROUNDS for (rounds, _), old in pairs)

    node.until(all_did, "readers read on", timeout_s=300.0)


def _bad(node: Node, names: list[str]) -> int:
    return sum(bad for _, bad in _seen(node, names))


def _rounds(node: Node, names: list[str]) -> int:
    return sum(rounds for rounds, _ in _seen(node, names))


def _mounts(node: Node) -> str:
    return node.run("cat", "/proc/1/mountinfo").stdout
