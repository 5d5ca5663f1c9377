"""DataLoader against snapshots, in an environment that has torch: ``matrix`` and ``epochs``.

``matrix PROXY RUNS``: workers by fork, forkserver and spawn, persistent and not, with a file system
that was used before they start; each run must end, and all must see one commit.
``epochs PROXY DIRECTORY [ENDPOINT]``: two epochs of 4 workers over all files: of a directory, of
lodefs, and by s3fs; the files per second of each as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch.utils.data
from torch.utils.data import DataLoader

import lodefs
from lodefs.fs import LodefsFileSystem
from lodefs.torch import FileDataset

REPO = "bench"
WORKERS, BATCH = 4, 64
# Each spawned worker imports torch for seconds, so these are only every eighth run
METHODS = ("fork", "forkserver", "fork", "spawn", "fork", "forkserver", "fork", "forkserver")


class ByFileSystem(torch.utils.data.Dataset):  # type: ignore[type-arg,unused-ignore]
    """Files of an fsspec file system; a sample is the commit and the size."""

    def __init__(self, fs: Any, paths: list[str]) -> None:
        self.fs, self.paths = fs, paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, int]:
        path = self.paths[index]
        return self.fs.info(path).get("commit", ""), len(self.fs.cat_file(path))


class ByOpen(torch.utils.data.Dataset):  # type: ignore[type-arg,unused-ignore]
    """Files of a directory, read with ``open``."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb") as file:
            return len(file.read())


def size_of(_path: str, data: bytes) -> int:
    """A sample."""
    return len(data)


def matrix(proxy: str, runs: int) -> None:
    """Fails unless each run sees one commit and all files. A run that hangs is killed."""
    kinds = list(product((True, False), METHODS))
    multiprocessing.set_forkserver_preload(["torch", "lodefs.fs"])
    for number in range(runs):
        persistent, method = kinds[number % len(kinds)]
        fs = LodefsFileSystem(proxy=proxy, skip_instance_cache=True)
        root = f"lodefs://{REPO}@main"
        paths = fs.find(root)[:40]
        fs.cat_ranges(paths[:10], 0, 100)  # used before the fork, so that an index is open
        commit = fs.snapshot(root).commit
        loader = DataLoader(
            ByFileSystem(fs, paths),
            batch_size=8,
            num_workers=2,
            multiprocessing_context=method,
            persistent_workers=persistent,
            timeout=120,
        )
        for _ in range(2):
            seen = [sample for batch in loader for sample in zip(*batch, strict=True)]
            assert len(seen) == len(paths), f"{len(seen)} of {len(paths)} files"
            assert {one for one, _ in seen} == {commit}, f"{method}: another commit was seen"
        print(f"{number + 1} {method} persistent={persistent} {commit[:12]}", flush=True)


def epochs(proxy: str, directory: str, endpoint: str | None) -> None:
    """Prints the seconds of each side's first and second epoch."""
    names = sorted(
        os.path.relpath(path, directory) for path in Path(directory).rglob("*") if path.is_file()
    )
    dataset = FileDataset(lodefs.snapshot(REPO, proxy=proxy), names, size_of)
    sides: dict[str, Any] = {
        "ext4": ByOpen([f"{directory}/{name}" for name in names]),
        "lodefs": dataset,
    }
    if endpoint:
        import s3fs

        s3 = s3fs.S3FileSystem(client_kwargs={"endpoint_url": endpoint})
        sides["s3fs"] = ByFileSystem(s3, [f"plain/{name}" for name in names[:2000]])
    found: dict[str, list[float]] = {}
    for _ in range(2):
        for side, files in sides.items():
            generator = torch.Generator().manual_seed(1)
            method = "spawn" if side == "s3fs" else "fork"  # s3fs does not survive a fork
            loader = DataLoader(
                files,
                batch_size=BATCH,
                shuffle=True,
                generator=generator,
                num_workers=WORKERS,
                multiprocessing_context=method,
                persistent_workers=True,
            )
            for _ in range(2):
                began_s = perf_counter()
                for _ in loader:
                    pass
                rate = len(files) / (perf_counter() - began_s)
                found.setdefault(side, []).append(rate)
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "matrix":
        matrix(sys.argv[2], int(sys.argv[3]))
    else:
        epochs(sys.argv[2], sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
