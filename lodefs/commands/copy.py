"""``lodefs copy``: repositories from one store to another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.refs import singular
from lodefs.cli import exit_codes, text
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.cli.progress_bars import show_progress
from lodefs.commands.log import no_path
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.format.journal import RefName
    from lodefs.chunkstore.format.names import CommitId
    from lodefs.chunkstore.transfer.copy import CopiedRef, CopyResult, RefusedRef

EPILOG = examples(
    "lodefs copy s3://here/prefix s3://there/prefix vision/flickr30k@v1.0",
    "lodefs copy /srv/store s3://bucket/prefix --all           # all branches and tags",
    "lodefs copy s3://old/prefix s3://new/prefix --all         # S3 copies from bucket to bucket",
)


NAMED_MAX = 8  # purged paths that are shown


@click.command(epilog=EPILOG)
@click.argument("source_url", metavar="SRC-STORE")
@click.argument("destination_url", metavar="DST-STORE")
@click.argument("spec", metavar="[REPO[@REV]]", type=SPEC, required=False)
@click.option(
    "--all", "is_all", is_flag=True, help="All branches and tags, of REPO or of all repositories."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@click.option(
    "--check",
    is_flag=True,
    help="Have every byte come here and be checked, also where S3 could copy it itself.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=8,
    help="Packs under way, of some 40 MiB of memory each [8].",
)  # fmt: skip
@json_option
@session_command()
def copy(
    session: Session,
    source_url: str,
    destination_url: str,
    spec: Spec | None,
    is_all: bool,
    dry_run: bool,
    check: bool,
    workers: int,
    as_json: bool,
) -> None:
    """Copy a branch or tag of REPO, with all of its history, from one store to another.

    Commits and data keep their ids. What is in DST-STORE is not sent again, and nothing is deleted
    there: a branch that has other commits there is refused. With --all the others are copied, and
    it exits with 1. After an interruption, repeat it. It may run beside anything. What SRC-STORE
    has purged since is not purged in DST-STORE by a copy; it says so.

    Every byte is checked on the way, with one exception: between two stores at one S3 endpoint, S3
    is asked to copy the packs itself, and no byte of them comes here. Then directories and indexes
    are checked, and what else is damaged in SRC-STORE stays so in the copy, for `lodefs verify
    --data` to find; --check finds it now.
    """
    from lodefs.chunkstore.transfer.copy import CopyOptions
    from lodefs.chunkstore.transfer.copy import copy as copy_repos

    if spec is not None:
        no_path(spec)
    if spec is None and not is_all:
        raise click.UsageError("name a REPO, or give --all for all repositories.")
    source, destination = session.store_at(source_url), session.store_at(destination_url)
    options = CopyOptions(dry_run=dry_run, workers=workers, clock=time.time)
    repos = source.repos() if spec is None else [spec.repo]
    rev = None if is_all or spec is None else spec.rev
    server = None if check or dry_run else session.server_copy(source_url, destination_url)
    with show_progress() as progress:
        result = copy_repos(source, destination, repos, rev, options, progress, server)
    if as_json:
        write_json(_json_of(result, dry_run=dry_run))
    else:
        for line in _lines(result, dry_run=dry_run):
            write_line(line)
    for cut in (one for one in result.refs if one.is_cut_off):
        click.echo(f"lodefs: {_cut_off(cut, destination_url)}", err=True)
    if result.purges:
        click.echo(f"lodefs: {_purged(result, source_url, destination_url)}", err=True)
    for one in result.refused:
        click.echo(f"lodefs: {_name(one.ref)} is not copied: {_reason(one)}", err=True)
    if result.refused:
        session.exit_code = exit_codes.FAILURE


def _json_of(result: CopyResult, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "refs": [
            {
                "repo": one.ref.repo,
                "kind": singular(one.ref.kind),
                "name": one.ref.name,
                "previous": None if one.before is None else one.before.hex(),
                "commit": one.after.hex(),
                "is_cut_off": one.is_cut_off,
            }
            for one in result.refs
        ],
        "refused": [
            {
                "repo": one.ref.repo,
                "kind": singular(one.ref.kind),
                "name": one.ref.name,
                "reason": str(one.error),
            }
            for one in result.refused
        ],
        "purged_chunks": sum(len(one.chunks) for one in result.purges),
        "commits": result.commits,
        "packs": result.packs,
        "packs_by_server": result.packs_by_server,
        "packs_there": result.packs_there,
        "stored_bytes": result.size_bytes,
    }


def _lines(result: CopyResult, *, dry_run: bool) -> list[str]:
    sent = "to send" if dry_run else "sent"
    lines = [_line(one) for one in result.refs]
    packs = f"{text.count(result.packs, 'pack')}, {text.size(result.size_bytes)}"
    own = result.packs_by_server
    by_server = f" ({'all' if own == result.packs else own} copied by S3 itself)" if own else ""
    there = (
        f"; there already: {text.count(result.packs_there, 'pack')}" if result.packs_there else ""
    )
    return [*lines, f"{sent}: {text.count(result.commits, 'commit')}, {packs}{by_server}{there}"]


def _line(one: CopiedRef) -> str:
    before = "new" if one.before is None else _short(one.before)
    move = "unchanged" if one.before == one.after else f"{before} -> {_short(one.after)}"
    return f"{_name(one.ref)}  {move}"


def _cut_off(one: CopiedRef, destination_url: str) -> str:
    before = "" if one.before is None else _short(one.before)
    return (
        f"{_name(one.ref)} does not lead to {before} any more, where it was: what lay between has "
        f"expired in the source. `lodefs gc` will delete that and what came before it, unless it "
        f"gets a name: lodefs tag {one.ref.repo}@{before} NAME --store "
        f"{text.escaped(destination_url)}"
    )


def _purged(result: CopyResult, source_url: str, destination_url: str) -> str:
    chunks = text.count(sum(len(one.chunks) for one in result.purges), "chunk")
    names = [text.escaped(one.what) for one in result.purges if one.what]
    of = f" of {', '.join(names[:NAMED_MAX])}" if names else ""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    source, there = text.escaped(source_url), text.escaped(destination_url)
    return (
        f"{source} has purged {chunks}{of}{more}, and {there} has not: what it has of them stays "
        f"there, and can be read. To remove it: lodefs purge --from {source} --store {there}"
    )


def _name(ref: RefName) -> str:
    return f"{ref.repo}@{ref.name}"


def _reason(one: RefusedRef) -> str:
    notes = getattr(one.error, "__notes__", [])
    return text.escaped("; ".join([str(one.error), *notes]))


def _short(commit_id: CommitId) -> str:
    return commit_id.hex()[:12]
