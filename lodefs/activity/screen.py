"""Rates as a screen of some columns and lines. Pure: no terminal here."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from lodefs.activity.node_activity import SOURCES, BySource
from lodefs.activity.rates import Rates, total
from lodefs.activity.stats_lines import compact
from lodefs.cli import text

_NAME_CHARS_MIN = 12
_CELL_CHARS = 12
_BAR = "█"
_NARROW_CHARS = 60
_PARTS_LINES_MIN = 3  # a heading and two lines
KEYS = "q quit  b bytes  r reads  s store  n name  space pause"
KEYS_NARROW = "q b r s n space"


class Order(StrEnum):
    """What datasets and mounts are sorted by."""

    BYTES = "bytes"
    READS = "reads"
    STORE = "store"
    NAME = "name"


class Place(NamedTuple):
    """What is watched, for the first line."""

    proxy: str
    clock: str


class Size(NamedTuple):
    """Of the screen; ``lines`` None: as many as there are."""

    columns: int
    lines: int | None


def screen(
    rates: Rates | None, place: Place, order: Order, size: Size, note: str = ""
) -> list[str]:
    """The lines to show, none wider than the screen. ``rates``: None while the proxy does not
    answer; ``note`` stands in the last line."""
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
    """A bar for each source; the longest is the fastest."""
    most = max(reads.read_bytes for reads in rates.sources.values())
    room = max(0, columns - 8 - _CELL_CHARS - 4)
    lines = []
    for source in SOURCES:
        size_bytes = rates.sources[source].read_bytes
        bar = _BAR * round(room * size_bytes / most) if most else ""
        lines.append(f"{source:<8}{compact(size_bytes) + '/s':>{_CELL_CHARS}}  {bar}")
    return lines


def _tables(rates: Rates, order: Order, columns: int, room: int | None) -> list[str]:
    """Datasets, then mounts, in the lines that there are."""
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
    """A heading and a line for each; nothing without rows."""
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
    padding = " " * (name_chars - width(cut))
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


def width(line: str) -> int:
    """Columns that a text takes on a terminal (Unicode Standard Annex 11)."""
    if line.isascii():
        return len(line)
    return sum(_width(character) for character in line)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(line: str, columns: int) -> str:
    """A text cut to so many columns; … says that it was cut."""
    if width(line) <= columns:
        return line
    kept, used = [], 0
    for character in line:
        used += _width(character)
        if used > columns - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"
