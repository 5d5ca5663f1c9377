"""``lodefs verify`` of a store, or with ``--cache`` of this node's cache; ``lodefs scrub``.

Damaged files of a cache are dropped by its proxy, if one owns it; else this process owns the cache
meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from lodefs.api.parts.executors import EXECUTORS, opened_executor
from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.nodecache import damage_reports
from lodefs.chunkstore.system.task_share import TaskShare
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import RATE, TASK_SHARE
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.verify import CacheCheck, Damage
    from lodefs.chunkstore.repair.scrub import ScrubResult
    from lodefs.chunkstore.repo.checks.verify import VerifyResult

_SHARE_DEFAULT = "1/30"
_PART = cli.option("Part K of N, one for each machine.", type=TASK_SHARE, metavar="K/N")
_EXECUTOR = cli.option(f"Read by its tasks: {EXECUTORS}", metavar="EXECUTOR")


@cli.command(
    "lodefs verify --data vision/flickr30k@v1.0          # every byte of a revision",
    "lodefs verify --data --executor processes:8         # or dask://HOST:PORT, mpi, ray://...",
    "lodefs verify --data --part 3/32                    # on each of 32 machines, its share",
    "lodefs verify --sources vision/flickr30k            # what lies in place in a bucket",
    "lodefs verify --cache --repair                      # this node's cache",
    store=True,
    proxy=True,
)
def verify(
    session: Session,
    spec: Spec | None = cli.argument("[REPO[@REV]]"),
    data: bool = cli.option("Read and check every byte too."),
    sources: bool = cli.option("Ask too whether objects that are read in place are unchanged."),
    of_cache: bool = cli.option("Check this node's cache instead.", "--cache"),
    cache_dir: str | None = cli.option("Which cache [the running proxy's].", metavar="DIR"),
    repair: bool = cli.option("Drop damaged files of the cache."),
    workers: int = cli.option("Parallel reads [8].", default=8, between=(1, 256)),
    part: TaskShare | None = _PART,
    executor: str | None = _EXECUTOR,
    as_json: bool = cli.JSON,
) -> None:
    """Check that every reference of the store, or of one revision, resolves. For a whole store it
    also checks the journal, purges, settings and composites; problems of these name the command
    that restores them. With --sources it also asks a bucket for each object that was imported in
    place: one that is changed, gone or archived is a problem of each file that needs it.

    Many machines share the work with --executor, or each runs --part K/N: it checks all trees, and
    those files whose first pack is in its share.

    With --cache, check every chunk in this node's cache, even while its proxy runs. It lists all
    problems, and exits with 1 if there are any.
    """
    if of_cache:
        if spec is not None or data or sources or part or executor:
            raise InvalidInput(
                "--cache checks all of a node's cache: leave out REPO, --data, --sources, --part "
                "and --executor"
            )
        if cache_dir is not None:
            cli.reject(session.command_options, "does nothing with --cache-dir")
        _verify_cache(session, cache_dir, repair=repair, workers=workers, as_json=as_json)
    elif cache_dir is not None or repair:
        raise InvalidInput("--cache-dir and --repair need --cache")
    else:
        cli.reject({"--proxy": session.command_options["--proxy"]}, "does nothing without --cache")
        if executor is not None and not data:
            raise InvalidInput("--executor reads files with many machines: it needs --data")
        if spec is not None:
            cli.no_path(spec)
        _refuse_both(part, executor)
        result = _verified(session, spec, data, sources, workers, part, executor)
        _report(session, result, data=data, sources=sources, as_json=as_json)


def _verified(
    session: Session,
    spec: Spec | None,
    data: bool,
    sources: bool,
    workers: int,
    part: TaskShare | None,
    executor: str | None,
) -> VerifyResult:
    from lodefs.api.parts.store_tasks import check_data_with
    from lodefs.chunkstore.repair.state_check import check_state
    from lodefs.chunkstore.repo.checks.verify import verify as check

    with ExitStack() as stack:
        progress = stack.enter_context(show_progress())
        check_data = None
        if executor is not None:
            opened = stack.enter_context(opened_executor(executor))
            check_data = check_data_with(opened, session.store_url, workers)
        result = check(
            session.store,
            spec,
            data=data,
            sources=sources,
            workers=workers,
            progress=progress,
            share=part,
            check_data=check_data,
        )
        if spec is None and (part is None or part.task == 1):
            progress.phase = "checking the journal"
            found = check_state(session.store.objects, time.time)
            result.problems += [str(problem) for problem in found]
    return result


def _report(
    session: Session, result: VerifyResult, *, data: bool, sources: bool, as_json: bool
) -> None:
    if as_json:
        cli.write_json(
            {
                "problems": [{"message": problem} for problem in result.problems],
                "purged": [{"message": purged} for purged in result.purged],
                **cli.fields(result, "commits", "commits_without_files", "directories", "files"),
                "source_objects": result.source_objects,
                "read_bytes": result.data_bytes,
            }
        )
    else:
        for problem in result.problems:
            cli.write_line(text.escaped(problem))
        for purged in result.purged:
            cli.write_line(text.escaped(purged))
        read = f", {text.size(result.data_bytes)} read" if data else ""
        asked = f", {text.count(result.source_objects, 'object')} in place" if sources else ""
        older = result.commits_without_files
        without = f" ({older:,} older: `lodefs verify` checks their files too)" if older else ""
        cli.write_line(
            f"{text.count(result.commits, 'commit')}{without}, "
            f"{text.count(result.files, 'file')}{asked}{read}: "
            + (text.count(len(result.problems), "problem") if result.problems else "all is well")
            + (f", {text.count(len(result.purged), 'file')} purged" if result.purged else "")
            + ("; `lodefs repair` says what can be put back" if result.problems else "")
        )
    if result.problems:
        session.exit_code = exit_codes.FAILURE


def _verify_cache(
    session: Session, cache_dir: str | None, *, repair: bool, workers: int, as_json: bool
) -> None:
    from lodefs.chunkstore.nodecache.verify import verify_cache

    directory = Path(cache_dir) if cache_dir else node_cache_dir(session)
    with show_progress() as progress:
        result = verify_cache(directory, workers=workers, progress=progress)
        repaired = False
        if repair and result.damages:
            progress.phase = "waiting for the proxy to drop damaged files"
            repaired = drop_damaged(directory, result.numbers)
    if as_json:
        cli.write_json(_cache_json(directory, result, repaired=repaired))
    else:
        for damage in result.damages:
            cli.write_line(text.escaped(line_of(damage)))
        cli.write_line(_summary(directory, result, repair=repair, repaired=repaired))
    if result.damages:
        session.exit_code = exit_codes.FAILURE


def line_of(damage: Damage) -> str:
    """Returns one damage, for people: cache file, place, chunk, problem, dataset files."""
    where = f"{damage.path}: {damage.size_bytes} bytes at {damage.offset}"
    chunk = f", chunk {damage.chunk.hex()}" if damage.chunk else ""
    of = "; of " + ", ".join(map(str, damage.names)) if damage.names else ""
    return f"{where}{chunk}: {damage.what}{of}"


def _summary(directory: Path, result: CacheCheck, *, repair: bool, repaired: bool) -> str:
    looked = (
        f"{text.escaped(os.fsencode(directory))}: {text.count(result.files, 'file')}, "
        f"{text.count(result.chunks, 'chunk')}, {text.size(result.size_bytes)} read: "
    )
    if not result.damages:
        return looked + "all is well"
    damaged = f"{text.count(len(result.numbers), 'file')} damaged"
    if repaired:
        return f"{looked}{damaged}; dropped, and fetched again when wanted"
    if repair:
        return f"{looked}{damaged}; the proxy did not look at all of them yet: repeat later"
    return f"{looked}{damaged}; --repair drops them"


def _cache_json(directory: Path, result: CacheCheck, *, repaired: bool) -> dict[str, object]:
    return {
        "cache": text.percent_encoded(os.fsencode(directory)),
        "cache_files": result.files,
        "chunks": result.chunks,
        "read_bytes": result.size_bytes,
        "damaged_cache_files": len(result.numbers),
        "repaired": repaired,
        "problems": [
            {
                "cache_file": text.percent_encoded(os.fsencode(damage.path)),
                "offset_bytes": damage.offset,
                "size_bytes": damage.size_bytes,
                "chunk": damage.chunk.hex() if damage.chunk else None,
                "message": damage.what,
                "dataset_files": [
                    {
                        "repo": name.repo,
                        "commit": name.commit,
                        "path": text.percent_encoded(name.path),
                    }
                    for name in damage.names
                ],
            }
            for damage in result.damages
        ],
    }


SETTLE_TIMEOUT_S = 120.0  # a proxy looks every 30 s
POLL_S = 0.2


def node_cache_dir(session: Session) -> Path:
    """Returns the cache of the running proxy, else of the settings, else of the user's own
    proxy."""
    from lodefs.proxies.own_proxy import ask, own_proxy, running_proxy
    from lodefs.proxy.config import CACHE_DIR_DEFAULT

    try:
        node = ask(running_proxy(session), "/status", session.environment.get("LODEFS_TOKEN"))
        figures = node.get("node")
        if isinstance(figures, dict) and isinstance(figures.get("cache"), str):
            return Path(figures["cache"])
    except LodefsError:
        pass  # no proxy runs, and none is needed
    configured = Path(str(session.config.serve.get("cache_dir", CACHE_DIR_DEFAULT)))
    if not configured.exists() and session.has_store:
        own = own_proxy(session.home_cache(), session.store_url).directory / "cache"
        if own.exists():
            return own
    return configured


def drop_damaged(
    directory: Path,
    numbers: Collection[int],
    *,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Has damaged files dropped; False if the proxy did not do so within SETTLE_TIMEOUT_S.

    Raises: Denied, NoSpace, Corrupt.
    """
    damage_reports.report_damage(directory, numbers)
    deadline_s = clock_s() + SETTLE_TIMEOUT_S
    while left := set(damage_reports.reported_files(directory)) & set(numbers):
        if clock_s() >= deadline_s:
            return False
        try:
            _check_reported(directory)
        except InUse:  # by the proxy, or by another command that does the same
            sleep(POLL_S)
    return not left


