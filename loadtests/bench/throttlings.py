"""A store that answers 503 SlowDown for a minute: how often a node asks, and how its reads end."""

from __future__ import annotations

import http.client
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlsplit

from loadtests.bench.sides import REPO, mounted
from loadtests.cli import Lodefs
from loadtests.results import Result
from loadtests.services import HOST, S3Server
from loadtests.services.moto import moto_server
from tests.support.chunkstore.bad_server import Answer, BadServer, Request

THROTTLED_S = 60.0
READ_S_MAX = 36.0  # the promise of troubleshooting.md: 30 s, and one more attempt
READERS = {1: 40, 100: 60}  # readers, and the limit for requests
FILE_BYTES = 3_000
BACK_S_MAX = 12.0
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"
_PASSED = ("content-type", "etag", "content-range", "last-modified", "x-amz-request-id")


class Front:
    """A relay before an S3 server that passes requests on, or throttles all and records when."""

    def __init__(self, server: S3Server) -> None:
        self._port = urlsplit(server.endpoint_url).port
        self.is_throttled = False
        self.put_off_s: list[float] = []

    def answer(self, request: Request) -> Answer:
        """The answer to one request. For any thread."""
        if self.is_throttled:
            self.put_off_s.append(monotonic())
            return Answer(503, _SLOW_DOWN, {"Content-Type": "application/xml"})
        there = http.client.HTTPConnection(HOST, self._port, timeout=60)
        try:
            there.request(request.method, request.path, request.body, dict(request.headers))
            found = there.getresponse()
            body = found.read()
            headers = {name: found.headers[name] for name in _PASSED if name in found.headers}
            if request.method == "HEAD":
                headers["Content-Length"] = found.headers["Content-Length"]
            return Answer(found.status, body, headers)
        finally:
            there.close()


def throttling(scratch: Path) -> Result:
    """A minute of SlowDown under one reader and under a hundred, over a real mount and proxy."""
    result = Result("throttling")
    with moto_server() as server:
        front = Front(server)
        with BadServer(front.answer) as put_off:
            env = {**server.environment, "AWS_ENDPOINT_URL": put_off.endpoint_url}
            lodefs = Lodefs(f"s3://{server.make_bucket()}/store", scratch / "home", env)
            lodefs.run("init", lodefs.store)
            _push(lodefs, scratch / "data")
            for readers, requests_max in READERS.items():
                folder = scratch / f"node-{readers}"
                with (
                    lodefs.proxy(folder) as proxy,
                    mounted(lodefs, proxy, scratch / "mnt") as root,
                ):
                    _minute(result, front, root, readers, requests_max)
    return result


def _push(lodefs: Lodefs, folder: Path) -> None:
    """Makes separate files for each reader."""
    dice = random.Random(5)
    for number in range(max(READERS)):
        (folder / str(number)).mkdir(parents=True)
        for name in "abcd":
            (folder / str(number) / name).write_bytes(dice.randbytes(FILE_BYTES))
        (folder / str(number) / "large").write_bytes(dice.randbytes(1_500_000))
    lodefs.run("push", folder, REPO)


def _minute(result: Result, front: Front, root: Path, readers: int, requests_max: int) -> None:
    for number in range(readers):
        os.stat(root / str(number) / "large")  # names are cached; bytes are not
    front.put_off_s.clear()
    front.is_throttled, begun_s = True, monotonic()
    with _reading(root, readers) as ends:
        sleep(THROTTLED_S)
        asked_s = [one - begun_s for one in front.put_off_s]
        front.is_throttled, back_s = False, monotonic()
        sleep(BACK_S_MAX)
    failed = [took_s for _, took_s, is_read in ends if not is_read]
    served = [at_s - back_s for at_s, _, is_read in ends if is_read]
    what = f"{readers} reader{'s' if readers > 1 else ''}"
    result.add(f"{what}: requests in 60 s", len(asked_s), at_most=requests_max)
    late = len([one for one in asked_s if one > THROTTLED_S / 2])
    result.add(f"{what}: in the second half of it", late)
    result.add(f"{what}: reads that ended with an error", len(failed), at_least=1)
    result.add(f"{what}: the longest of them", max(failed, default=0), "s", at_most=READ_S_MAX)
    result.add(f"{what}: reads served before the store was back", sum(s < 0 for s in served))
    first = min((s for s in served if s >= 0), default=BACK_S_MAX)
    result.add(f"{what}: first bytes after its return", first, "s", at_most=BACK_S_MAX - 1)
    result.notes.append(f"{what}: requests came after {[round(s, 1) for s in asked_s]} s")


@contextmanager
def _reading(root: Path, readers: int) -> Iterator[list[tuple[float, float, bool]]]:
    """Reads in as many threads until the block ends: when each ended, how long it took, and
    whether it brought bytes."""
    ends: list[tuple[float, float, bool]] = []
    is_over = threading.Event()

    def read_on(folder: Path) -> None:
        names = list("abcd") + ["large"]
        while not is_over.is_set() and names:
            begun_s = monotonic()
            try:
                (folder / names[0]).read_bytes()
                names.pop(0)
                ends.append((monotonic(), monotonic() - begun_s, True))
            except OSError:
                ends.append((monotonic(), monotonic() - begun_s, False))
                is_over.wait(0.1)

    threads = [
        threading.Thread(target=read_on, args=(root / str(number),)) for number in range(readers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield ends
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
