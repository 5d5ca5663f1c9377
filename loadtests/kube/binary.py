"""Programs of Kubernetes that the tests run: built once by Go, and kept outside of the checkout.

kubenode is etcd, API server, controllers, scheduler, kubelet, kubectl and helm in one binary, which
takes ten minutes and more; provisioner is the external-provisioner, which makes volumes of a
StorageClass. Each lies under a key that changes with whatever goes into it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtests.errors import LoadtestError

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 5400.0
_STRIPPED = ("-s", "-w")  # no symbols
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")

Say = Callable[[str], None]


@dataclass(frozen=True)
class GoProgram:
    """A package of a module of ours, whose go.sum has the hash of all that it is built of.
    ``costs``: of the build, as told before it."""

    name: str
    package: str
    linker_flags: tuple[str, ...]
    costs: str

    @property
    def module(self) -> Path:
        """The module's directory."""
        return HERE / self.name

    @property
    def binary(self) -> Path:
        """The path for this checkout, once it is built."""
        return cache_directory() / f"{self.name}-{self._key()}" / self.name

    def build(self, say: Say) -> Path:
        """The binary; it is built first where it is not there.

        Raises: LoadtestError where Go is missing or the build fails, with the end of what it said.
        """
        binary = self.binary
        if binary.exists():
            return binary
        if not shutil.which("go"):
            raise LoadtestError(f"{self.name} is built with Go 1.24 or newer: https://go.dev/dl")
        say(f"building {binary}: {self.costs}")
        cache = cache_directory()
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{self.name}-", dir=cache) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            self._go_build(made / self.name, Path(scratch))
            try:
                made.rename(binary.parent)
            except OSError:  # somebody else was first
                if not binary.exists():
                    raise
        return binary

    def _go_build(self, output: Path, scratch: Path) -> None:
        """Runs one `go build`, with temporary caches except those that the user names."""
        caches = {"GOCACHE": str(scratch / "build"), "GOMODCACHE": str(scratch / "modules")}
        done = subprocess.run(
            ["go", "build", *self._flags(), "-o", output, self.package],
            cwd=self.module,
            env={**caches, **os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-modcacherw"},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise LoadtestError(f"go build failed:\n{done.stderr[-4000:]}")

    def _flags(self) -> list[str]:
        """Reproducible: the binary does not know where it was built."""
        return ["-trimpath", "-ldflags", " ".join(self.linker_flags)]

    def _key(self) -> str:
        """A digest of all inputs of the binary: modules with their hashes, our source, flags."""
        digest = hashlib.sha256()
        for path in (self.module / name for name in ("go.mod", "go.sum", "main.go")):
            if path.exists():
                digest.update(path.read_bytes())
        digest.update(" ".join(self._flags()).encode())
        return digest.hexdigest()[:16]


def cache_directory() -> Path:
    """Where lodefs' builds for tests are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "lodefs"


def _kubernetes_version() -> tuple[str, ...]:
    """Linker flags for the version that Kubernetes' programs report."""
    found = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)", _go_mod("kubenode"))
    assert found is not None
    told = dict(zip(("gitVersion", "gitMajor", "gitMinor"), found.groups(), strict=True))
    return tuple(
        f"-X {package}.{key}={value}"
        for package in _VERSION_PACKAGES
        for key, value in told.items()
    )


def _go_mod(name: str) -> str:
    return (HERE / name / "go.mod").read_text()


KUBENODE = GoProgram(
    name="kubenode",
    package=".",
    linker_flags=(*_STRIPPED, *_kubernetes_version()),
    costs="ten minutes or more on two processors, 4 GiB of disk meanwhile",
)
PROVISIONER = GoProgram(
    name="provisioner",
    package="github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner",
    linker_flags=_STRIPPED,
    costs="three minutes or more on two processors, 2 GiB of disk meanwhile",
)
