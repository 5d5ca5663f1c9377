"""A pushed tree behind a proxy with an S3 endpoint and a key."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from loadtests.services import HOST, free_port
from tests.support.chunkstore.child_process import Child

LODEFS = Path(sys.executable).with_name("lodefs")
BUCKET = "clients"


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Files below a directory."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextmanager
def serving(
    folder: Path, files: Mapping[str, bytes], aliases: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """The endpoint of a proxy whose bucket BUCKET is the files and what is in ``folder``/tree
    already, and the environment with its keys."""
    store, tokens = folder / "store", folder / "tokens"
    write_files(folder / "tree", files)
    settings = folder / "lodefs.toml"
    port = free_port()
    settings.write_text(
        f'store = "{store}"\n[serve]\ncache_dir = "{folder / "cache"}"\n'
        f'tokens_file = "{tokens}"\nsocket_path = "{folder / "sock"}"\n'
        f'[serve.s3]\nlisten = "{HOST}:{port}"\n'
        f'[serve.s3.buckets]\n{BUCKET} = "clients/tree@main"\n'
        + "".join(f'{name} = "{spec}"\n' for name, spec in (aliases or {}).items())
    )
    environment = {**os.environ, "LODEFS_CONFIG": str(settings), "XDG_CACHE_HOME": str(folder)}

    def lodefs(*words: str | Path) -> str:
        done = subprocess.run([LODEFS, *words], env=environment, check=True, stdout=subprocess.PIPE)
        return done.stdout.decode()

    lodefs("init", store)
    lodefs("push", folder / "tree", "clients/tree", "-m", "names of all kinds")
    made = lodefs("token", "create", "--s3", "clients", "*")
    keys = dict(line.split("=", 1) for line in made.splitlines())
    with Child([str(LODEFS), "serve"], env=environment) as proxy:
        proxy.wait_for('"event": "ready')
        url = f"http://{HOST}:{port}"
        yield url, {**os.environ, **keys, "AWS_DEFAULT_REGION": "us-east-1"}
