"""A job of three nodes whose data is fetched before it begins, on a real Slurm."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from loadtests.errors import LoadtestError
from loadtests.results import Result
from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster, cluster, missing
from lodefs.chunkstore.protocol.connection import Connection, parse_address

SIZE_MIB, FILES = 1024, 16
REPO = "bench/data"
JOB_TIMEOUT_S = 420.0
ASK_TIMEOUT_S = 10.0
_READ = re.compile(r"^lodefs_store_chunk_bytes_total(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
_ASK = b"GET /metrics HTTP/1.1\r\nHost: lodefs\r\n\r\n"


def slurm_warming(_scratch: Path) -> Result:
    """Bytes that nodes got from the store: before the script began, and while it read."""
    if lacking := missing():
        raise LoadtestError(f"slurm-warming needs {lacking}: `./run slurm shell` installs it")
    result = Result("slurm-warming")
    with cluster() as made:
        stored = _push(made)
        place = f"{made.folder}/jobs/data"
        go = f"{made.folder}/jobs/go"
        made.output("mkfifo", go)
        script = f"#BB_LUA lodefs\necho begun; cat {go}; srun sh -c 'cat {place}/* | wc -c'"
        began_s = time.monotonic()
        job = made.submit(script, "-N3", f"--lodefs={REPO}@main:{place}")
        made.until(lambda: "begun" in made.said(job), "the script", JOB_TIMEOUT_S)
        warmed_s = time.monotonic() - began_s
        before = sum(_from_store(made, name) for name in configs.NODES)
        made.output("sh", "-c", f"echo go >{go}")
        made.until(lambda: made.state(job) == "COMPLETED", "its end", JOB_TIMEOUT_S)
        after = sum(_from_store(made, name) for name in configs.NODES)
        read = sum(map(int, made.said(job).split()[2:]))  # after "begun" and "go"
    if read != 3 * SIZE_MIB * 1024 * 1024:
        raise LoadtestError(f"three nodes read {read} bytes")
    result.add("from sbatch to the script", warmed_s, "s")
    once = before / stored
    result.add(
        "store to all nodes before the script, of what the store has", once, "x", at_most=1.01
    )
    result.add("store to all nodes while it read", after - before, "B", at_most=0)
    result.notes.append(f"{SIZE_MIB} MiB in {FILES} files of random bytes; three nodes read it all")
    return result


def _push(made: Cluster) -> int:
    """The bytes of packs in the store."""
    source = made.folder / "data"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:02}").write_bytes(os.urandom(SIZE_MIB * 1024 * 1024 // FILES))
    made.lodefs("push", source, REPO)
    packs = (made.folder / "store/packs").rglob("*")
    return sum(path.stat().st_size for path in packs if path.is_file())


def _from_store(made: Cluster, node: str) -> float:
    """The bytes of chunks that a node's proxy got from the store."""
    socket = made.node(node).root / configs.RUN.relative_to("/") / "proxy.sock"
    connection = Connection(parse_address(f"unix:{socket}"))
    try:
        answer = connection.ask(_ASK, time.monotonic() + ASK_TIMEOUT_S, lambda: None)
    finally:
        connection.close()
    return sum(map(float, _READ.findall(bytes(answer.body).decode())))
