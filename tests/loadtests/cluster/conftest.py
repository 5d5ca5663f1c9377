"""What tests of load tests share."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Fails tests where network namespaces cannot be made: they need root and iproute2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.fail("needs root and iproute2")
    tried = subprocess.run(["unshare", "--net", "true"], timeout=60, check=False)
    if tried.returncode != 0:
        pytest.fail("this root may not make network namespaces")
