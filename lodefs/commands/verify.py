"""``lodefs verify``: a store, or with ``--cache`` the cache of this node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import exit_codes, text
from lodefs.cli.options import (
    SPEC,
    examples,
    json_option,
    reject,
    session_command,
    write_json,
    write_line,
)
from lodefs.cli.progress_bars import show_progress
from lodefs.commands.log import no_path
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.nodecache.verify import CacheCheck, Damage


EPILOG = examples(
    "lodefs verify --data vision/flickr30k@v1.0          # every byte of a revision",
    "lodefs verify --cache --repair                      # this node's cache",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="[REPO[@REV]]", type=SPEC, required=False)
@click.option("--data", is_flag=True, help="Read and check every byte too.")
@click.option("--cache", "of_cache", is_flag=True, help="Check this node's cache instead.")
@click.option("--cache-dir", metavar="DIR", help="Which cache [the running proxy's].")
@click.option("--repair", is_flag=True, help="Drop damaged files of the cache.")
@click.option("--workers", type=click.IntRange(1, 256), default=8, help="Parallel reads [8].")
@json_option
@session_command(store=True, proxy=True)
def verify(
    session: Session,
    spec: Spec | None,
    data: bool,
    of_cache: bool,
    cache_dir: str | None,
    repair: bool,
    workers: int,
    as_json: bool,
) -> None:
    """Check that every reference of the store, or of one revision, resolves. Of the store also its
    journal, purges, settings and composites; problems of these name what puts them back.

    With --cache: check every chunk in this node's cache, also while its proxy runs. Lists all
    problems, and exits with 1 if there are any.
    """
    if of_cache:
        if spec is not None or data:
            raise InvalidInput("--cache checks all of a node's cache: no REPO, no --data with it")
        if cache_dir is not None:
            reject(session.command_options, "does nothing with --cache-dir")
        _verify_cache(session, cache_dir, repair=repair, workers=workers, as_json=as_json)
    elif cache_dir is not None or repair:
        raise InvalidInput("--cache-dir and --repair need --cache")
    else:
        reject({"--proxy": session.command_options["--proxy"]}, "does nothing without --cache")
        _verify_store(session, spec, data=data, workers=workers, as_json=as_json)


def _verify_store(
    session: Session, spec: Spec | None, *, data: bool, workers: int, as_json: bool
) -> None:
    from lodefs.chunkstore.repair.state_check import check_state
    from lodefs.chunkstore.repo.verify import verify as check

    if spec is not None:
        no_path(spec)
    with show_progress() as progress:
        result = check(session.store, spec, data=data, workers=workers, progress=progress)
        if spec is None:
            progress.phase = "checking the journal"
            found = check_state(session.store.objects, time.time)
            result.problems += [str(problem) for problem in found]
    if as_json:
        write_json(
            {
                "problems": [{"message": problem} for problem in result.problems],
                "purged": [{"message": purged} for purged in result.purged],
                "commits": result.commits,
                "commits_without_files": result.commits_without_files,
                "directories": result.directories,
                "files": result.files,
                "read_bytes": result.data_bytes,
            }
        )
    else:
        for problem in result.problems:
            write_line(text.escaped(problem))
        for purged in result.purged:
            write_line(text.escaped(purged))
        read = f", {text.size(result.data_bytes)} read" if data else ""
        older = result.commits_without_files
        without = f" ({older:,} older: `lodefs verify` checks their files too)" if older else ""
        write_line(
            f"{text.count(result.commits, 'commit')}{without}, "
            f"{text.count(result.files, 'file')}{read}: "
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
    from lodefs.commands import cache_repair

    directory = Path(cache_dir) if cache_dir else cache_repair.cache_dir(session)
    with show_progress() as progress:
        result = verify_cache(directory, workers=workers, progress=progress)
        repaired = False
        if repair and result.damages:
            progress.phase = "waiting for the proxy to drop damaged files"
            repaired = cache_repair.repair(directory, result.numbers)
    if as_json:
        write_json(_cache_json(directory, result, repaired=repaired))
    else:
        for damage in result.damages:
            write_line(text.escaped(line_of(damage)))
        write_line(_summary(directory, result, repair=repair, repaired=repaired))
    if result.damages:
        session.exit_code = exit_codes.FAILURE


def line_of(damage: Damage) -> str:
    """One damage, for people: cache file, place, chunk, problem, dataset files."""
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
