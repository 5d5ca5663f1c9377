"""The programs with which lodefs is compared when it pushes: each stores a directory once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from loadtests.measure import Run, run, size_of

Push = Callable[[Path, Path], Run]

SECRET = {"RESTIC_PASSWORD": "bench", "BORG_PASSPHRASE": "bench"}

_HF_XET = """
import os, sys
import hf_xet
source, store = sys.argv[1:]
if os.path.isfile(source):
    paths = [source]
else:
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names]
commit = hf_xet.XetSession().new_upload_commit(endpoint="local://" + store)
for path in paths:
    commit.start_upload_file(path, sha256=hf_xet.SKIP_SHA256)
commit.wait_to_finish()
"""


def restic(source: Path, store: Path) -> Run:
    """restic backup, its own choice of compression, into a local repository."""
    env = {**SECRET, "RESTIC_CACHE_DIR": str(store / "cache")}
    repository = ["restic", "-q", "-r", str(store / "repo")]
    run([*repository, "init"], env=env)
    taken = run([*repository, "backup", str(source)], env=env)
    shutil.rmtree(store / "cache", ignore_errors=True)
    return taken


def borg(source: Path, store: Path) -> Run:
    """borg create with lz4 (its default), no encryption."""
    env = {**SECRET, "BORG_BASE_DIR": str(store.parent / f"{store.name}-home")}
    run(["borg", "init", "-e", "none", str(store / "repo")], env=env)
    return run(["borg", "create", "-C", "lz4", f"{store / 'repo'}::first", str(source)], env=env)


def casync(source: Path, store: Path) -> Run:
    """casync make with its defaults (zstd)."""
    command = ["casync", "make", f"--store={store / 'chunks.castr'}", "--without=all"]
    if source.is_file():
        return run([*command, str(store / "index.caibx"), str(source)])
    return run([*command, "--with=permissions", "--with=symlinks",
                str(store / "index.caidx"), str(source)])  # fmt: skip


def hf_xet(source: Path, store: Path) -> Run:
    """hf_xet's upload of every file into a local store."""
    return run([sys.executable, "-c", _HF_XET, str(source), str(store)])


PEERS: dict[str, Push] = {"restic": restic, "borg": borg, "casync": casync, "hf_xet": hf_xet}


def versions() -> str:
    """One line with the programs and their versions."""
    commands = {"restic": "version", "borg": "--version", "casync": "--version"}
    found = [
        subprocess.run([name, word], capture_output=True, text=True, check=True, timeout=60)
        .stdout.splitlines()[0]
        .partition(" compiled")[0]
        for name, word in commands.items()
    ]
    return "; ".join(found)


def push_with(name: str, source: Path, scratch: Path) -> tuple[Run, int]:
    """Pushes with one peer into a new store. Returns its cost and the bytes stored."""
    store = scratch / f"peer-{name}"
    store.mkdir()
    taken = PEERS[name](source, store)
    stored = size_of(store)
    shutil.rmtree(store)
    return taken, stored
