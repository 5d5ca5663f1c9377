"""The conformance tests of CSI, against the real driver with real mounts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.chunkstore.child_process import private_directory
from tests.support.csi.real_driver import RealDriver
from tests.support.lodefs.dataset_node import dataset_node
from tests.support.proxy.node_process import REPO

BUILD = Path(__file__).parents[2] / "support" / "csi" / "sanity" / "build.sh"
BUILD_TIMEOUT_S = 1500.0
SPECS = 32  # that ask for what this driver says it can do; others begin, and skip themselves


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.timeout(BUILD_TIMEOUT_S + 300)
def test_csi_sanity() -> None:
    """All specs that the driver's capabilities ask for run and pass, as they are; we leave none
    out. They ask for volumes that can be written to."""
    built = subprocess.run(
        [BUILD], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    assert built.returncode == 0, built.stderr
    with (
        private_directory() as folder,
        dataset_node() as served,
        RealDriver(folder, served.address, store=str(served.store)) as node,
    ):
        (folder / "parameters.yaml").write_text(f'repo: {REPO}\nwrite: "true"\nbranch: sanity\n')
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
