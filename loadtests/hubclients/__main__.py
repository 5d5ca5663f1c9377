"""``./run hub-clients``: each client of the hub reads a model and a dataset through both nodes of a
site, twice; what it reads must be equal, and the hub may be asked for each file once.

The hub is that of the tests. Environments are made once, in ~/.cache/lodefs-clients; torch is
Debian's (python3-torch), and the transformers that go with it are of that time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from loadtests.s3clients.environments import HUB, python_of
from tests.support.chunkstore.hub_server import HubServer, serve_hub
from tests.support.proxy.hub_site import hub_site

READERS = Path(__file__).with_name("readers.py")
NODES, ROUNDS = 2, 2
CLIENT_TIMEOUT_S = 600.0
EARLY = ("huggingface_hub", "of 2024")
LARGE_BYTES = 64 << 20


def main() -> int:
    """1 if a client read something else, or the hub was asked twice."""
    with tempfile.TemporaryDirectory(prefix="lodefs-hub-") as scratch, serve_hub() as hub:
        folder = Path(scratch)
        fill(hub, folder)
        with hub_site(folder, hub.url, NODES) as endpoints:
            failed = [client for client in HUB if not agrees(client, endpoints, folder)]
            failed += [client for client in EARLY if not is_early(client, hub, endpoints, folder)]
        reads = {one: n for one, n in hub.reads().items() if one.startswith("GET ")}
        twice = sorted(one for one, n in reads.items() if n > 1)
        print(f"the hub sent {len(reads)} files, {len(twice)} of them more than once", *twice)
    return 1 if failed or twice else 0


def fill(hub: HubServer, folder: Path) -> None:
    """Puts a tiny model and a table onto the hub."""
    model, table = folder / "model", folder / "table.parquet"
    model.mkdir()
    for client, option, path in (("torch", "--model", model), ("datasets", "--table", table)):
        words: list[str | Path] = [python_of(client), READERS, option, path]
        subprocess.run(words, check=True, capture_output=True)
    hub.repository("org/bert").commit({one.name: one.read_bytes() for one in model.iterdir()})
    hub.repository("datasets/org/table").commit(
        {"data/train-00000-of-00001.parquet": table.read_bytes(), "README.md": b"# a table\n"}
    )


def agrees(client: str, endpoints: list[str], folder: Path) -> bool:
    """Whether a client reads the same through each node, with an empty cache and with a full
    one."""
    answers = []
    for number, endpoint in enumerate(endpoints):
        home = folder / f"{client}-{number}"
        answers += [read(client, HUB[client].reader, endpoint, home) for _ in range(ROUNDS)]
    return is_one(client, answers)


def is_early(client: str, hub: HubServer, endpoints: list[str], folder: Path) -> bool:
    """Whether a client gets the size and ETag of a large file, and a small file, from each node
    while the hub does not send more than the beginning of the large one; then also the rest."""
    content = Random(client).randbytes(LARGE_BYTES)
    hub.repository("org/large").commit({"config.json": b"{}", "weights": content})
    home = folder / f"{client}-early"
    hub.rest.clear()
    # The old main branch stays in the store, so the new commit is named by its id
    sha = hub.repository("org/large").branches["main"]
    early = [read(client, "early", one, home / str(n), sha) for n, one in enumerate(endpoints)]
    hub.rest.set()
    late = [read(client, "late", one, home / str(n), sha) for n, one in enumerate(endpoints)]
    return is_one(client, early) and is_one(client, late)


def read(client: str, reader: str, endpoint: str, home: Path, *words: str) -> str:
    """What a client has read through a node; "FAILED" and the reason if it has failed."""
    done = subprocess.run(
        [python_of(client), READERS, reader, *words],
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=CLIENT_TIMEOUT_S,
    )
    if done.returncode:
        return f"FAILED\n{done.stderr[-2000:]}"
    return done.stdout.strip().rpartition("\n")[2]


def is_one(client: str, answers: list[str]) -> bool:
    """Whether all answers are the same one."""
    failures = [one for one in answers if one.startswith("FAILED")]
    is_same = len(set(answers)) == 1 and not failures
    shown = answers[-1][:80] if is_same else f"FAILED: {(failures or answers)[-1]}"
    print(f"{client:18} {shown}", flush=True)
    return is_same


if __name__ == "__main__":
    sys.exit(main())
