"""Benchmark of the S3 interface: signed range GETs that hit, against the same through /files/."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from loadtests import corpora
from loadtests.cli import Lodefs
from loadtests.results import Result
from loadtests.services import HOST, free_port
from lodefs.chunkstore.protocol.wire import FILES, file_path
from lodefs.proxy.http.tokens import create_s3_token

REQUESTS = 1000
ROUNDS = 10  # short rounds, and the best counts: on a busy machine some are undisturbed
SIZES = {"64 KiB": 64 << 10, "4 KiB": 4 << 10}
COST_MAX = 1.5
HOT_BYTES = 32 << 20
_SDK = {
    "User-Agent": "Boto3/1.44.5 md/Botocore#1.44.5 ua/2.1 os/linux#6.18 md/arch#x86_64 lang/python",
    "amz-sdk-request": "attempt=1",
    "x-amz-checksum-mode": "ENABLED",
    "Accept-Encoding": "identity",
}


def s3_range_get(scratch: Path) -> Result:
    """Processor time of the proxy for each request, in turn, one file, one connection each."""
    result = Result("s3-range-get")
    source = corpora.random_file()
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    lodefs.run("push", source.parent, "bench")
    key = create_s3_token(scratch / "tokens", "bench", ["*"], now_s=1)
    own, s3 = (HOST, free_port()), (HOST, free_port())
    words = ("--listen", f"{own[0]}:{own[1]}", "--s3-listen", f"{s3[0]}:{s3[1]}")
    with lodefs.proxy(scratch / "node", *words, "--tokens", str(scratch / "tokens")) as proxy:
        rev = f"bench@{lodefs.commits('bench')[0]}"
        path = file_path(FILES, "bench", rev.partition("@")[2], source.name.encode())
        url = f"http://{s3[0]}:{s3[1]}/lodefs/{rev.replace('@', '%40')}/{source.name}"
        credentials = Credentials("bench", key.s3_secret)
        bearer = {"Authorization": f"Bearer {key.text}", "Host": "lodefs"}
        _ask(own, [_request(path, bearer)])
        for name, size in SIZES.items():
            best = {"files": float("inf"), "s3": float("inf")}
            for turn in range(ROUNDS):
                ranges = _ranges(source.stat().st_size, size, turn)
                plain = [_request(path, {**bearer, "Range": one}) for one in ranges]
                signed = [_signed(url, credentials, one) for one in ranges]
                for kind, where, requests in (("files", own, plain), ("s3", s3, signed)):
                    _ask(where, requests[:200])
                    begun_s = _processor_s(proxy.process.pid)
                    _ask(where, requests)
                    spent_s = _processor_s(proxy.process.pid) - begun_s
                    best[kind] = min(best[kind], spent_s / len(requests))
            for kind, seconds in best.items():
                result.add(f"{kind} {name}", seconds * 1e6, "us of the processor")
            ratio = best["s3"] / best["files"]
            result.add(f"{name}: s3 / files", ratio, "x", at_most=COST_MAX)
    return result


def _ranges(total: int, size: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    total = min(total, HOT_BYTES)  # stays in the page cache even on a busy machine
    starts = (chance.randrange((total - size) // 4096) * 4096 for _ in range(REQUESTS))
    return [f"bytes={first}-{first + size - 1}" for first in starts]


def _request(target: str, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode()


def _signed(url: str, credentials: Credentials, wanted: str) -> bytes:
    headers = {**_SDK, "amz-sdk-invocation-id": str(uuid4()), "Range": wanted}
    request = AWSRequest(method="GET", url=url, headers=headers)
    S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    parts = urlsplit(url)
    sent = {name: str(value) for name, value in request.headers.items()}
    return _request(parts.path, {"Host": parts.netloc, **sent})


def _ask(where: tuple[str, int], requests: list[bytes]) -> None:
    """Requests one after the other, each answered completely."""
    buffer = memoryview(bytearray(1 << 20))
    with socket.create_connection(where, timeout=120) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request in requests:
            client.sendall(request)
            got = client.recv_into(buffer)
            head, _, rest = bytes(buffer[:got]).partition(b"\r\n\r\n")
            if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 206")):
                raise RuntimeError(head.decode())
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            left = length - len(rest)
            while left:
                left -= client.recv_into(buffer[: min(left, len(buffer))])


def _processor_s(pid: int) -> float:
    """The processor time of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in tasks) / 1e9
