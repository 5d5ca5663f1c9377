"""Network namespaces with their own addresses, joined by a bridge in a further namespace.

Everything is named after the process that made it (its id and the tick it started at), so that
what a killed run left behind is known and removed by the next. Uses iproute2; needs root.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtests.errors import LoadtestError

PREFIX = "lodefs-load"
SUBNET = "10.77.0"  # seen inside of the namespaces only
SWITCH = "switch"
NOWHERE = "02:00:00:00:00:01"  # a hardware address that nobody has
TIMEOUT_S = 30.0
BURST_BYTES_MIN = 256 << 10  # less than a large packet would pass nothing
_CLONE_NEWNET = 0x40000000
_NAMES = Path("/run/netns")
_NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-\w+")


@dataclass(frozen=True, slots=True)
class Link:
    """The rate, delay and loss of a host's link, in each direction. 0: none."""

    bytes_per_s: int = 0
    latency_s: float = 0.0
    loss: float = 0.0  # of packets, 0 to 1


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace: ``namespace`` as iproute2 knows it, and its one address."""

    namespace: str
    address: str
    port: str  # of the switch

    def argv(self, command: Iterable[str | Path]) -> list[str]:
        """``command`` run inside; it is killed with the thread that starts it."""
        into = ["nsenter", f"--net={_NAMES / self.namespace}"]
        return [*into, "setpriv", "--pdeathsig", "KILL", *(str(word) for word in command)]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes new sockets and processes of this thread belong to the namespace."""
        with open("/proc/thread-self/ns/net") as before, open(_NAMES / self.namespace) as inside:
            _enter(inside.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


class Network:
    """A switch and its hosts."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self._run = run_name(os.getpid())
        self._switch = f"{self._run}-{SWITCH}"

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Network]:
        """A network without hosts; all is removed at the end. Raises: LoadtestError without
        root."""
        if os.geteuid() != 0:
            raise LoadtestError("load tests make network namespaces: run this as root")
        remove_leftovers()
        network = cls()
        try:
            _ip("netns", "add", network._switch)
            _batch(network._switch, "link add br0 type bridge forward_delay 0", "link set br0 up")
            yield network
        finally:
            network._remove()

    def add(self, name: str, number: int) -> Host:
        """A new host ``name`` with the address that ends in ``number``."""
        host = Host(f"{self._run}-{name}", f"{SUBNET}.{number}", f"port{number}")
        _ip("netns", "add", host.namespace)
        peer = f"type veth peer name eth0 netns {host.namespace}"
        _batch(
            self._switch,
            f"link add {host.port} {peer}",
            f"link set {host.port} master br0 up",
        )
        _batch(
            host.namespace,
            "link set lo up",
            f"address add {host.address}/24 dev eth0",
            "link set eth0 up",
        )
        self.hosts[name] = host
        return host

    def shape(self, host: Host, link: Link) -> None:
        """Gives a host's link its rate, latency and loss, in both directions.

        LoadtestError where the kernel lacks what that needs (tbf for the rate, netem for the rest).
        """
        for namespace, device in ((host.namespace, "eth0"), (self._switch, host.port)):
            for words in shaping(link):
                _traffic(namespace, device, words)

    def unplug(self, host: Host) -> None:
        """Takes the host's link down, as if its machine were gone."""
        _batch(self._switch, f"link set {host.port} down")

    def plug(self, host: Host) -> None:
        """Brings the host's link up again."""
        _batch(self._switch, f"link set {host.port} up")

    def part(self, one: Iterable[Host], other: Iterable[Host]) -> None:
        """Drops packets between the two groups silently, until ``heal``."""
        one, other = list(one), list(other)
        for group, far in ((one, other), (other, one)):
            for host in group:
                lines = [f"{far_one.address} lladdr {NOWHERE}" for far_one in far]
                _batch(
                    host.namespace,
                    *(f"neighbour replace {line} nud permanent dev eth0" for line in lines),
                )

    def heal(self) -> None:
        """Lets all hosts reach each other again."""
        for host in self.hosts.values():
            _batch(host.namespace, "neighbour flush dev eth0 nud permanent")

    def _remove(self) -> None:
        for name in _existing():
            if name.startswith(f"{self._run}-"):
                _remove_namespace(name)


def shaping(link: Link) -> list[str]:
    """The arguments of tc for a link, one line for each queueing discipline, outermost first."""
    lines = []
    parent = "root"
    if link.latency_s or link.loss:
        delay, loss = f"delay {link.latency_s * 1e3:g}ms", f"loss {link.loss * 100:g}%"
        lines.append(f"{parent} handle 1: netem {delay} {loss} limit 100000")
        parent = "parent 1:"
    if link.bytes_per_s:
        burst = max(BURST_BYTES_MIN, link.bytes_per_s // 100)
        rate = f"rate {link.bytes_per_s * 8}bit burst {burst} latency 50ms"
        lines.append(f"{parent} handle 2: tbf {rate}")
    return lines


def run_name(pid: int) -> str:
    """The prefix of all names of a run, unique to its process."""
    return f"{PREFIX}-{pid}-{_started(pid)}"


def is_over(name: str) -> bool:
    """Whether ``name`` belongs to a run whose process has ended."""
    match = _NAME.match(name)
    return match is not None and _started(int(match[1])) != int(match[2])


def remove_leftovers() -> None:
    """Removes the namespaces of ended runs, and kills what still runs inside them."""
    for name in _existing():
        if is_over(name):
            _remove_namespace(name)


def _existing() -> list[str]:
    return sorted(os.listdir(_NAMES)) if _NAMES.exists() else []


def _remove_namespace(name: str) -> None:
    """Without an error: what cannot be removed now is a leftover for the next run."""
    with suppress(LoadtestError):
        for pid in _ip("netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    with suppress(LoadtestError):
        _ip("netns", "delete", name)


def _started(pid: int) -> int:
    """The clock tick at which a process started; 0 if none runs. Source: proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _enter(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise LoadtestError(f"cannot enter a network namespace: {os.strerror(error)}")


def _traffic(namespace: str, device: str, words: str) -> None:
    try:
        _run(["tc", "-n", namespace, "qdisc", "replace", "dev", device, *words.split()])
    except LoadtestError as error:
        if "qdisc kind is unknown" not in str(error):
            raise
        kind = "netem" if "netem" in words else "tbf"
        raise LoadtestError(
            f"this kernel has no {kind} (CONFIG_NET_SCH_{kind.upper()}), which a node's "
            f"{'latency and loss' if kind == 'netem' else 'rate'} need: leave them out"
        ) from None


def _ip(*words: str) -> str:
    return _run(["ip", *words])


def _batch(namespace: str, *lines: str) -> None:
    """Runs several commands of ``ip`` inside a namespace in one process."""
    if lines:
        _run(["ip", "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")


def _run(argv: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise LoadtestError(f"{argv[0]} is missing: install iproute2") from None
    if done.returncode != 0:
        raise LoadtestError(f"{' '.join(argv)}: {done.stderr.strip()} {text.strip()}".strip())
    return done.stdout
