"""``lodefs top`` and ``lodefs stats``."""

from __future__ import annotations

import shutil
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from lodefs.cli import options as cli
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.activity.node_activity import Watcher
    from lodefs.activity.screen import Order


SNAPSHOT_COLUMNS = 80  # where the output is no terminal


@cli.command("lodefs top", "lodefs top --sort store --count 1 | head -20", store=True, proxy=True)
def top(
    session: Session,
    interval_s: float = cli.option(
        "Between two looks [1].",
        "--interval",
        default=1.0,
        type=FiniteRange(min=0.1, max=3600.0),
        metavar="S",
    ),
    sort: str = cli.option(
        "Datasets and mounts by what [bytes].",
        default="bytes",
        choices=("bytes", "reads", "store", "name"),
    ),
    count: int | None = cli.option(
        "End after N looks [until q or Ctrl-C].", between=(1, None), metavar="N"
    ),
) -> None:
    """Show live what the proxy serves: bytes a second by source, the hottest datasets and mounts,
    other nodes, fetches, and waiting requests.

    Keys: b, r, s, n sort by bytes, reads, bytes of the store, name; space pauses; q ends. If the
    output is not a terminal, it writes a plain snapshot for each look, with an empty line between.
    """
    from lodefs.activity import screen
    from lodefs.activity.node_activity import Watcher, look
    from lodefs.activity.screen import Order
    from lodefs.proxies.own_proxy import running_proxy

    url = running_proxy(session)
    watcher = Watcher(partial(look, url, session.environment.get("LODEFS_TOKEN")))
    if screen.is_usable():
        _live(watcher, url, Order(sort), interval_s, count)
    else:
        _snapshots(watcher, url, Order(sort), interval_s, count)


def _live(watcher: Watcher, url: str, order: Order, interval_s: float, count: int | None) -> None:
    from lodefs.activity import screen
    from lodefs.activity.screen import Terminal

    orders = {"b": screen.Order.BYTES, "r": screen.Order.READS, "s": screen.Order.STORE,
              "n": screen.Order.NAME}  # fmt: skip
    rates, paused, looks = None, False, 0
    waiting = "…"  # until the second look
    with Terminal() as drawn:
        due_s = time.monotonic() + min(interval_s, 1.0)
        while True:
            size = drawn.size()
            keys = screen.KEYS if size.columns >= len(screen.KEYS) else screen.KEYS_NARROW
            note = waiting or (f"paused  {keys}" if paused else f"by {order}  {keys}")
            place = screen.Place(url, time.strftime("%H:%M:%S"))
            shown = ["lodefs top", waiting] if waiting else screen.screen(
                rates, place, order, size, note
            )  # fmt: skip
            drawn.draw(shown)
            if count is not None and looks >= count:
                return
            key = drawn.key(due_s - time.monotonic())
            if key == "q":
                return
            if key == " ":
                paused = not paused
            order = orders.get(key, order)
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + interval_s
                found = watcher.next()
                if not paused:
                    rates = found
                waiting, looks = "", looks + 1


def _snapshots(
    watcher: Watcher, url: str, order: Order, interval_s: float, count: int | None
) -> None:
    from lodefs.activity.screen import Place, Size, screen

    columns = shutil.get_terminal_size((SNAPSHOT_COLUMNS, 0)).columns  # COLUMNS, if it is set
    looks = 0
    while count is None or looks < count:
        time.sleep(interval_s)
        place = Place(url, time.strftime("%H:%M:%S"))
        if looks:
            cli.write_line("")
        for line in screen(watcher.next(), place, order, Size(columns, None)):
            cli.write_line(line)
        try:
            sys.stdout.flush()
        except OSError as error:
            raise cli.output_error(error) from None
        looks += 1


HEAD_EVERY_LINES = 20  # on a terminal


@cli.command(
    "lodefs stats",
    "lodefs stats --interval 10 --count 6 --json > minute.jsonl",
    store=True,
    proxy=True,
)
def stats(
    session: Session,
    interval_s: float = cli.option(
        "Between two lines [1].",
        "--interval",
        default=1.0,
        type=FiniteRange(min=0.1, max=86400.0),
        metavar="S",
    ),
    count: int | None = cli.option(
        "End after N lines [until Ctrl-C].", between=(1, None), metavar="N"
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Write one line a second about the proxy's work, like vmstat.

    It shows the bytes a second that readers got, by source: direct (read from the cache's files
    without asking), cache (by the proxy), peers, store. Then come reads a second, the mean time to
    the first byte of an answer in ms, requests under way, and bytes being fetched. Nobody sees
    reads with passthrough. If the proxy is restarted meanwhile, the command waits for it.
    """
    from lodefs.activity.node_activity import Watcher, look
    from lodefs.proxies.own_proxy import running_proxy

    token = session.environment.get("LODEFS_TOKEN")
    watcher = Watcher(partial(look, running_proxy(session), token))
    lines = 0
    due_s = time.monotonic()
    while count is None or lines < count:
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        _write(watcher, lines, as_json=as_json)
        lines += 1
        try:
            sys.stdout.flush()
        except OSError as error:
            raise cli.output_error(error) from None


def _write(watcher: Watcher, number: int, *, as_json: bool) -> None:
    from lodefs.activity.screen import GONE, RESTARTED, as_object, head, line

    rates = watcher.next()
    if as_json:
        cli.write_json(as_object(rates, time.time()))
        return
    if number == 0 or (number % HEAD_EVERY_LINES == 0 and sys.stdout.isatty()):
        cli.write_line(head())
    if rates is None:
        cli.write_line(GONE)
        return
    if rates.restarted:
        cli.write_line(RESTARTED)
    cli.write_line(line(rates))
