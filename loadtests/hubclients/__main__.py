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

from loadtests.s3clients.environments import HUB, python_of
from tests.support.chunkstore.hub_server import HubServer, serve_hub
from tests.support.proxy.hub_site import hub_site

READERS = Path(__file__).with_name("readers.py")
NODES, ROUNDS = 2, 2
CLIENT_TIMEOUT_S = 600.0


def main() -> int:
    """1 if a client read something else, or the hub was asked twice."""
    with tempfile.TemporaryDirectory(prefix="lodefs-hub-") as scratch, serve_hub() as hub:
        folder = Path(scratch)
        fill(hub, folder)
        with hub_site(folder, hub.url, NODES) as endpoints:
            failed = [client for client in HUB if not agrees(client, endpoints, folder)]
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
        environ = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / f"{client}-{number}")}
        for _ in range(ROUNDS):
            done = subprocess.run(
                [python_of(client), READERS, HUB[client].reader],
                env={**os.environ, **environ},
                capture_output=True,
                text=True,
                check=False,
                timeout=CLIENT_TIMEOUT_S,
            )
            if done.returncode:
                print(f"{client:18} FAILED\n{done.stderr[-2000:]}", flush=True)
                return False
            answers.append(done.stdout.strip().rpartition("\n")[2])
    is_same = len(set(answers)) == 1
    print(f"{client:18} {'' if is_same else 'FAILED: '}{answers[-1][:80]}", flush=True)
    return is_same


if __name__ == "__main__":
    sys.exit(main())
