"""`lodefs stats` and `lodefs top` against a server that answers as a proxy does."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl

import pytest

from tests.support.chunkstore.bad_server import BadServer
from tests.support.chunkstore.child_process import Child
from tests.support.lodefs.command_line import Lodefs
from tests.support.lodefs.metrics_text import Figures

STATS = {"time_s", "proxy_answers", "interval_s", "restarted", "reads_per_s", "bytes_per_s",
         "sources", "latency_s", "store_calls_per_s", "peer_received_bytes_per_s",
         "peer_sent_bytes_per_s", "requests", "fetching_bytes", "waiting_units"}  # fmt: skip
TIMEOUT_S = 60.0
ALTERNATE, NORMAL = b"\x1b[?1049h", b"\x1b[?25h\x1b[?1049l"


@pytest.fixture
def figures() -> Figures:
    """What the proxy has done."""
    found = Figures()
    found.datasets = {"vision/a": {"cache": (10, 1000)}}
    return found


@pytest.fixture
def proxy(figures: Figures) -> Iterator[str]:
    """The address of one."""
    with BadServer(figures.script) as server:
        yield server.endpoint_url


def test_stats(lodefs: Lodefs, proxy: str) -> None:
    """So many lines as were asked for, below one head; JSON with the documented keys."""
    ran = lodefs("stats", "--proxy", proxy, "--interval", "0.1", "--count", "3")
    assert ran.code == 0
    assert len(ran.out.splitlines()) == 4
    found = lodefs("--proxy", proxy, "stats", "--interval", "0.1", "--count", "2", "--json")
    assert [set(one) for one in found.json_lines] == [STATS, STATS]


def test_stats_without_a_proxy(lodefs: Lodefs) -> None:
    """Nobody there is an error; one that wants a token is another."""
    ran = lodefs("stats", "--proxy", "http://127.0.0.1:1", "--count", "1")
    assert (ran.code, ran.out) == (7, "")
    figures = Figures()
    figures.status = 401
    with BadServer(figures.script) as server:
        denied = lodefs("stats", "--proxy", server.endpoint_url, "--count", "1")
    assert denied.code == 6 and "LODEFS_TOKEN" in denied.err


def test_top_in_a_pipe(lodefs: Lodefs, proxy: str) -> None:
    """Without a terminal there are plain snapshots, and no control sequences."""
    ran = lodefs("top", "--proxy", proxy, "--interval", "0.1", "--count", "2")
    assert ran.code == 0
    assert ran.out.count("lodefs top") == 2 and "vision/a" in ran.out
    assert "\x1b" not in ran.out


class Screen:
    """`lodefs top` on a terminal of 40 columns."""

    def __init__(self, proxy: str) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        self._theirs = theirs
        self.before = termios.tcgetattr(theirs)
        path = f"/proc/{os.getpid()}/fd/{theirs}"
        shell = f'exec {sys.executable} -m lodefs.main top --proxy {proxy} <"$0" >"$0" 2>"$0"'
        # where SIGINT is ignored, as in the background, the program would ignore it, too
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.child = Child(["sh", "-c", shell, path], env={"TERM": "xterm"})
        signal.signal(signal.SIGINT, before)
        self.seen = b""

    def wait_for(self, what: bytes) -> None:
        """Reads until it has been drawn."""
        while what not in self.seen:
            ready, _, _ = select.select([self._ours], [], [], TIMEOUT_S)
            assert ready, self.seen[-200:]
            self.seen += os.read(self._ours, 4096)

    def wait(self) -> int:
        """Its exit code. What it draws is read meanwhile, as a terminal does: it waits for that."""
        end_s = time.monotonic() + TIMEOUT_S
        while self.child.process.poll() is None:
            assert time.monotonic() < end_s, self.seen[-200:]
            if select.select([self._ours], [], [], 0.05)[0]:
                self.seen += os.read(self._ours, 4096)
        return self.child.wait()

    def press(self, key: bytes) -> None:
        """A key."""
        os.write(self._ours, key)

    def after(self) -> list[object]:
        """The terminal's modes now."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        """It is over."""
        self.child.kill()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.mark.parametrize("end", ["key", "SIGINT", "SIGTERM"])
def test_top_on_a_terminal(proxy: str, end: str) -> None:
    """It draws on the other screen, sorts by a key, and leaves the terminal as it was, however it
    ends."""
    screen = Screen(proxy)
    try:
        screen.wait_for(b"vision/a")
        assert ALTERNATE in screen.seen
        screen.press(b"n")
        screen.wait_for(b"by name")
        if end == "key":
            screen.press(b"q")
        else:
            os.kill(screen.child.pid, getattr(signal, end))
        code = screen.wait()
        screen.wait_for(NORMAL)
        assert code == {"key": 0, "SIGINT": 130, "SIGTERM": 143}[end]
        assert screen.after() == screen.before
    finally:
        screen.close()
