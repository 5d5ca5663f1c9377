"""kubenode: etcd, API server, controllers, scheduler, kubelet, kubectl and helm in one binary.

It takes Go ten minutes and more to build, so it is kept outside of the checkout, under a key that
changes with whatever goes into it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from loadtests.errors import LoadtestError

MODULE = Path(__file__).with_name("kubenode")
BUILD_TIMEOUT_S = 5400.0
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def cache_directory() -> Path:
    """Where lodefs' builds for tests are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "lodefs"


def kubenode() -> Path:
    """Where the binary of this checkout is, once it is built."""
    return cache_directory() / f"kubenode-{_key()}" / "kubenode"


def build(say: Callable[[str], None]) -> Path:
    """The binary; it is built first where it is not there.

    Raises: LoadtestError where Go is missing or the build fails, with the end of what it said.
    """
    binary = kubenode()
    if binary.exists():
        return binary
    if not shutil.which("go"):
        raise LoadtestError("kubenode is built with Go 1.24 or newer: https://go.dev/dl")
    say(f"building {binary}: ten minutes or more on two processors, 4 GiB of disk meanwhile")
    binary.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kubenode-", dir=binary.parent.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        _go_build(made / "kubenode", Path(scratch))
        try:
            made.rename(binary.parent)
        except OSError:  # somebody else was first
            if not binary.exists():
                raise
    return binary


def _go_build(output: Path, scratch: Path) -> None:
    """One `go build`, with caches that are thrown away but for those that the user names."""
    caches = {"GOCACHE": str(scratch / "build"), "GOMODCACHE": str(scratch / "modules")}
    done = subprocess.run(
        ["go", "build", *_flags(), "-o", output, "."],
        cwd=MODULE,
        env={**caches, **os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-modcacherw"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise LoadtestError(f"go build failed:\n{done.stderr[-4000:]}")


def _flags() -> list[str]:
    """Reproducible, without symbols, with the version that Kubernetes' programs tell."""
    version = _kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    told = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    words = [
        f"-X {package}.{key}={value}"
        for package in _VERSION_PACKAGES
        for key, value in told.items()
    ]
    return ["-trimpath", "-ldflags", " ".join(["-s", "-w", *words])]


def _kubernetes_version() -> str:
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text())
    assert found is not None
    return found.group(1)


def _key() -> str:
    """Of all that goes into the binary: modules with their hashes, our source, flags."""
    digest = hashlib.sha256()
    for path in (MODULE / "go.mod", MODULE / "go.sum", MODULE / "main.go"):
        digest.update(path.read_bytes())
    digest.update(" ".join(_flags()).encode())
    return digest.hexdigest()[:16]
