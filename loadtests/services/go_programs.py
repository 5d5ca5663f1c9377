"""Programs that Go builds from its proxy of modules, once, outside of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from loadtests.errors import LoadtestError

BUILD_TIMEOUT_S = 1800.0


def built(package: str, version: str) -> Path:
    """The program that a package of Go is at a version, which takes minutes the first time. Raises:
    LoadtestError."""
    name = package.rpartition("/")[2]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "lodefs-clients" / f"{name}-{version}"
    program = folder / name
    if program.exists():
        return program
    if not shutil.which("go"):
        raise LoadtestError(f"{name} is built with Go: https://go.dev/dl")
    print(f"{name}: building {version}", flush=True)
    done = subprocess.run(
        ["go", "install", f"{package}@{version}"],
        env={**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"},
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    if done.returncode or not program.exists():
        raise LoadtestError(f"go could not build {name}")
    return program
