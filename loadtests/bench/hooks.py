"""What lodefs' hook costs a container of enroot: without datasets, and with one that is known."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from statistics import median

from loadtests.bench.sides import REPO, node
from loadtests.cli import LODEFS, Lodefs
from loadtests.errors import LoadtestError
from loadtests.results import Result
from lodefs.commands.enroot_hook import script

ROUNDS = 31
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount"]
SECONDS_MAX = 60.0


def enroot_hook(scratch: Path) -> Result:
    """Namespaces with a hook that does nothing, in turns with the same and lodefs' hook."""
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
        known = {"LODEFS_DATASETS": f"{REPO}:/data", "LODEFS_PROXY": proxy.url}
        kinds = {
            "no hook": (["sh", "-c", ":"], {}),
            "no datasets": (["sh", hook], {}),
            "one": (["sh", "-ec", f"sh {hook}; cat {root}/data/a"], known),
        }
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(ROUNDS):
            for name, (command, more) in kinds.items():
                times[name].append(_seconds([*NAMESPACES, *command], enroot | more))
    bare = median(times["no hook"])
    result.add("namespaces and a shell", 1e3 * bare, "ms")
    nothing = 1e3 * (median(times["no datasets"]) - bare)
    result.add("the hook without datasets: more than that", nothing, "ms", at_most=10)
    one = median(times["one"]) - bare
    result.add("with one known dataset, read: more than that", one, "s", at_most=0.3)
    result.notes.append(f"load of the last minute: {os.getloadavg()[0]:.1f}, this included")
    return result


def _seconds(command: list[str | Path], environment: dict[str, str]) -> float:
    begun_s = time.perf_counter()
    done = subprocess.run(
        command,
        env=os.environ | environment,
        timeout=SECONDS_MAX,
        check=False,
        stdout=subprocess.PIPE,
    )
    if done.returncode:
        raise LoadtestError(f"{command} ended with {done.returncode}")
    return time.perf_counter() - begun_s
