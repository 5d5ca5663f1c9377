"""``./run clients [NAME ...]``: real S3 clients read a pushed tree through the proxy; every byte is
compared. Their environments are made once, in ~/.cache/lodefs-clients. ``rgw [REQUESTS]`` sends the
same requests to the proxy and to Ceph's RGW instead (differential.py), ``s3-tests CHECKOUT`` runs
functions of that suite."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtests.s3clients import s3tests
from loadtests.s3clients.environments import PACKAGES, python_of
from loadtests.s3clients.serving import serving

READERS = Path(__file__).with_name("readers.py")
CLIENT_TIMEOUT_S = 600.0
_TABLE = """
import sys, pyarrow as pa, pyarrow.parquet as pq
rows = range(100_000)
table = pa.table({"a": rows, "b": [n * n for n in rows], "c": [str(n) for n in rows]})
pq.write_table(table, sys.argv[1], row_group_size=10_000)
"""


def tree(root: Path) -> dict[str, bytes]:
    """Names that clients have trouble with, no bytes, and many of them."""
    chance = random.Random(7)
    files = {
        "a-b": b"1",
        "a.txt": b"22",
        "a/x": b"333",
        "a/y-z/deep": b"4444",
        "é +%@": b"special",
        "with space/q?&=;#'": b"more special",
        "zero": b"",
        "large.bin": chance.randbytes(20 << 20),
        **{f"many/{n:04}.bin": chance.randbytes(2000) for n in range(30)},
    }
    (root / "tables").mkdir(parents=True)
    subprocess.run([python_of("pyarrow"), "-c", _TABLE, root / "tables/table.parquet"], check=True)
    return files


def main(names: list[str]) -> int:
    """1 if a client read something else, 2 for an unknown name."""
    if names[:1] == ["rgw"]:
        from loadtests.s3clients import differential  # Ceph and botocore, for this alone

        return differential.run(int(names[1]) if names[1:] else differential.REQUESTS)
    if names[:1] == ["s3-tests"] and len(names) == 2:
        return s3tests.run(Path(names[1]).absolute())
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    failed = []
    with tempfile.TemporaryDirectory(prefix="lodefs-clients-") as scratch:
        folder = Path(scratch)
        with serving(folder, tree(folder / "tree")) as (endpoint, environment):
            for name in names or list(PACKAGES):
                words = [READERS, name, endpoint, "clients", folder / "tree"]
                done = subprocess.run(
                    [python_of(name), *words],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=CLIENT_TIMEOUT_S,
                )
                last = (done.stdout or done.stderr).strip().rpartition("\n")[2]
                print(f"{name:24} {'' if not done.returncode else 'FAILED: '}{last}", flush=True)
                if done.returncode:
                    failed.append(name)
                    print(done.stderr[-2000:], file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
