"""``lodefs stats``."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from lodefs.cli.options import (
    examples,
    json_option,
    output_error,
    session_command,
    write_json,
    write_line,
)
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.activity.node_activity import Watcher

HEAD_EVERY_LINES = 20  # on a terminal


@click.command(
    epilog=examples("lodefs stats", "lodefs stats --interval 10 --count 6 --json > minute.jsonl")
)
@click.option(
    "--interval",
    "interval_s",
    type=FiniteRange(min=0.1, max=86400.0),
    default=1.0,
    metavar="S",
    help="Between two lines [1].",
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="End after N lines [until Ctrl-C]."
)
@json_option
@session_command(store=True, proxy=True)
def stats(session: Session, interval_s: float, count: int | None, as_json: bool) -> None:
    """Write one line a second of what the proxy serves, like vmstat.

    Bytes a second that readers got, by source: direct (read from the cache's files without asking),
    cache (by the proxy), peers, store. Then reads a second, the mean time to the first byte of an
    answer in ms, requests that are answered now, bytes that are fetched now. Reads with passthrough
    are seen by nobody. A proxy that is restarted meanwhile is waited for.
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
            raise output_error(error) from None


def _write(watcher: Watcher, number: int, *, as_json: bool) -> None:
    from lodefs.activity.screen import GONE, RESTARTED, as_object, head, line

    rates = watcher.next()
    if as_json:
        write_json(as_object(rates, time.time()))
        return
    if number == 0 or (number % HEAD_EVERY_LINES == 0 and sys.stdout.isatty()):
        write_line(head())
    if rates is None:
        write_line(GONE)
        return
    if rates.restarted:
        write_line(RESTARTED)
    write_line(line(rates))
