"""Shows rates as a full screen, or as lines under a head, and draws on the terminal (ECMA-48 and
xterm's control sequences for the alternate screen; termios(3))."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import FrameType, TracebackType
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from lodefs.activity.node_activity import SOURCES, BySource, Rates, total
from lodefs.cli import text
from lodefs.cli.options import output_error
from lodefs.cli.text import size

_NAME_CHARS_MIN = 12
_CELL_CHARS = 12
_BAR = "█"
_NARROW_CHARS = 60
_PARTS_LINES_MIN = 3  # a heading and two lines
KEYS = "q quit  b bytes  r reads  s store  n name  space pause"
KEYS_NARROW = "q b r s n space"


class Order(StrEnum):
    """The sort order of datasets and mounts."""

    BYTES = "bytes"
    READS = "reads"
    STORE = "store"
    NAME = "name"


class Place(NamedTuple):
    """The proxy that is watched, for the first line."""

    proxy: str
    clock: str


class Size(NamedTuple):
    """The size of the screen; ``lines`` None: no limit."""

    columns: int
    lines: int | None


def screen(
    rates: Rates | None, place: Place, order: Order, size: Size, note: str = ""
) -> list[str]:
    """Returns the lines to show, none wider than the screen. ``rates``: None while the proxy does
    not answer; ``note``: the last line."""
    head = [f"lodefs top  {place.clock}  {text.escaped(place.proxy)}"]
    if rates is None:
        body = ["the proxy does not answer"]
    else:
        head += [*_state(rates), "", *_sources(rates, size.columns)]
        room = None if size.lines is None else size.lines - len(head) - (1 if note else 0)
        body = _tables(rates, order, size.columns, room)
    lines = [*head, *body]
    if size.lines is not None:
        kept = size.lines - (1 if note else 0)
        lines = lines[:kept] + [""] * (kept - len(lines))
    return [fit(line.rstrip(), size.columns) for line in [*lines, *([note] if note else [])]]


def _state(rates: Rates) -> list[str]:
    now = rates.activity
    latency = "" if rates.latency_s is None else f", first byte {rates.latency_s * 1000:.1f} ms"
    share = f" ({100 * now.cache_used_bytes / now.cache_limit_bytes:.0f} %)" \
        if now.cache_limit_bytes else ""  # fmt: skip
    fetching = f"{compact(now.fetching_bytes_now)} fetched"
    queue = f"{now.waiting_units_now:,.0f} fetches waiting, {now.warm_jobs_now:,.0f} warm jobs"
    lines = [
        f"reads {rates.total.reads:,.0f}/s{latency}",
        f"now {now.requests_now:,.0f} requests, {fetching}, {queue}",
        f"cache {compact(now.cache_used_bytes)} of {compact(now.cache_limit_bytes)}{share}",
    ]
    if now.peers:
        well = now.peers.get("well", 0)
        unwell = [f"{n:,.0f} {state}" for state, n in now.peers.items() if n and state != "well"]
        received, sent = compact(rates.peer_received_bytes), compact(rates.peer_sent_bytes)
        nodes = ", ".join([f"{well:,.0f} well", *unwell])
        lines.append(f"peers {nodes}; {received}/s from them, {sent}/s to them")
    if rates.restarted:
        lines.append("the proxy was restarted")
    return lines


def _sources(rates: Rates, columns: int) -> list[str]:
    """Returns a bar for each source; the longest is the fastest."""
    most = max(reads.read_bytes for reads in rates.sources.values())
    room = max(0, columns - 8 - _CELL_CHARS - 4)
    lines = []
    for source in SOURCES:
        size_bytes = rates.sources[source].read_bytes
        bar = _BAR * round(room * size_bytes / most) if most else ""
        lines.append(f"{source:<8}{compact(size_bytes) + '/s':>{_CELL_CHARS}}  {bar}")
    return lines


def _tables(rates: Rates, order: Order, columns: int, room: int | None) -> list[str]:
    """Datasets, then mounts, in the lines that are left."""
    named = {
        mountpoint: f"{mountpoint} {rates.activity.mount_of.get(mountpoint, '')}".rstrip()
        for mountpoint in rates.mounts
    }
    datasets = _table("DATASET", rates.datasets, order, columns, lambda name: name or "(others)")
    mounts = _table("MOUNT", rates.mounts, order, columns, lambda name: named[name])
    if room is None:
        return [*datasets, *mounts]
    for_mounts = min(len(mounts), max(_PARTS_LINES_MIN, room // 2)) if mounts else 0
    for_datasets = max(0, room - for_mounts)
    shown = datasets[:for_datasets]
    return [*shown, *mounts[: max(0, room - len(shown))]]


def _table(
    title: str,
    rows: dict[str, BySource],
    order: Order,
    columns: int,
    shown: Callable[[str], str],
) -> list[str]:
    """Returns a heading, and a line for each row; nothing without rows."""
    if not rows:
        return []
    wide = columns >= _NARROW_CHARS
    heads = ("bytes/s", "reads/s", "store/s") if wide else ("bytes/s",)
    name_chars = max(_NAME_CHARS_MIN, columns - len(heads) * _CELL_CHARS)
    lines = ["", _row(title, heads, name_chars)]
    for name in _sorted(rows, order):
        found = total(rows[name])
        store = rows[name].get("store")
        cells = [compact(found.read_bytes)]
        if wide:
            cells += [f"{found.reads:,.0f}", compact(store.read_bytes if store else 0)]
        lines.append(_row(text.escaped(shown(name)), cells, name_chars))
    return lines


def _row(name: str, cells: Sequence[str], name_chars: int) -> str:
    cut = fit(name, name_chars - 1)
    padding = " " * (name_chars - cell_len(cut))
    return cut + padding + "".join(f"{cell:>{_CELL_CHARS}}" for cell in cells)


def _sorted(rows: dict[str, BySource], order: Order) -> list[str]:
    def key(name: str) -> tuple[float, str]:
        found, store = total(rows[name]), rows[name].get("store")
        by = {
            Order.BYTES: found.read_bytes,
            Order.READS: found.reads,
            Order.STORE: store.read_bytes if store else 0.0,
            Order.NAME: 0.0,
        }
        return (-by[order], name)

    return sorted(rows, key=key)


def fit(line: str, columns: int) -> str:
    """Returns a text, cut to a number of columns; … marks a cut."""
    return line if cell_len(line) <= columns else set_cell_size(line, columns - 1).rstrip() + "…"


_COLUMN_CHARS = 10
_COLUMNS = (*SOURCES, "reads/s", "ms", "requests", "fetching")
GONE = "the proxy does not answer"
RESTARTED = "the proxy was restarted"


def head() -> str:
    """Returns the line above the lines of rates."""
    return "".join(f"{name:>{_COLUMN_CHARS}}" for name in _COLUMNS)


def line(rates: Rates) -> str:
    """Returns bytes a second by source; reads a second; mean time to the first byte; requests being
    answered and bytes being fetched now."""
    latency = "-" if rates.latency_s is None else f"{rates.latency_s * 1000:.1f}"
    cells = [
        *(compact(rates.sources[source].read_bytes) for source in SOURCES),
        f"{rates.total.reads:,.0f}",
        latency,
        f"{rates.activity.requests_now:,.0f}",
        compact(rates.activity.fetching_bytes_now),
    ]
    return "".join(f"{cell:>{_COLUMN_CHARS}}" for cell in cells)


def compact(size_bytes: float) -> str:
    """``12.3 MiB``; ``0`` for nothing."""
    return size(int(size_bytes)) if size_bytes >= 1 else "0"


def as_object(rates: Rates | None, time_s: float) -> dict[str, object]:
    """Returns the rates as JSON, for scripts; all are null while the proxy does not answer."""
    if rates is None:
        return dict.fromkeys(_KEYS) | {"time_s": round(time_s, 3), "proxy_answers": False}
    now = rates.activity
    values: dict[str, object] = {
        "time_s": round(time_s, 3),
        "proxy_answers": True,
        "interval_s": round(rates.interval_s, 3),
        "restarted": rates.restarted,
        "reads_per_s": round(rates.total.reads, 3),
        "bytes_per_s": round(rates.total.read_bytes, 1),
        "sources": {
            source: {
                "reads_per_s": round(rates.sources[source].reads, 3),
                "bytes_per_s": round(rates.sources[source].read_bytes, 1),
            }
            for source in SOURCES
        },
        "latency_s": None if rates.latency_s is None else round(rates.latency_s, 6),
        "store_calls_per_s": round(rates.store_calls, 3),
        "peer_received_bytes_per_s": round(rates.peer_received_bytes, 1),
        "peer_sent_bytes_per_s": round(rates.peer_sent_bytes, 1),
        "requests": int(now.requests_now),
        "fetching_bytes": int(now.fetching_bytes_now),
        "waiting_units": int(now.waiting_units_now),
    }
    assert values.keys() == set(_KEYS)
    return values


_KEYS = ("time_s", "proxy_answers", "interval_s", "restarted", "reads_per_s", "bytes_per_s",
         "sources", "latency_s", "store_calls_per_s", "peer_received_bytes_per_s",
         "peer_sent_bytes_per_s", "requests", "fetching_bytes", "waiting_units")  # fmt: skip


_ENTER = "\x1b[?1049h\x1b[?25l"  # the other screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def is_usable() -> bool:
    """Whether there is a terminal to draw on and to read keys from."""
    dumb = os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")
    return sys.stdout.isatty() and sys.stdin.isatty() and not dumb


class Terminal:
    """A context manager that sets up the terminal, and restores it whatever happens. Only for the
    main thread, since SIGTERM and SIGHUP must end it, too."""

    def __enter__(self) -> Terminal:
        self._fd = sys.stdin.fileno()
        self._modes = termios.tcgetattr(self._fd)
        self._handlers = {number: signal.signal(number, _end) for number in _SIGNALS}
        try:
            tty.setcbreak(self._fd)  # keys at once; Ctrl-C stays a signal
            modes = termios.tcgetattr(self._fd)
            modes[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the shell on this screen
            termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
            self._write(_ENTER)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._write(_LEAVE)
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def draw(self, lines: Sequence[str]) -> None:
        """Shows lines, which must fit. Raises: OSError."""
        body = "\r\n".join(line + _END_OF_LINE for line in lines)
        self._write(_HOME + body + _END_OF_SCREEN)

    def key(self, timeout_s: float) -> str:
        """Returns a key pressed within this time, "" without one, "q" without a keyboard."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, timeout_s))
        if not ready:
            return ""
        data = os.read(self._fd, 64)
        return data.decode("utf-8", "replace")[0] if data else "q"

    @staticmethod
    def size() -> Size:
        found = shutil.get_terminal_size()
        return Size(found.columns, found.lines)

    @staticmethod
    def _write(data: str) -> None:
        try:
            sys.stdout.write(data)
            sys.stdout.flush()
        except OSError as error:
            raise output_error(error) from None


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
