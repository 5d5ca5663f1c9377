"""Processor time of GETs: lodefs' own requests against the clouds' own libraries, each in a process
of its own, on the same objects of the same emulators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGE_BYTES, SMALL_BYTES = 8 << 20, 4096
LARGE_READS, SMALL_READS = 40, 300
KEY = "speed/object"
TIMEOUT_S = 600.0


def compared(place: str, library: str, environment: dict[str, str]) -> list[str]:
    """Lines with the milliseconds of both, in turns: lodefs, the library, lodefs again."""
    from loadtests.s3clients.environments import python_of

    def run(python: str | Path, reader: str) -> dict[str, float]:
        done = subprocess.run(
            [python, "-m", "loadtests.clouds.speed", reader, place],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found

    first = run(sys.executable, "lodefs")
    theirs = run(python_of(library), library)
    again = run(sys.executable, "lodefs")
    return [
        f"{library}, {size}: {theirs[size]:.2f} ms of processor time, lodefs {ours:.2f} ms: "
        f"{theirs[size] / ours:.1f}x"
        for size in first
        if (ours := (first[size] + again[size]) / 2)
    ]


def _reader(name: str, place: str) -> Callable[[int, int], Any]:
    """A function that reads a range of the object at a place."""
    if name == "lodefs":
        from lodefs.chunkstore.objects.open_url import open_objects

        objects = open_objects(place)
        objects.put(KEY, [os.urandom(LARGE_BYTES)])
        return lambda first, size: objects.get(KEY, offset=first, size=size)
    bucket, _, prefix = place.partition("://")[2].partition("/")
    if name == "google-cloud-storage":
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        anonymous: Any = AnonymousCredentials
        client = storage.Client(project="any", credentials=anonymous())
        blob = client.bucket(bucket).blob(f"{prefix}/{KEY}")
        return lambda first, size: blob.download_as_bytes(
            start=first, end=first + size - 1, checksum=None
        )
    from azure.storage.blob import BlobClient

    text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    client = BlobClient.from_connection_string(text, bucket, f"{prefix}/{KEY}")
    return lambda first, size: client.download_blob(first, size).readall()


def main(name: str, place: str) -> None:
    """Writes the milliseconds of processor time of one GET, by its size."""
    read = _reader(name, place)
    found = {}
    for size, count in ((LARGE_BYTES, LARGE_READS), (SMALL_BYTES, SMALL_READS)):
        read(0, size)
        begin_s = time.process_time()
        for number in range(count):
            read(0 if size == LARGE_BYTES else number * size, size)
        found[f"{size >> 10} KiB"] = (time.process_time() - begin_s) / count * 1000
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
