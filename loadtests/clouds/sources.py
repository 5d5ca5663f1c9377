"""Sources of pushes on real servers: a push must read all as it was put there, a second one must
read nothing, and one after a change only what has changed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.clouds.buckets import azure_container, delete_object, gcs_bucket, put_object
from loadtests.errors import LoadtestError
from loadtests.s3clients.environments import python_of
from loadtests.services import HOST, free_port, wait_for_port
from loadtests.services.azurite import azurite
from loadtests.services.fake_gcs import fake_gcs
from loadtests.services.samba import SHARE, samba
from lodefs.chunkstore.objects.clouds.azure import open_azure
from lodefs.chunkstore.objects.clouds.gcs import open_gcs
from lodefs.chunkstore.objects.clouds.http_objects import CloudApi
from tests.support.chunkstore.child_process import Child
from tests.support.chunkstore.sftp_server import sftp_server

COMMAND_TIMEOUT_S = 300.0
OLD_S = 3600  # the age of files: younger than a minute, they would be read again


class Source(NamedTuple):
    """A place to push from. ``library`` reads it, if it is not among those of a checkout."""

    url: str
    environment: dict[str, str]
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    library: str | None = None


@contextmanager
def _gs(_folder: Path) -> Iterator[Source]:
    with fake_gcs() as variables:
        os.environ |= variables
        yield _of_cloud(open_gcs(gcs_bucket()), variables, "gcsfs")


@contextmanager
def _az(_folder: Path) -> Iterator[Source]:
    with azurite() as variables:
        os.environ |= variables
        yield _of_cloud(open_azure(azure_container(), None), variables, "adlfs")


def _of_cloud(api: CloudApi, variables: dict[str, str], library: str) -> Source:
    def put(path: str, data: bytes) -> None:
        put_object(api, f"in/{path}", data)

    def delete(path: str) -> None:
        delete_object(api, f"in/{path}")

    return Source(f"{api.url}/in", variables, put, delete, library)


class _Served:
    """The directory that a server serves. Files get times that differ."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "in"
        self.root.mkdir()
        self._times = count(int(time.time()) - OLD_S)

    def put(self, path: str, data: bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, times=(now_s := next(self._times), now_s))

    def delete(self, path: str) -> None:
        (self.root / path).unlink()


@contextmanager
def _smb(folder: Path) -> Iterator[Source]:
    served = _Served(folder)
    with samba(folder) as server:
        url = f"smb://{server.user}@{HOST}/{SHARE}/in?port={server.port}"
        password = {"FSSPEC_SMB_PASSWORD": server.password}
        yield Source(url, password, served.put, served.delete, "smbprotocol")


@contextmanager
def _sftp(folder: Path) -> Iterator[Source]:
    served = _Served(folder)
    with sftp_server(folder) as server:
        (folder / ".ssh").mkdir()
        (folder / ".ssh" / "known_hosts").write_text(server.known_hosts)
        url = f"sftp://user@{HOST}{served.root}?port={server.port}"
        environment = {"FSSPEC_SFTP_PASSWORD": server.password, "HOME": str(folder)}
        yield Source(url, environment, served.put, served.delete)


@contextmanager
def _ftp(folder: Path) -> Iterator[Source]:
    served, port = _Served(folder), free_port()
    words = ["-m", "pyftpdlib", "-i", HOST, "-p", str(port), "-d", str(folder)]
    with Child([python_of("pyftpdlib"), *words]) as child:
        if not wait_for_port(child, port):
            raise child.failed(f"does not listen on port {port}")
        yield Source(f"ftp://{HOST}/in?port={port}", {}, served.put, served.delete)


SOURCES: Mapping[str, Callable[[Path], AbstractContextManager[Source]]] = {
    "gs": _gs,
    "az": _az,
    "smb": _smb,
    "sftp": _sftp,
    "ftp": _ftp,
}


def read(name: str, scratch: Path) -> str:
    """Pushes from a source of that kind. Returns a line for people. Raises: LoadtestError if it is
    not read as it should be."""
    files = _files()
    with SOURCES[name](scratch) as source:
        for path, data in files.items():
            source.put(path, data)
        machine = _Machine(scratch, source)
        first = machine.push(files)
        again = machine.push(files)
        if not again["unchanged"] or again["files_read"]:
            raise LoadtestError(f"{name}: the second push has read {again['files_read']} files")
        source.put("plain.txt", b"another text")
        source.delete("many/07")
        files["plain.txt"] = b"another text"
        del files["many/07"]
        third = machine.push(files)
        if third["files_read"] != 1:
            raise LoadtestError(f"{name}: one file has changed, {third['files_read']} were read")
    return f"{first['files']} files, {first['size_bytes'] >> 20} MiB; then none, then one was read"


class _Machine:
    """Somebody with a store on the local disk, who pushes from a source."""

    def __init__(self, scratch: Path, source: Source) -> None:
        self._scratch = scratch
        self._source = source
        self._environment = {
            "HOME": str(scratch),
            "LODEFS_CONFIG": os.devnull,
            "LODEFS_STORE": str(scratch / "store"),
            **source.environment,
        }
        if source.library is not None:
            self._environment["PYTHONPATH"] = _packages_of(source.library)
        self._pulls = count()
        self._lodefs("init", str(scratch / "store"))

    def push(self, files: Mapping[str, bytes]) -> dict[str, Any]:
        """Pushes; returns what it says. Raises: LoadtestError if the commit has not ``files``."""
        said: dict[str, Any] = json.loads(self._lodefs("push", "--json", self._source.url, "r"))
        target = self._scratch / f"pulled{next(self._pulls)}"
        self._lodefs("pull", "--no-sync", "r", str(target))
        found = {
            str(path.relative_to(target)): path.read_bytes()
            for path in target.rglob("*")
            if path.is_file()
        }
        if found != files:
            differing = {path for path in {*found, *files} if found.get(path) != files.get(path)}
            raise LoadtestError(f"{self._source.url} came otherwise: {sorted(differing)[:5]}")
        return said

    def _lodefs(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lodefs.main", *arguments],
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
        if done.returncode:
            raise LoadtestError(f"lodefs {arguments[0]}: {done.stderr[-2000:]}")
        return done.stdout


def _packages_of(library: str) -> str:
    """The folder of the packages in a library's environment."""
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    words = [str(python_of(library)), "-c", ask]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _files() -> dict[str, bytes]:
    """Names that sources have trouble with, no bytes, and many of them."""
    chance = random.Random(7)
    return {
        "plain.txt": b"a text",
        "with space/\u00fc.txt": b"special",
        "percent%41+plus&.txt": b"more special",
        "deep/er/and/deeper/still.bin": b"deep",
        "zero": b"",
        "large.bin": chance.randbytes((9 << 20) + 1),
        **{f"many/{n:02}": chance.randbytes(2000) for n in range(30)},
    }
