"""``lodefs warm`` as a user types it, with a proxy that is killed in the middle."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.protocol.cache_control import RUNNING, WARM, PinsView, WarmJobs, WarmStatus
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.chunkstore.protocol.wire import FILES, file_path
from tests.support.chunkstore.child_process import TIMEOUT_S, Child, private_directory
from tests.support.mount.mounts import until
from tests.support.proxy.fake_node import Client
from tests.support.proxy.node_process import REPO, NodeProcess

pytestmark = pytest.mark.slow

LARGE_BYTES = 128 * 1024 * 1024
SMALL = 400


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One large file and many small ones."""
    folder = tmp_path / "source"
    (folder / "small").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(LARGE_BYTES))
    for number in range(SMALL):
        content = random.Random(number).randbytes(5000)
        (folder / "small" / f"{number}").write_bytes(content)
    return folder


def jobs(node: NodeProcess) -> list[WarmStatus]:
    """The jobs of a proxy; none while it is away."""
    calls = ControlClient(node.address)
    try:
        return calls.call(WarmJobs, "GET", WARM).jobs
    except LodefsError:
        return []
    finally:
        calls.close()


def test_a_killed_proxy_goes_on_where_it_was(source: Path) -> None:
    """kill -9 of the proxy in the middle: the command waits for the next one, has it go on, and
    succeeds; all is here and pinned then, and needs no store."""
    with private_directory() as folder:
        node = NodeProcess(folder, source, size_bytes_max=4 * LARGE_BYTES)
        node.hold()
        command = [sys.executable, "-m", "lodefs.main", "--proxy", node.address, "warm", REPO]
        environment = {"HOME": str(folder), "LODEFS_CONFIG": os.devnull}
        with Child([*command, "--pin", "1h", "--json"], env=environment) as child:
            until(lambda: any(job.bytes_done for job in jobs(node)))
            assert any(job.state in RUNNING for job in jobs(node))
            node.restart()
            node.let_go()
            assert child.wait(timeout_s=TIMEOUT_S) == 0, child.output
            status = json.loads(child.output)
        assert (status["state"], status["files_done"]) == ("done", SMALL + 1)
        assert status["bytes_done"] == LARGE_BYTES + SMALL * 5000
        calls = ControlClient(node.address)
        (pin,) = calls.call(PinsView, "GET", "/pins").pins
        assert pin.is_complete
        shutil.rmtree(node.store / "packs")
        calls.close()
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(node.address.removeprefix("unix:"))
            client = Client(connected)
            for path in ("large", "small/0", f"small/{SMALL - 1}"):
                reply = client.get(file_path(FILES, REPO, node.commit, path.encode()))
                assert reply.body == (source / path).read_bytes()
        node.kill()
