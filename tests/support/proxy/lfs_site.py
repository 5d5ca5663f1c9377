"""A proxy over TLS that serves Git LFS, and Git repositories that use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.proxy.http.tokens import create_token
from tests.support.chunkstore.certificates import certificate
from tests.support.chunkstore.child_process import Child
from tests.support.proxy.hub_site import SERVE, free_ports

REPO = "vision/cats"


class LfsSite:
    """One proxy with a token that may write REPO, and one that may read it."""

    timeout_s = 300.0  # of a git

    def __init__(self, folder: Path, port: int, *, tls: bool = True) -> None:
        self.folder = folder
        self.port = port
        self.scheme = "https" if tls else "http"
        self.certificate = certificate(folder)
        self.certificate.chmod(0o600)
        self.writer = self._token("writer", REPO)
        self.other = self._token("other", REPO)
        self.reader = self._token("reader")

    def _token(self, name: str, *write: str) -> str:
        return create_token(self.folder / "tokens", name, [REPO], now_s=0, write=write)

    def url(self, token: str = "", path: str = "") -> str:
        """The URL of the server; with a token, as Git would put one together."""
        user = f"any:{token}@" if token else ""
        return f"{self.scheme}://{user}127.0.0.1:{self.port}/lfs/{REPO}{path}"

    def store(self) -> Store:
        return open_store(DirectoryObjects(str(self.folder / "store")))

    def git(self, directory: Path, *words: str | Path, fails: bool = False) -> str:
        """What git prints in a directory. ``fails``: it has to."""
        with self.begin(directory, *words) as begun:
            out, err = begun.communicate(timeout=self.timeout_s)
        assert (begun.returncode != 0) == fails, (out + err)[-10_000:]
        return out + err

    def begin(self, directory: Path, *words: str | Path) -> subprocess.Popen[str]:
        """Starts git in a directory, in a session of its own."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_SSL_CAINFO": str(self.certificate),
        }
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        return subprocess.Popen(
            ["git", *who, *words],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def use(self, directory: Path, token: str) -> None:
        """Makes a clone ask with a token."""
        self.git(directory, "lfs", "install", "--local")
        self.git(directory, "config", "lfs.url", self.url(token))
        self.git(directory, "config", "lfs.locksverify", "true")


@contextmanager
def lfs_site(folder: Path, *, tls: bool = True) -> Iterator[LfsSite]:
    """Yields a site whose proxy serves."""
    [port] = free_ports(1)
    site = LfsSite(folder, port, tls=tls)
    create_store(DirectoryObjects(str(folder / "store")))
    with serving(site):
        yield site


@contextmanager
def serving(site: LfsSite) -> Iterator[Child]:
    """Runs the proxy of a site."""
    settings = {
        "store": str(site.folder / "store"),
        "cache_dir": str(site.folder / "cache"),
        "cache_size_bytes_max": "128MiB",
        "socket_path": "",
        "listen": f"127.0.0.1:{site.port}",
        "tokens_file": str(site.folder / "tokens"),
        "data_processes": 0,
    }
    if site.scheme == "https":
        certificate = str(site.certificate)
        settings |= {"tls_cert_file": certificate, "tls_key_file": certificate}
    with Child([sys.executable, "-c", SERVE, json.dumps(settings)]) as child:
        child.wait_for("ready: ")
        yield child