def _check_reported(directory: Path) -> None:
    from lodefs.proxy.cache.chunk_cache import Cache
    from lodefs.proxy.cache.recovery import check_reported
    from lodefs.proxy.cache.tables import CacheSettings
    from lodefs.proxy.metrics.counters import Counts

    cache = Cache(CacheSettings(directory, size_bytes_max=1 << 62), Counts())
    try:
        check_reported(cache, stopping=lambda: False)
    finally:
        cache.close()


@cli.command(
    "lodefs scrub --share 1/30 --rate 200MB              # once a day: all of it within 30 days",
    "lodefs scrub --share 1/1                            # all of it, now",
    "lodefs scrub --executor dask://scheduler:8786       # by many machines",
    "lodefs scrub --part 3/32                            # on each of 32 machines, its part",
    store=True,
)
def scrub(
    session: Session,
    share: str | None = cli.option("How much of the store [1/30].", metavar="N/M"),
    rate: int | None = cli.option(
        "At most so much a second, such as 200MB.", type=RATE, metavar="SIZE"
    ),
    workers: int = cli.option("Parallel reads [4].", default=4, between=(1, 64)),
    part: TaskShare | None = _PART,
    executor: str | None = _EXECUTOR,
    as_json: bool = cli.JSON,
) -> None:
    """Read a share of the store's packs and check every byte, to find decayed data before a reader
    does.

    The next run continues from the end of this one, on any machine, since the store has the
    position. It lists all damaged packs, also those that earlier runs have found, and exits with 1
    if there are any. `lodefs repair --data` names the versions that need them.

    Many machines share the work with --executor. Without an executor, each runs --part K/N: it
    reads all packs of its range of ids, and lists those that are damaged. A part has no position:
    one that was interrupted begins anew.
    """
    result = _scrubbed(session, share, rate, workers, part, executor)
    ledger = result.ledger
    if as_json:
        cli.write_json(
            {
                "packs": result.packs,
                "read_bytes": result.size_bytes,
                "store_packs": result.store_packs,
                "store_bytes": result.store_bytes,
                "part": None if part is None else str(part),
                "rounds": ledger and ledger.rounds,
                "round_began_s": (ledger and ledger.began_s) or None,
                "round_ended_s": (ledger and ledger.ended_s) or None,
                "round_packs": ledger and ledger.checked_packs,
                "problems": [
                    {"pack": damage.pack_id.hex(), "message": damage.what}
                    for damage in result.damaged
                ],
            }
        )
    else:
        for damage in result.damaged:
            cli.write_line(text.escaped(f"pack {damage.pack_id.hex()}: {damage.what}"))
        cli.write_line(
            f"{text.count(result.packs, 'pack')}, {text.size(result.size_bytes)} read, of "
            f"{text.count(result.store_packs, 'pack')}, {text.size(result.store_bytes)}; "
            + (text.count(len(result.damaged), "problem") if result.damaged else "all is well")
        )
        if ledger is not None:
            ended = f", the last on {text.time(ledger.ended_s)}" if ledger.ended_s else ""
            cli.write_line(
                f"this round: {text.count(ledger.checked_packs, 'pack')} so far; "
                f"{text.count(ledger.rounds, 'round')} before{ended}"
            )
    if result.damaged:
        session.exit_code = exit_codes.FAILURE


def _scrubbed(
    session: Session,
    share: str | None,
    rate: int | None,
    workers: int,
    part: TaskShare | None,
    executor: str | None,
) -> ScrubResult:
    from lodefs.api.parts.store_tasks import examine_with
    from lodefs.chunkstore.repair.scrub import ScrubOptions, parse_share, scrub_share
    from lodefs.chunkstore.repair.scrub import scrub as scrub_store

    _refuse_both(part, executor)
    if part is not None and share is not None:
        raise InvalidInput("--part reads all packs of its part: leave out --share")
    options = ScrubOptions(parse_share(share or _SHARE_DEFAULT), rate, workers)
    objects = session.store.objects
    with ExitStack() as stack:
        progress = stack.enter_context(show_progress())
        if part is not None:
            return scrub_share(objects, part, options, progress)
        examine_packs = None
        if executor is not None:
            opened = stack.enter_context(opened_executor(executor))
            examine_packs = examine_with(opened, session.store_url, workers)
        return scrub_store(objects, options, progress, examine_packs)


def _refuse_both(part: TaskShare | None, executor: str | None) -> None:
    if part is not None and executor is not None:
        raise InvalidInput(
            "--part does the part of one machine, and --executor all parts: use one of them"
        )
