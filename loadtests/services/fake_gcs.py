"""fake-gcs-server, an emulator of Google Cloud Storage, built by Go; objects are kept in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.services import HOST, free_port, go_programs, wait_for_port
from tests.support.chunkstore.child_process import Child

MODULE, VERSION = "github.com/fsouza/fake-gcs-server", "v1.56.1"
BUILD_TIMEOUT_S = 5400.0


def built() -> Path:
    """The program, built by Go if it is not there, which takes minutes. Raises: LoadtestError."""
    given = os.environ.get("LODEFS_FAKE_GCS_SERVER")
    if given:
        return Path(given)
    return go_programs.built(MODULE, VERSION)


@contextmanager
def fake_gcs() -> Iterator[dict[str, str]]:
    """A running fake-gcs-server; yields the environment that names it."""
    program, port = built(), free_port()
    argv = [
        str(program),
        "-scheme",
        "http",
        "-host",
        HOST,
        "-port",
        str(port),
        "-backend",
        "memory",
    ]
    with Child([*argv, "-public-host", f"{HOST}:{port}", "-log-level", "error"]) as child:
        if not wait_for_port(child, port):
            raise child.failed(f"does not listen on port {port}")
        yield {"STORAGE_EMULATOR_HOST": f"http://{HOST}:{port}"}
