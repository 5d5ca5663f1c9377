"""``lodefs top``."""

from __future__ import annotations

import shutil
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from lodefs.cli.options import examples, output_error, session_command, write_line
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.activity.node_activity import Watcher
    from lodefs.activity.screen import Order

SNAPSHOT_COLUMNS = 80  # where the output is no terminal


@click.command(epilog=examples("lodefs top", "lodefs top --sort store --count 1 | head -20"))
@click.option(
    "--interval",
    "interval_s",
    type=FiniteRange(min=0.1, max=3600.0),
    default=1.0,
    metavar="S",
    help="Between two looks [1].",
)
@click.option(
    "--sort",
    type=click.Choice(["bytes", "reads", "store", "name"]),
    default="bytes",
    help="Datasets and mounts by what [bytes].",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after N looks [until q or Ctrl-C].",
)
@session_command(store=True, proxy=True)
def top(session: Session, interval_s: float, sort: str, count: int | None) -> None:
    """Show live what the proxy serves: bytes a second by source, the hottest datasets and mounts,
    other nodes, what is fetched and what waits.

    Keys: b, r, s, n sort by bytes, reads, bytes of the store, name; space pauses; q ends. Where the
    output is no terminal it writes a plain snapshot for each look, with an empty line between.
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
            write_line("")
        for line in screen(watcher.next(), place, order, Size(columns, None)):
            write_line(line)
        try:
            sys.stdout.flush()
        except OSError as error:
            raise output_error(error) from None
        looks += 1
