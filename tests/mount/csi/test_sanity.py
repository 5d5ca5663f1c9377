"""The conformance tests of CSI, against the real driver with real mounts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.chunkstore.child_process import private_directory
from tests.support.csi.real_driver import RealDriver
from tests.support.proxy.rig import REPO, Rig, serve_rig

BUILD = Path(__file__).parents[2] / "support" / "csi" / "sanity" / "build.sh"
BUILD_TIMEOUT_S = 1500.0
SPECS = 32  # that ask for what this driver says it can do; others begin, and skip themselves


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.timeout(BUILD_TIMEOUT_S + 300)
def test_csi_sanity() -> None:
    """All specs that the driver's capabilities ask for run and pass; we leave none out."""
    built = subprocess.run(
        [BUILD], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    assert built.returncode == 0, built.stderr
    with (
        private_directory() as folder,
        serve_rig(Rig(folder / "rig", {b"a": b"1", b"b/c": b"2"})) as (proxy, _),
        RealDriver(folder, proxy.address) as node,
    ):
        (folder / "parameters.yaml").write_text(f"repo: {REPO}\n")
        done = subprocess.run(
            [
                built.stdout.strip(),
                f"--csi.endpoint=unix://{node.socket}",
                f"--csi.mountdir={folder}/target",
                f"--csi.stagingdir={folder}/staging",
                f"--csi.testvolumeparameters={folder}/parameters.yaml",
                "--ginkgo.no-color",
            ],
            capture_output=True,
            text=True,
            timeout=250,
            cwd=folder,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        counts = re.search(r"(\d+) Passed \| (\d+) Failed", done.stdout)
        assert counts is not None
        assert (int(counts[1]), int(counts[2])) == (SPECS, 0), done.stdout
        node.await_no_mounts()
