"""A real Prometheus, and its promtool. Debian's, unpacked into a cache if it is not installed: the
package's installation would start a server that nobody asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from loadtests.errors import LoadtestError
from loadtests.services import HOST, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child

PACKAGE = "prometheus"
DOWNLOAD_TIMEOUT_S = 300
ANSWER_TIMEOUT_S = 60


def programs() -> Path:
    """The folder of ``prometheus`` and ``promtool``. Raises: LoadtestError if there are none."""
    installed = shutil.which("promtool")
    if installed is not None:
        return Path(installed).parent
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "lodefs-dev" / PACKAGE
    if not (folder / "usr" / "bin" / "promtool").exists():
        _unpack(folder)
    return folder / "usr" / "bin"


def _unpack(folder: Path) -> None:
    """Downloads Debian's package; whole or not at all, also if several do so at once."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _run("apt-get", "download", "-qq", PACKAGE, cwd=partial)
        package = next(partial.glob("*.deb"))
        _run("dpkg", "-x", str(package), str(partial / "unpacked"), cwd=partial)
        try:
            (partial / "unpacked").rename(folder)
        except OSError:  # another was first
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run(*words: str, cwd: Path) -> None:
    try:
        subprocess.run(
            words, cwd=cwd, check=True, capture_output=True, timeout=DOWNLOAD_TIMEOUT_S, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or error
        raise LoadtestError(f"Debian's package {PACKAGE} cannot be had: {said}") from error


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        return list(self._ask("query", {"query": expression})["result"])

    def query_range(
        self, expression: str, start_s: float, end_s: float, step_s: float
    ) -> list[dict[str, Any]]:
        """The series of a time. Raises: LoadtestError if the expression is wrong."""
        span = {"start": f"{start_s}", "end": f"{end_s}", "step": f"{step_s}"}
        return list(self._ask("query_range", {"query": expression, **span})["result"])

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        alerts = self._ask("alerts", {})["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def _ask(self, path: str, words: Mapping[str, str]) -> dict[str, Any]:
        url = f"{self.url}/api/v1/{path}?{urlencode(words)}"
        try:
            with urlopen(url, timeout=ANSWER_TIMEOUT_S) as answer:
                found = json.load(answer)
        except OSError as error:
            said = error.read().decode() if hasattr(error, "read") else error
            raise LoadtestError(f"Prometheus answers {words} with {said}") from error
        return dict(found["data"])


@contextmanager
def prometheus(folder: Path, config: str) -> Iterator[Prometheus]:
    """One with its data in ``folder`` and the given prometheus.yml."""
    folder.mkdir(parents=True, exist_ok=True)
    path, port = folder / "prometheus.yml", free_port()
    path.write_text(config)
    argv = [
        str(programs() / "prometheus"),
        *(f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={HOST}:{port}", "--log.level=warn"),
    ]
    with Child(argv) as child:
        if not wait_for_port(child, port):
            raise child.failed(f"does not listen on port {port}")
        yield Prometheus(f"http://{HOST}:{port}")
