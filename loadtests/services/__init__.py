"""Real servers as context managers, for tests and benchmarks. All listen on 127.0.0.1."""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

from tests.support.chunkstore.child_process import TIMEOUT_S, Child

HOST = "127.0.0.1"
REGION = "us-east-1"
_PORT_MIN = 20000  # further up, to where the kernel picks the ports of clients
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_reserved: list[int] = []  # descriptors of locks, for as long as this process lives


@dataclass(frozen=True)
class S3Server:
    """A running S3 server and one user who may do everything there."""

    endpoint_url: str
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """What makes boto3's own credential chain find this user, and nothing else."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, *, max_pool_connections: int = 10) -> Any:
        """A boto3 client, for what lodefs itself never does (making buckets, policies)."""
        import boto3
        from botocore.config import Config

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=REGION,
            config=Config(
                max_pool_connections=max_pool_connections,
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def make_bucket(self) -> str:
        """A new, empty bucket with a name of its own."""
        name = f"lodefs-{secrets.token_hex(8)}"
        _client(self).create_bucket(Bucket=name)
        return name


@cache
def _client(server: S3Server) -> Any:
    """One for all buckets: boto3 takes a third of a second to make one."""
    return server.client()


def free_port() -> int:
    """A TCP port that nobody listens on. No other process gets it from here until this one ends,
    and the kernel gives it to no client."""
    locks = Path(tempfile.gettempdir()) / f"lodefs-ports-{os.geteuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    ports = list(range(_PORT_MIN, int(_EPHEMERAL.read_text("ascii").split()[0])))
    random.SystemRandom().shuffle(ports)
    for port in ports:
        fd = os.open(locks / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError), socket.socket() as sock:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, port))
            _reserved.append(fd)
            return port
        os.close(fd)
    raise OSError(f"no port of {_PORT_MIN} to {ports[-1]} is free")


def wait_for_port(child: Child, port: int, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether ``child`` lives and something listens on ``port``; waits until one is decided."""
    deadline = monotonic() + timeout_s
    while child.process.poll() is None and monotonic() < deadline:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            child.pause()
        else:
            return child.process.poll() is None
    return False
