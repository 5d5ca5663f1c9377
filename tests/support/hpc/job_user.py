"""An ordinary user without any privilege, as jobs on a cluster's node are, and a /dev/fuse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import lodefs
from tests.support.chunkstore import leftovers
from tests.support.chunkstore.child_process import private_directory
from tests.support.mount.mounts import until

# Ids that Debian gives to nobody. Test runs side by side have users of their own, so that all
# processes of a user are of one test.
_RUN = int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", ""))) or 0)
UID = 61000 + _RUN
GROUP = 62000  # of those who may use a proxy
TIMEOUT_S = 120.0
ROOT = Path(lodefs.__file__).parents[1]
STAND_IN = "tests/support/hpc/enroot.py"


class JobUser:
    """The user; ``home`` lies in ``folder``, which others may enter. ``environment``: what
    commands find set. Python and this package are shown there, where the user may read them."""

    def __init__(self, folder: Path, mounted: ExitStack) -> None:
        self.folder = folder
        self.home = folder / "home"
        folder.chmod(0o755)
        self.owned(self.home)
        places = [sys.base_prefix, str(ROOT), sysconfig.get_path("purelib")]
        shown = [folder / name for name in ("python", "code", "packages")]
        for source, target in zip(places, shown, strict=True):
            target.mkdir()
            mounted.enter_context(bound(source, target))
        prefix, code, packages = shown
        self.python = str(prefix / "bin" / Path(sys.executable).resolve().name)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": f"{code}:{packages}",
            "LD_LIBRARY_PATH": str(prefix / "lib"),  # where Python is a shared library
            "LODEFS_CONFIG": os.devnull,
        }

    def owned(self, directory: Path, mode: int = 0o755) -> Path:
        """A new directory of the user's."""
        directory.mkdir()
        os.chown(directory, UID, UID)
        directory.chmod(mode)
        return directory

    def start(self, *words: str, groups: tuple[int, ...] = (GROUP,)) -> subprocess.Popen[str]:
        """Start a command as the user, without any capability."""
        more = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
        ids = ["--reuid", str(UID), "--regid", str(UID), *more, "--inh-caps=-all"]
        return subprocess.Popen(
            ["setpriv", *ids, "--", *words],
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, groups: tuple[int, ...] = (GROUP,)) -> tuple[int, str, str]:
        """Exit code, output and errors of a command."""
        with self.start(*words, groups=groups) as process:
            out, err = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, out, err

    def lodefs(self, *words: str) -> list[str]:
        """The command line of ``lodefs``."""
        return [self.python, "-m", "lodefs.main", *words]

    def wait_for_end(self, but: int = 0) -> None:
        """Wait until the user has no process any more, or ``but`` so many."""
        until(lambda: len(processes()) <= but)

    def close(self) -> None:
        """End what is left."""
        for pid in processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_for_end()


def processes() -> list[int]:
    """All processes of the user that have not ended."""
    line, found = f"\nUid:\t{UID}\t", []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            status = Path(f"/proc/{name}/status").read_text("utf-8", "replace")
            if line in status and "\nState:\tZ" not in status:
                found.append(int(name))
    return found


@contextmanager
def bound(source: str, target: Path | str) -> Iterator[None]:
    """One directory or file at the place of another, in this process's mount namespace."""
    _run("mount", "--bind", source, str(target))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(target))


def _fuse_for_all(mounted: ExitStack) -> None:
    """/dev/fuse with mode 0666, as udev makes it."""
    if os.stat("/dev/fuse").st_mode & 0o666 == 0o666:
        return
    folder = mounted.enter_context(private_directory())
    _run("mount", "-t", "tmpfs", "tmpfs", str(folder))
    mounted.callback(_run, "umount", str(folder))
    _run("mknod", "-m", "666", str(folder / "fuse"), "c", "10", "229")
    mounted.enter_context(bound(str(folder / "fuse"), "/dev/fuse"))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=TIMEOUT_S)


@contextmanager
def job_user() -> Iterator[JobUser]:
    """A user with a home and /dev/fuse, of whom nothing is left afterwards. Needs root."""
    with leftovers.claimed("job-") as folder, ExitStack() as mounted:
        _fuse_for_all(mounted)
        user = JobUser(folder, mounted)
        try:
            yield user
        finally:
            user.close()


class Enroot:
    """The stand-in for enroot (``enroot.py``), for one user. Its image is an empty directory but
    for /data, a mount point as enroot makes them: of mode 0000."""

    def __init__(self, user: JobUser) -> None:
        self.user = user
        self.image = user.owned(user.folder / "image")
        user.owned(self.image / "data", 0)
        self.runtime = user.owned(user.folder / "runtime")
        self.hooks = user.owned(user.folder / "hooks")
        user.environment["ENROOT_RUNTIME_PATH"] = str(self.runtime)

    def hook(self, name: str, *lines: str) -> None:
        """Install a system hook."""
        path = self.hooks / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)

    def words(self, *arguments: str, command: str) -> list[str]:
        """The command line of ``enroot start``."""
        hooks = ["--hooks", str(self.hooks)]
        start = [
            self.user.python,
            str(self.user.folder / "code" / STAND_IN),
            *arguments,
            *hooks,
            str(self.image),
        ]
        return [*start, "sh", "-c", command]

    def start(self, *arguments: str, command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a container with a command of a shell."""
        self._set(environment)
        return self.user.start(*self.words(*arguments, command=command))

    def run(self, *arguments: str, command: str, **environment: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a container."""
        self._set(environment)
        return self.user.run(*self.words(*arguments, command=command))

    def _set(self, environment: Mapping[str, str]) -> None:
        self.user.environment |= environment
