"""``lodefs bench-store``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.objects.schemes import scheme_of
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import FiniteRange
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import FIRST_TIME_S_MAX, FIRST_TIMEOUT_S, Session, absolute

if TYPE_CHECKING:
    from lodefs.bench_store import Advice, Measured
    from lodefs.chunkstore.objects.interface import ObjectStore

REQUEST_TIMEOUT_S = 30.0
BYTES_MAX = "4GiB"


def _size(ctx: click.Context, param: click.Parameter, value: Any) -> int:  # noqa: ARG001
    from lodefs.proxy.config import parse_size

    try:
        return parse_size(value)
    except InvalidInput as error:
        raise click.BadParameter(f"{error}, not {value!r}") from None


@cli.command(
    "lodefs bench-store s3://bucket/datasets",
    "lodefs bench-store --write --json | jq .recommended.fetch_concurrency",
    name="bench-store",
    store=True,
)
def bench_store(
    session: Session,
    url: str | None = cli.argument("[STORE]"),
    write: bool = cli.option("Also measure writing: writes 128 MiB and removes them."),
    seconds: float = cli.option(
        "Duration of each of the ten steps [2].",
        default=2.0,
        type=FiniteRange(0.05, 60.0),
        metavar="S",
    ),
    bytes_max: int = cli.option(
        f"Read at most this much in total [{BYTES_MAX}].",
        default=BYTES_MAX,
        metavar="SIZE",
        callback=_size,
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Measure how fast a store is, and recommend settings for it.

    It measures the time to the first byte, throughput with 1, 4, 16 and 64 parallel requests and
    with ranges of 1 to 16 MiB, the speed of listing and, with --write, of writing. It reads packs
    of the store; an empty store needs --write. What S3 sends may cost money: see --bytes-max.
    """
    from lodefs.bench_store import Plan, advice, measure

    place = absolute(url) if url else session.store_url
    _require_directory(place)
    objects = _objects(session, place)
    try:
        with show_progress() as progress:
            found = measure(objects, Plan(seconds, bytes_max, write), progress)
    finally:
        objects.close()
    follows = advice(found)
    if as_json:
        cli.write_json(as_object(found, follows))
    else:
        for name, words in shown(found, follows):
            cli.write_line(f"{name:<11} {words}")


def _require_directory(url: str) -> None:
    """Raises: NotFound for a missing directory, since --write would create it."""
    path = url.removeprefix("file://")
    if not scheme_of(url) and not os.path.isdir(path):
        raise NotFound(f"there is no directory {path}; `lodefs init {path}` creates a store")


def _objects(session: Session, url: str) -> ObjectStore:
    """Returns the store, without retries and with room for all requests at once."""
    from lodefs.bench_store import CONCURRENCIES
    from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects

    settings = session.config.s3
    most = max(CONCURRENCIES)
    return open_objects(
        url,
        StoreOptions(
            endpoint_url=settings.endpoint_url,
            region=settings.region,
            connections_max=most,
            calls_max=most,
            transfer_timeout_s=REQUEST_TIMEOUT_S,
            first_timeout_s=FIRST_TIMEOUT_S,
            first_time_s_max=FIRST_TIME_S_MAX,
            attempts_max=1,
            throttled_s_max=0.0,
        ),
    )


def as_object(found: Measured, follows: Advice) -> dict[str, object]:
    """Returns the measurement as JSON, for scripts."""
    import msgspec

    recommended = {"fetch_concurrency": follows.fetch_concurrency, "reasons": follows.reasons}
    return {**msgspec.to_builtins(found), "recommended": recommended}


def shown(found: Measured, follows: Advice) -> list[tuple[str, str]]:
    """Returns the measurement as lines of a name and a value, for people."""
    lines = [
        ("store", text.escaped(found.store)),
        ("first byte", f"{_ms(found.first_byte_s)} (the longest {_ms(found.first_byte_worst_s)})"),
    ]
    for one in found.reads:
        failed = f", {one.errors:,} of {one.requests:,} failed" if one.errors else ""
        busy = f", {one.cpu_share * 100:.0f} % of a processor"
        rate = f"{text.size(int(one.bytes_per_s))}/s"
        lines.append((f"read x{one.concurrency}", f"{rate:>12}{busy}{failed}"))
    for one in found.ranges:
        rate = f"{text.size(int(one.bytes_per_s))}/s"
        at_once = f", {one.concurrency} in parallel"
        lines.append((f"of {one.range_bytes >> 20} MiB", f"{rate:>12}{at_once}"))
    if found.list_keys_per_s is not None:
        few = f" ({found.listed_keys:,} keys)"
        lines.append(("list", f"{found.list_keys_per_s:,.0f} keys/s{few}"))
    if found.writes is not None:
        rate = (
            f"{text.size(int(found.writes.bytes_per_s))}/s, {found.writes.concurrency} in parallel"
        )
        lines.append(("write", f"{rate}; {_ms(found.writes.small_s)} for a small object"))
    lines.append(("read", f"{text.size(found.read_bytes)} in total"))
    lines.append(("recommended", f"fetch_concurrency = {follows.fetch_concurrency}"))
    return lines + [("because", reason) for reason in follows.reasons]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
