"""A fetch from a hub that answers without an end fails, and costs a bounded amount of memory."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol.hub_fetch import FetchOrder, HubOrder
from lodefs.chunkstore.push.remote import hub_fetch
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.hub_server import serve_hub


def test_list_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than anybody has are not counted, and nothing is pushed."""
    monkeypatch.setattr(hub_fetch, "FILES_MAX", 2)
    wanted = HubOrder("model", "org/name", "main", "org/name")
    order = FetchOrder(wanted, str(tmp_path / "none"), None, None, str(tmp_path), 1 << 40)
    with serve_hub() as server:
        monkeypatch.setattr("huggingface_hub.HfApi", lambda: HfApi(server.url))
        server.repository("org/name").commit({"a": b"1", "b": b"2", "c": b"3"})
        outcome = hub_fetch.fetch(order, Progress())
    assert (outcome.state, outcome.message) == (
        "too large",
        "hf://org/name has more than 2 files, the most that a site fetches",
    )


def test_memory() -> None:
    """An answer that needs more than the limit is an error of one read."""
    code = (
        "from lodefs.chunkstore.push.remote.hub_fetch import limit_memory\n"
        "limit_memory(256 << 20)\n"
        "try: b'x' * (1 << 30)\n"
        "except MemoryError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


def test_process_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it reads its order it is tied to the node, which may be killed, and to the limit."""
    called: list[int] = []
    monkeypatch.setattr(hub_fetch, "die_with_parent", called.append)
    monkeypatch.setattr(hub_fetch, "limit_memory", called.append)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    with pytest.raises(InvalidInput):
        hub_fetch.main()
    assert called == [os.getppid(), hub_fetch.MEMORY_BYTES_MAX]
