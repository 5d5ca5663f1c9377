"""A real dockerd with its own containerd, data and socket, and an image made of busybox.

Needs root and the Debian packages docker.io and busybox-static. It shares with another dockerd of
the machine only the places where every dockerd looks for plugins: ``plugin`` borrows a name there.
Containers have no network (``--network none``) or the machine's.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from tests.support.chunkstore.child_process import TIMEOUT_S, Child, ChildError, private_directory

IMAGE = "lodefs-busybox"
BUSYBOX = "/bin/busybox"
PLUGIN_SOCKETS = Path("/run/docker/plugins")  # a file's name there is the driver's name
_TIED = ("setpriv", "--pdeathsig", "KILL")  # dockerd dies with the thread that started it
_POLL_S = 0.02


class Dockerd:
    """A running dockerd. All that it writes lies below ``directory``, but for cgroups of containers
    and sockets of their shims.

    With ``live_restore`` containers outlive it (``restart``); else they are stopped with it.
    """

    def __init__(self, directory: Path, *, live_restore: bool = False) -> None:
        self.directory = directory
        self.live_restore = live_restore
        self._ended_logs = ""
        (directory / "client").mkdir(exist_ok=True)
        # else it would write a key of its own to /etc/docker
        settings = {"deprecated-key-path": str(directory / "key.json")}
        (directory / "daemon.json").write_text(json.dumps(settings))
        self._child = self._start()

    @property
    def pid(self) -> int:
        """The process id of dockerd itself."""
        return self._child.pid

    @property
    def host(self) -> str:
        """What DOCKER_HOST takes."""
        return f"unix://{self.directory}/docker.sock"

    @property
    def log(self) -> str:
        """All that it has written, also before it was restarted."""
        return self._ended_logs + self._child.output

    def environment(self) -> dict[str, str]:
        """What makes ``docker`` talk to it, and read nothing of the user's own configuration."""
        return {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.directory / "client")}

    def docker(self, *words: str | Path, timeout_s: float = TIMEOUT_S) -> str:
        """One call of ``docker``: its output, stripped; ChildError where it fails."""
        done = self.try_docker(*words, timeout_s=timeout_s)
        if done.returncode != 0:
            raise ChildError(f"docker {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout.strip()

    def try_docker(
        self, *words: str | Path, timeout_s: float = TIMEOUT_S, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One call of ``docker``, however it ends; subprocess.TimeoutExpired where it is late."""
        done = subprocess.run(
            ["docker", *map(str, words)],
            env={**os.environ, **self.environment()},
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        out, err = (raw.decode("utf-8", "replace") for raw in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def restart(
        self, sent: signal.Signals = signal.SIGTERM, *, live_restore: bool | None = None
    ) -> None:
        """Ends dockerd by a signal and starts it again; returns when it answers."""
        self.end(sent)
        self._ended_logs += self._child.output
        if live_restore is not None:
            self.live_restore = live_restore
        self._child = self._start()

    def end(self, sent: signal.Signals = signal.SIGTERM) -> None:
        """Ends dockerd alone, and waits; ChildError where it does not obey."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, sent)
        try:
            self._child.wait()
        finally:
            self._child.kill()
        self._end_containerd()

    def close(self) -> None:
        """Ends it with all its containers, processes and mounts; fine where it is dead already."""
        if self._child.process.poll() is None:
            with suppress(ChildError, subprocess.TimeoutExpired):
                self._remove_containers()
            with suppress(ChildError):
                self.end()
        _kill([*_with_descendants(self._own_processes()), *self._contained()])
        _wait_until(lambda: not self._own_processes())
        for address in self.directory.glob("exec/containerd/daemon/*/*/*/address"):
            Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)
        for mount_point in self.mounts_left():
            subprocess.run(["umount", "-l", mount_point], check=False, capture_output=True)

    def end_orphans(self) -> int:
        """Ends processes of containers that it has forgotten; how many there were. A dockerd that
        is killed while it starts a container leaves one that waits for ever to begin."""
        known = self.docker("ps", "--all", "--quiet", "--no-trunc").split()
        orphans = [
            pid
            for pid in self._contained()
            if not any(container in _read(f"/proc/{pid}/cgroup").decode() for container in known)
        ]
        _kill(orphans)
        return len(orphans)

    def mounts_left(self) -> list[str]:
        """Mount points below its directory, the deepest first."""
        found = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return sorted((m for m in found if m.startswith(f"{self.directory}/")), reverse=True)

    @contextmanager
    def plugin(self, socket: Path, name: str = "") -> Iterator[str]:
        """A driver name (``name``, or one that nobody has) under which it finds the plugin that
        listens on ``socket``. Containers and volumes with it must be removed before this ends.

        dockerd is restarted then: it would go on looking, for 15 s each time that a volume is not
        known or all are listed, for a driver that it has known."""
        name = name or f"lodefs-{secrets.token_hex(4)}"
        PLUGIN_SOCKETS.mkdir(parents=True, exist_ok=True)
        link = PLUGIN_SOCKETS / f"{name}.sock"
        link.symlink_to(socket)
        try:
            yield name
        finally:
            link.unlink(missing_ok=True)
            if self._child.process.poll() is None:
                self.restart()

    def _start(self) -> Child:
        d = self.directory
        argv: list[str | Path] = [
            *(*_TIED, "dockerd", "--config-file", d / "daemon.json", "--host", self.host),
            *("--data-root", d / "data", "--exec-root", d / "exec", "--pidfile", d / "docker.pid"),
            *("--iptables=false", "--ip6tables=false", "--bridge=none", "--shutdown-timeout=5"),
            *(["--live-restore"] if self.live_restore else []),
        ]
        child = Child(argv)
        try:
            child.wait_for(r"API listen on ")
        except ChildError:
            child.kill()
            raise
        return child

    def _end_containerd(self) -> None:
        """Waits until its containerd, which dies with it, is gone. Where nobody takes its exit
        code the next dockerd would wait for it in vain, hence without its pid file."""
        pid_file = self.directory / "exec/containerd/containerd.pid"
        pid = _read(str(pid_file)).decode()
        if pid:
            _wait_until(lambda: not _read(f"/proc/{pid}/cmdline"))  # empty once it has ended
            pid_file.unlink(missing_ok=True)

    def _remove_containers(self) -> None:
        containers = self.docker("ps", "--all", "--quiet", "--no-trunc").split()
        if containers:
            self.docker("rm", "--force", "--volumes", *containers)

    def _contained(self) -> list[int]:
        """The processes in containers: their root is made of layers below its directory."""
        mark = f"{self.directory}/data/".encode()
        return [pid for pid in _processes() if mark in _root_mount(pid)]

    def _own_processes(self) -> list[int]:
        """Its containerd and shims: what has a path below its directory in its arguments."""
        mark = f"{self.directory}/exec".encode()
        return [pid for pid in _processes() if mark in _read(f"/proc/{pid}/cmdline")]


@contextmanager
def dockerd(*, live_restore: bool = False) -> Iterator[Dockerd]:
    """A running dockerd in a private directory, which has the image IMAGE; ended afterwards.

    ChildError, with the end of its log, where it does not start.
    """
    with private_directory("ld-") as directory:
        daemon = Dockerd(directory, live_restore=live_restore)
        try:
            import_image(daemon)
            yield daemon
        finally:
            daemon.close()


def import_image(daemon: Dockerd, name: str = IMAGE) -> None:
    """Makes an image of busybox-static and links to all that it can do."""
    command = ["import", "--change", 'CMD ["/bin/sh"]', "-", name]
    done = daemon.try_docker(*command, stdin=_busybox_root())
    if done.returncode != 0:
        raise ChildError(f"docker import: {done.stderr}")


def _busybox_root() -> bytes:
    """A root file system with busybox, as tar."""
    if not shutil.which(BUSYBOX):
        raise ChildError(f"{BUSYBOX} is missing; apt-get install busybox-static")
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, check=True, text=True)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("bin", "tmp", "data"):
            made = tarfile.TarInfo(folder)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(made)
        tar.add(Path(BUSYBOX).resolve(), "bin/busybox")
        for applet in set(applets.stdout.split()) - {"busybox"}:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return out.getvalue()


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _with_descendants(pids: list[int]) -> list[int]:
    """The processes and all that they started, children before their parents."""
    children: dict[int, list[int]] = {}
    for pid in _processes():
        children.setdefault(_parent(pid), []).append(pid)
    found, left = [], list(pids)
    while left:
        pid = left.pop()
        if pid not in found:
            found.append(pid)
            left += children.get(pid, [])
    return found[::-1]


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _root_mount(pid: int) -> bytes:
    """The line of a process's mount table that tells what its root is."""
    lines = _read(f"/proc/{pid}/mountinfo").splitlines()
    return next((line for line in lines if line.split()[4] == b"/"), b"")


def _parent(pid: int) -> int:
    status = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    return int(status[1]) if status else 0


def _read(path: str) -> bytes:
    """A file of /proc; nothing where its process is gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _wait_until(is_so: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    deadline = monotonic() + timeout_s
    while not is_so() and monotonic() < deadline:
        sleep(_POLL_S)
