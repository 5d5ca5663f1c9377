"""``lodefs gc``: deletes what no branch or tag leads to, compacts packs and merges small ones."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from lodefs.api.parts.executors import EXECUTORS, opened_executor
from lodefs.api.parts.store_tasks import read_trees_with
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import DURATION, RATE, SIZE, FiniteRange
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.maintenance.collect import Amount, CollectResult


@cli.command(
    "lodefs gc --dry-run                # shows what it would do, and how many bytes that frees",
    "lodefs gc                          # every night: deletes what earlier runs tombstoned",
    "lodefs gc --min-used 0.7 --rate 200MB    # every week: compacts packs as well",
    "lodefs gc --merge-packs-below 4MiB       # also merges the packs of many small pushes",
    "lodefs gc --executor dask://scheduler:8786    # many machines read the trees of all versions",
    store=True,
)
def gc(
    session: Session,
    dry_run: bool = cli.option("Only show what would be done."),
    grace: int = cli.option(
        "Delete what was tombstoned at least this long ago [23h, for nightly runs].",
        default="23h",
        type=DURATION,
        metavar="DURATION",
    ),
    min_used: float | None = cli.option(
        "Also compact packs, and objects of merged packs, of which less than this share is in "
        "use, such as 0.7.",
        type=FiniteRange(0, 1, min_open=True),
        metavar="SHARE",
    ),
    merge_below: int | None = cli.option(
        "Also merge the packs in use that are smaller than this, such as 4MiB; 16MiB at most.",
        "--merge-packs-below",
        type=SIZE,
        metavar="SIZE",
    ),
    rate: int | None = cli.option(
        "Limit for compacting and merging, in bytes per second, such as 200MB.",
        type=RATE,
        metavar="BYTES",
    ),
    workers: int = cli.option("Parallel requests [16].", default=16, between=(1, 256)),
    executor: str | None = cli.option(f"Read trees with {EXECUTORS}", metavar="EXECUTOR"),
    as_json: bool = cli.JSON,
) -> None:
    """Delete the commits and data that no branch or tag leads to.

    A run tombstones what it finds. It deletes what an earlier run has tombstoned at least --grace
    ago and nothing has used since, so a mistake can be undone until then (lodefs branch
    --undelete). gc may run beside pushes, pulls and other gc runs, from any machine, and may be
    repeated after an interruption.

    With --min-used, a run also tombstones the unused parts of packs of which too little is in use.
    A later run writes these packs again without them, and readers notice nothing.

    With --merge-packs-below, gc merges small packs into few large objects; each small push leaves
    two such packs. Names and contents of all versions stay as they are.

    With --executor many machines read the directories of all versions. This one decides what is
    deleted.
    """
    from lodefs.chunkstore.maintenance.collect import CollectOptions, collect

    options = CollectOptions(
        grace,
        dry_run=dry_run,
        clock=time.time,
        workers=workers,
        min_used=min_used,
        merge_below_bytes=merge_below,
        rate_bytes_s=rate,
    )
    with ExitStack() as stack:
        progress = stack.enter_context(show_progress())
        if executor is not None:
            opened = stack.enter_context(opened_executor(executor))
            read_groups = read_trees_with(opened, session.store_url, workers)
            options = replace(options, read_groups=read_groups)
        result = collect(session.store, options, progress)
    if as_json:
        cli.write_json(_json_of(result, dry_run=dry_run))
    else:
        for line in _lines(result, dry_run=dry_run):
            cli.write_line(line)


def _json_of(result: CollectResult, *, dry_run: bool) -> dict[str, object]:
    amounts = {
        f"{name}_{unit}": getattr(getattr(result, name), field)
        for name in ("garbage", "deleted", "tombstoned", "waiting")
        for unit, field in (("packs", "packs"), ("commits", "commits"), ("bytes", "size_bytes"))
    }
    packs = {
        f"{name}_{unit}": getattr(getattr(result, name), field)
        for name in ("compacted", "sparse", "sparse_waiting", "merged")
        for unit, field in (("packs", "packs"), ("bytes", "size_bytes"))
    }
    return {
        "dry_run": dry_run,
        **cli.fields(result, "packs", "size_bytes"),
        "composite_packs": result.combined_packs,
        "composites": result.combined_objects,
        **cli.fields(result, "used_packs", "used_commits", "expired_commits"),
        **amounts,
        **packs,
        "merged_composites_before": result.merged.objects_before,
        "merged_composites": result.merged.objects,
        "rewritten_composites": result.unused.objects,
        "rewritten_bytes": result.unused.freed_bytes,
        "unused_bytes": result.unused.left_bytes,
        **cli.fields(result, "ripe_at_s", "writers", "dead_writers", "plans"),
    }


def _lines(result: CollectResult, *, dry_run: bool) -> list[str]:
    """Returns the result as lines for people; with ``dry_run``, what would happen."""
    delete, tombstone = ("to delete", "to tombstone") if dry_run else ("deleted", "tombstoned")
    used = text.count(result.used_packs, "pack")
    commits = text.count(result.used_commits, "commit")
    rows = [
        ("store", _store(result)),
        ("in use", f"{used}, {commits}"),
        (delete, _amount(result.deleted)),
        (tombstone, _amount(result.tombstoned)),
    ]
    if result.expired_commits:
        rows.append(("expired", f"{text.count(result.expired_commits, 'commit')}, by retention"))
    if _is_some(result.waiting):
        rows.append(("waiting", f"{_amount(result.waiting)}, tombstoned by earlier runs"))
    rows += _compaction_rows(result, dry_run=dry_run)
    if result.merged.packs:
        merged = f"{text.count(result.merged.packs, 'pack')}, {text.size(result.merged.size_bytes)}"
        into = text.count(result.merged.objects, "object")
        rows.append(("to merge" if dry_run else "merged", f"{merged}, into {into}"))
    rows += _rewriting_rows(result, dry_run=dry_run)
    if result.dead_writers:
        gone = "to give up" if dry_run else "given up"
        rows.append(
            (gone, f"{text.count(result.dead_writers, 'writer')} without a heartbeat for long")
        )
    if result.plans:
        plans = f"{text.count(result.plans, 'plan')} of pushes, finished or abandoned"
        rows.append(("to remove" if dry_run else "removed", plans))
    if result.writers:
        what = f"{text.count(result.writers, 'writer')}; gc deletes nothing until they end"
        rows.append(("under way", what))
    if result.ripe_at_s is not None and not dry_run:
        rows.append(("next", f"lodefs gc deletes more from {text.time(result.ripe_at_s)} on"))
    return [f"{name:<10}  {words}" for name, words in rows]


def _store(result: CollectResult) -> str:
    found = f"{text.count(result.packs, 'pack')}, {text.size(result.size_bytes)}"
    if not result.combined_objects:
        return found
    objects = text.count(result.combined_objects, "object")
    return f"{found}; {result.combined_packs} of them merged into {objects}"


def _compaction_rows(result: CollectResult, *, dry_run: bool) -> list[tuple[str, str]]:
    rows = [
        ("to compact" if dry_run else "compacted", result.compacted, "smaller"),
        ("sparse", result.sparse, "unused, to tombstone" if dry_run else "unused, tombstoned"),
        ("", result.sparse_waiting, "unused, tombstoned by earlier runs"),
    ]
    return [
        (name, f"{text.count(amount.packs, 'pack')}, {text.size(amount.size_bytes)} {what}")
        for name, amount, what in rows
        if amount.packs
    ]


def _rewriting_rows(result: CollectResult, *, dry_run: bool) -> list[tuple[str, str]]:
    unused, rows = result.unused, []
    if unused.objects:
        objects = text.count(unused.objects, "object")
        what = f"{objects} of merged packs, {text.size(unused.freed_bytes)} smaller"
        rows.append(("to rewrite" if dry_run else "rewritten", what))
    if unused.left_bytes:
        stay = "would stay" if dry_run else "stay"
        what = f"{text.size(unused.left_bytes)} {stay} beside merged packs that are in use"
        rows.append(("unused", what))
    return rows


def _amount(amount: Amount) -> str:
    if not _is_some(amount):
        return "nothing"
    commits = text.count(amount.commits, "commit")
    return f"{text.count(amount.packs, 'pack')}, {commits}, {text.size(amount.size_bytes)}"


def _is_some(amount: Amount) -> bool:
    return amount.packs + amount.commits > 0
