"""``lodefs repair``: what of a store is lost or damaged, and how it comes back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session, absolute

if TYPE_CHECKING:
    from lodefs.chunkstore.repair.repair import Finding, RepairResult
    from lodefs.chunkstore.repair.sources.source import RepairSource

PROXY_TIMEOUT_S = 20.0  # for each request, repetitions included


@cli.command(
    "lodefs repair --data --dry-run                              # only say what is wrong",
    "lodefs repair --data --from s3://mirror/prefix --from ./flickr30k",
    "lodefs repair --data --from http://node7:7440               # token: LODEFS_TOKEN",
    "lodefs repair index                                         # index shards from the packs",
    store=True,
    cls=click.Group,
    invoke_without_command=True,
)
def repair(
    session: Session,
    places: tuple[str, ...] = cli.option(
        "Another store, a node's proxy or cache directory, or the directory that was pushed; "
        "repeatable.",
        "--from",
        metavar="SOURCE",
    ),
    data: bool = cli.option("Read and check every byte too."),
    dry_run: bool = cli.option("Only say what would be done."),
    workers: int = cli.option("Parallel reads [8].", default=8, between=(1, 64)),
    as_json: bool = cli.JSON,
) -> None:
    """List lost and damaged parts of the store, with the versions that need them, and put them
    back.

    The store's own records (its journal, branches and tags, index shards) are repaired without a
    SOURCE. Directories and data are repaired if a SOURCE has them, and commits if another store has
    them. Everything is checked before it is written. It exits with 1 if something is left. It may
    run beside pushes and reads.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from lodefs.chunkstore.repair.repair import RepairOptions
    from lodefs.chunkstore.repair.repair import repair as repair_store

    objects = session.objects(session.store_url)
    sources = [_source(session, place) for place in places]
    options = RepairOptions(data=data, dry_run=dry_run, workers=workers, clock=time.time)
    with show_progress() as progress:
        result = repair_store(objects, sources, options, progress)
    if as_json:
        cli.write_json(_json_of(result, dry_run=dry_run))
    else:
        for finding in result.findings:
            cli.write_line(_line(finding, dry_run=dry_run))
        for line in result.unchecked:
            cli.write_line(text.escaped(line))
        for note in result.notes:
            cli.write_line(text.escaped(note))
        cli.write_line(_summary(result, dry_run=dry_run))
    if result.left or result.unchecked or (dry_run and result.findings):
        session.exit_code = exit_codes.FAILURE


@cli.command("lodefs repair index --dry-run", group=cast("click.Group", repair), store=True)
def index(
    session: Session,
    dry_run: bool = cli.option("Only say what would be done."),
    as_json: bool = cli.JSON,
) -> None:
    """List in index shards every pack that none lists, write damaged shards again, and delete those
    that list nothing.

    Shards tell a push which chunks the store has. Without them a push only stores some chunks
    again.
    """
    from lodefs.chunkstore.repair.shards import repair_index

    objects = session.store.objects
    with show_progress() as progress, ThreadPoolExecutor(16, "lodefs-repair") as executor:
        found = repair_index(objects, executor, progress, dry_run=dry_run)
    if as_json:
        cli.write_json(
            {
                "dry_run": dry_run,
                "shards": found.shards,
                "damaged_shards": found.damaged,
                "outdated_shards": found.outdated,
                "empty_shards": len(found.empty),
                "listed_packs": len(found.listed),
                "unreadable_packs": [pack.hex() for pack in found.unreadable],
            }
        )
        return
    what, gone = ("to list", "to delete") if dry_run else ("listed", "deleted")
    cli.write_line(
        f"{text.count(found.shards, 'shard')}, {len(found.damaged)} of them damaged; "
        f"{what}: {text.count(len(found.listed), 'pack')}"
        + (f"; {text.count(len(found.empty), 'empty shard')} {gone}" if found.empty else "")
    )
    for key in found.outdated:
        cli.write_line(f"{key} names packs that are gone: see `lodefs repair`")
    for pack in found.unreadable:
        cli.write_line(f"the index of pack {pack.hex()} is damaged: see `lodefs repair`")


def _source(session: Session, place: str) -> RepairSource:
    """Returns the source at a URL or path. Raises: InvalidInput, NotFound."""
    from lodefs.chunkstore.format import keys
    from lodefs.chunkstore.format.chunking import ChunkingParams
    from lodefs.chunkstore.nodecache.layout import VERSION_FILE
    from lodefs.chunkstore.repair.sources.local_sources import CacheSource, DirectorySource
    from lodefs.chunkstore.repair.sources.source import StoreSource, listed_packs

    if place.startswith(("http:", "https:", "unix:")):
        return _proxy_source(session, place)
    if place.startswith(("s3:", "file:")):
        objects = session.objects(absolute(place))
        objects.head(keys.STORE)
        return StoreSource(objects)
    path = Path(place)
    if not path.is_dir():
        raise NotFound(f"there is no directory {text.escaped(place)}")
    if (path / keys.STORE).exists():
        return StoreSource(session.objects(absolute(place)))
    try:
        params = session.store.settings.chunking
    except LodefsError:  # they may be what is lost
        params = ChunkingParams()
    if (path / VERSION_FILE).exists() and (path / "index").is_dir():
        return CacheSource(path, params)
    there = session.objects(session.store_url)
    return DirectorySource(path, params, lambda: listed_packs(there))


def _proxy_source(session: Session, url: str) -> RepairSource:
    """Returns the proxy at an address. Raises: InvalidInput, Unavailable, Denied."""
    from lodefs.chunkstore.protocol.connection import parse_address
    from lodefs.chunkstore.protocol.read_client import Client
    from lodefs.chunkstore.repair.sources.proxy_source import ProxySource
    from lodefs.proxies.own_proxy import ask

    token = session.environment.get("LODEFS_TOKEN") or None
    address = parse_address(url)
    ask(url, "/status", token)  # it answers, and takes the token
    return ProxySource(url, Client(address, token=token, timeout_s=PROXY_TIMEOUT_S))


def _json_of(result: RepairResult, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "problems": [
            {
                "key": finding.key,
                "message": finding.what,
                "concerns": finding.concerns,
                "repaired_from": finding.repaired_from,
            }
            for finding in result.findings
        ],
        "commits": result.commits,
        "packs": result.packs,
        "notes": result.notes,
        "unchecked": result.unchecked,
    }


def _line(finding: Finding, *, dry_run: bool) -> str:
    concerns = ", ".join(finding.concerns)
    if finding.repaired_from is None:
        lacks = finding.lacks or "all of it"
        repaired = f"not repaired: no source has {lacks}"
        if finding.lacks:
            repaired += "; `lodefs push --check` of the files stores them again"
    else:
        repaired = f"{'can be repaired' if dry_run else 'repaired'} from {finding.repaired_from}"
    return text.escaped(f"{finding.key}: {finding.what}; of {concerns}: {repaired}")


def _summary(result: RepairResult, *, dry_run: bool) -> str:
    looked = f"{text.count(result.commits, 'commit')}, {text.count(result.packs, 'pack')}: "
    if not result.findings:
        return looked + ("all else is well" if result.unchecked else "all is well")
    problems = text.count(len(result.findings), "problem")
    repaired = len(result.findings) - len(result.left)
    return f"{looked}{problems}, {repaired} {'can be repaired' if dry_run else 'repaired'}"
