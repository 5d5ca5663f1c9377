"""Benchmark of Git LFS: pushes by the client's own transfer, and by the agent of lodefs."""

from __future__ import annotations

import os
import random
import statistics
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.measure import Run, load_note, run, size_of
from loadtests.results import Result
from loadtests.s3clients.environments import python_of
from loadtests.services import HOST, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child
from tests.support.proxy.lfs_site import LfsSite, lfs_site
from tests.support.proxy.scrape import labels_of, samples

ROUNDS = 3
SMALL, SMALL_BYTES = 5000, 20_000
LARGE, LARGE_BYTES = 7, 128 << 20
CHANGED_BYTES = 1_000_000_000  # of a file in which 1 MB changes
WORKERS = 4  # processes of giftless
_GIFTLESS = """\
AUTH_PROVIDERS:
- giftless.auth.allow_anon:read_write
PRE_AUTHORIZED_ACTION_PROVIDER:
  factory: giftless.auth.jwt:factory
  options:
    algorithm: HS256
    private_key: of-this-benchmark-and-nothing-else
    default_lifetime: 7200
TRANSFER_ADAPTERS:
  basic:
    factory: giftless.transfer.basic_streaming:factory
    options:
      storage_class: giftless.storage.local_storage:LocalStorage
      storage_options: {{path: {place}}}
"""


def push_lfs(scratch: Path) -> Result:
    """1 GiB of small and large objects by git-lfs, in turns with giftless on the same disk; then a
    file of 1 GB of which 1 MB has changed, by the agent."""
    result = Result("lfs")
    ours: list[Run] = []
    theirs: list[Run] = []
    for number in range(ROUNDS):
        folder = scratch / str(number)
        folder.mkdir()
        work = _repository(folder)
        for is_ours in (number % 2 == 0, number % 2 == 1):
            (ours if is_ours else theirs).append(_pushed(folder, work, is_ours=is_ours))
    mib = (SMALL * SMALL_BYTES + LARGE * LARGE_BYTES) / 2**20
    speeds = {"giftless": mib / statistics.median(one.seconds for one in theirs)}
    speed = mib / statistics.median(one.seconds for one in ours)
    result.add("lodefs", speed, "MiB/s")
    result.add("giftless", speeds["giftless"], "MiB/s")
    result.ratio("push", speed, speeds, at_least=0.8)
    _agent(scratch, result)
    result.notes.append(load_note())
    return result


def _repository(folder: Path) -> Path:
    """A working copy with one commit that git-lfs has to push."""
    work = _working_copy(folder)
    rng = random.Random(1)
    for number in range(SMALL):
        (work / f"small-{number}.bin").write_bytes(rng.randbytes(SMALL_BYTES))
    for number in range(LARGE):
        _write(work / f"large-{number}.bin", LARGE_BYTES, rng)
    _git(work, "add", ".")
    _git(work, "commit", "-qm", "first")
    return work


def _pushed(folder: Path, work: Path, *, is_ours: bool) -> Run:
    place = folder / ("lodefs" if is_ours else "giftless")
    place.mkdir()
    with _server(place, is_ours=is_ours) as url:
        words = ["lfs", "push", "--all", "origin"]
        return _git(work, "-c", f"lfs.url={url}", "-c", "lfs.concurrenttransfers=8", *words)


@contextmanager
def _server(place: Path, *, is_ours: bool) -> Iterator[str]:
    if is_ours:
        with lfs_site(place, tls=False) as site:
            yield site.url(site.writer)
        return
    port, config = free_port(), place / "giftless.yaml"
    config.write_text(_GIFTLESS.format(place=place / "objects"))
    words = ["-m", "gunicorn", "-b", f"{HOST}:{port}", "-w", str(WORKERS), "-t", "600"]
    argv = [str(python_of("giftless")), *words, "giftless.wsgi_entrypoint:app"]
    environ = {**os.environ, "GIFTLESS_CONFIG_FILE": str(config)}
    with Child(argv, env=environ) as child:
        if not wait_for_port(child, port):
            raise child.failed(f"does not listen on port {port}")
        yield f"http://{HOST}:{port}/org/repo"


def _agent(scratch: Path, result: Result) -> None:
    folder = scratch / "agent"
    folder.mkdir()
    with lfs_site(folder, tls=False) as site:
        work = _working_copy(folder)
        _git(work, "config", "lfs.url", site.url(site.writer))
        _git(work, "config", "lfs.customtransfer.lodefs.path", sys.executable)
        _git(work, "config", "lfs.customtransfer.lodefs.args", "-m lodefs.main lfs agent")
        file = work / "1.bin"
        _write(file, CHANGED_BYTES, random.Random(2))
        first = _push_version(work)
        with file.open("r+b") as changed:
            changed.seek(CHANGED_BYTES // 2)
            changed.write(random.Random(3).randbytes(1_000_000))
        before_bytes, stored_bytes = _received_bytes(site), size_of(folder / "store")
        second = _push_version(work)
        sent_bytes = _received_bytes(site) - before_bytes
    result.add("agent: first version of 1 GB", first.seconds, "s")
    result.add("agent: second version, 1 MB changed", second.seconds, "s")
    result.add("agent: sent for it", sent_bytes / 1e6, "MB", at_most=3)
    stored = size_of(folder / "store") - stored_bytes
    result.add("stored for it", stored / 1e6, "MB", at_most=3)


def _push_version(work: Path) -> Run:
    _git(work, "add", ".")
    _git(work, "commit", "-qm", "version")
    return _git(work, "push", "-q", "origin", "main")


def _received_bytes(site: LfsSite) -> float:
    """The bodies of all requests that the proxy has got, as its metrics have them."""
    headers = {"Authorization": f"Bearer {site.writer}"}
    request = urllib.request.Request(f"http://{HOST}:{site.port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = samples(answer.read())
    return found["lodefs_http_received_bytes_total", labels_of(route="lfs")]


def _working_copy(folder: Path) -> Path:
    work = folder / "work"
    work.mkdir()
    _git(folder, "init", "-q", "--bare", "-b", "main", folder / "remote.git")
    _git(work, "init", "-q", "-b", "main")
    _git(work, "remote", "add", "origin", folder / "remote.git")
    _git(work, "lfs", "install", "--local")
    _git(work, "lfs", "track", "*.bin")
    return work


def _write(path: Path, size_bytes: int, rng: random.Random) -> None:
    with path.open("wb") as file:
        for start in range(0, size_bytes, 1 << 20):
            file.write(rng.randbytes(min(1 << 20, size_bytes - start)))


def _git(directory: Path, *words: str | Path) -> Run:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    return run(["git", *who, *words], cwd=directory, env={"GIT_TERMINAL_PROMPT": "0"})
