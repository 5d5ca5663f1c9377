"""The cost of lodefs' enroot hook for a container: without datasets, and with a known one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from loadtests.bench.sides import REPO, node
from loadtests.cli import LODEFS, Lodefs
from loadtests.errors import LoadtestError
from loadtests.measure import load_note
from loadtests.results import Result
from lodefs.commands.enroot_hook import script
from tests.support.hpc.node_mounter import node_mounter

ROUNDS = 31
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount"]
SECONDS_MAX = 60.0
Kind = tuple[list[str | Path], dict[str, str]]


def enroot_hook(scratch: Path) -> Result:
    """Namespaces with a hook that does nothing, in turns with the same and lodefs' hook, which
    mounts by itself, or is handed a mount out by the node (as root); and what a mount of memory and
    an empty program of Python take there."""
    result = Result("enroot-hook")
    source = scratch / "source"
    source.mkdir()
    (source / "a").write_text("hello")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", lodefs.store)
    lodefs.run("push", source, REPO)
    hook, environ, root = scratch / "hook.sh", scratch / "environ", scratch / "root"
    hook.write_text(script(str(LODEFS)))
    environ.write_text("".join(f"NAME{number}=value\n" for number in range(100)))
    (root / "data").mkdir(parents=True)
    with node(lodefs, scratch / "node") as proxy:
        enroot = {"ENROOT_ROOTFS": str(root), "ENROOT_ENVIRON": str(environ)}
        known = {
            "LODEFS_DATASETS": f"{REPO}:/data",
            "LODEFS_PROXY": proxy.url,
            "LODEFS_ATTACH_SOCKET": "none",
        }
        read: list[str | Path] = ["sh", "-ec", f"sh {hook}; cat {root}/data/a"]
        kinds: dict[str, Kind] = {
            "no hook": (["sh", "-c", ":"], {}),
            "memory": (["sh", "-c", f"mount -t tmpfs none {root}/data"], {}),
            "python": ([sys.executable, "-c", "pass"], {}),
            "no datasets": (["sh", hook], {}),
            "one": (read, known),
        }
        with _handing_out(scratch / "mounter", proxy.url) as attach_socket:
            if attach_socket:
                kinds["handed out"] = (read, {**known, "LODEFS_ATTACH_SOCKET": attach_socket})
            more = _more_than_bare(kinds, enroot)
    result.add("namespaces and a shell", more["no hook"], "ms")
    result.add("a mount of memory: more than that", more["memory"], "ms")
    result.add("an empty program of Python: more than that", more["python"], "ms")
    result.add("the hook without datasets: more than that", more["no datasets"], "ms", at_most=10)
    result.add("with one known dataset, read: more than that", more["one"] / 1e3, "s", at_most=0.3)
    if "handed out" in more:
        result.add("the same, handed out by the node", more["handed out"] / 1e3, "s", at_most=0.3)
    result.notes.append(load_note())
    return result


def _more_than_bare(kinds: dict[str, Kind], environ: dict[str, str]) -> dict[str, float]:
    """By kind, in milliseconds: what the first takes, and how much longer the others take than it.
    Medians, after one round in which modules are compiled."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(1 + ROUNDS):
        for name, (command, more) in kinds.items():
            times[name].append(_seconds([*NAMESPACES, *command], environ | more))
    bare, *others = [(name, 1e3 * median(found[1:])) for name, found in times.items()]
    return dict([bare, *((name, found - bare[1]) for name, found in others)])


@contextmanager
def _handing_out(folder: Path, proxy: str) -> Iterator[str]:
    """The socket at which the node hands mounts out; "" if this user cannot have it."""
    if os.geteuid() != 0:
        yield ""
        return
    with node_mounter(folder, proxy) as made:
        yield str(made.socket)


def _seconds(command: list[str | Path], environment: dict[str, str]) -> float:
    begun_s = time.perf_counter()
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        timeout=SECONDS_MAX,
        check=False,
        stdout=subprocess.PIPE,
    )
    if done.returncode:
        raise LoadtestError(f"{command} ended with {done.returncode}")
    return time.perf_counter() - begun_s
