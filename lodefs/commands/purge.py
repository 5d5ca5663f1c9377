"""``lodefs purge``: removes bytes from all versions, permanently."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import ChunkId, PackId, Spec, parse_id, parse_spec
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.consent import require_consent
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.maintenance.purge import PurgePlan, PurgeResult
    from lodefs.chunkstore.system.progress import Progress


@cli.command(
    "lodefs purge vision/flickr30k --path images/7.jpg --dry-run",
    "lodefs purge vision/flickr30k --path images/7.jpg",
    "lodefs purge --from s3://bucket/prefix --store s3://mirror/prefix     # its copy",
    "lodefs purge --check                # after the pushes of that time have ended",
    store=True,
)
def purge(
    session: Session,
    repo: str | None = cli.argument("[REPO]"),
    path: str | None = cli.option(
        "Purge this file, or all files below this directory.", metavar="PATH"
    ),
    chunk: str | None = cli.option(
        "Purge the chunk with this id in all repositories.", metavar="ID"
    ),
    check: bool = cli.option("Remove purged bytes that have come back since."),
    source_url: str | None = cli.option(
        "Purge all that another store has purged.", "--from", metavar="STORE"
    ),
    also_shared: bool = cli.option("Purge bytes even if other paths need them."),
    dry_run: bool = cli.option("Only show what would be removed."),
    yes: bool = cli.option("Do not ask.", "-y", "--yes"),
    as_json: bool = cli.JSON,
) -> None:
    """Remove the bytes of a file from all versions, at once and permanently.

    This is for data that you must delete for legal reasons; use `lodefs rm` and `lodefs gc` in all
    other cases. The versions keep the file's name. A reader of the file is told that it was purged,
    nodes drop it from their caches within two minutes, and a push of the same bytes is refused.
    Copies in other stores keep the bytes until they are purged there too: --from STORE.
    """
    from lodefs.chunkstore.maintenance import purge as purging

    _check_words(repo, path, chunk, source_url, check=check)
    with show_progress() as progress:
        plan = _plan(session, repo, path, chunk, source_url, progress)
    if not also_shared and not dry_run:
        purging.check_shared(plan.shared)
    result = None
    # Even if no pack has the bytes, this store must learn of a purge of another store.
    if not dry_run and (plan.packs or (source_url is not None and plan.chunks)):
        require_consent(f"this removes {_what(plan)}permanently", is_given=yes)
        with show_progress() as progress:
            result = purging.purge(session.store, plan, progress=progress, also_shared=also_shared)
    if as_json:
        cli.write_json(_json_of(plan, result))
    else:
        for line in _lines(plan, result):
            cli.write_line(line)
        if result is not None and not check:
            url = text.escaped(session.store.url)
            cli.write_line(
                f"a copy of this store keeps them: lodefs purge --from {url} --store COPY"
            )
    if plan.unreadable or (result is not None and result.left):
        session.exit_code = exit_codes.FAILURE


def _check_words(
    repo: str | None, path: str | None, chunk: str | None, source_url: str | None, *, check: bool
) -> None:
    if sum((path is not None, chunk is not None, source_url is not None, check)) != 1:
        raise InvalidInput(
            "say what to purge: REPO --path PATH, --chunk ID, --from STORE, or --check"
        )
    if (path is not None) != (repo is not None):
        raise InvalidInput("REPO and --path go together; the other options purge a whole store")
    if repo is not None and (target := parse_spec(repo)) != Spec(repo):
        raise InvalidInput(
            f"{repo}: a purge covers all versions of a repository: lodefs purge {target.repo} "
            f"--path {os.fsdecode(target.path) or path}"
        )


def _plan(
    session: Session,
    repo: str | None,
    path: str | None,
    chunk: str | None,
    source_url: str | None,
    progress: Progress,
) -> PurgePlan:
    from lodefs.chunkstore.maintenance import purge as purging

    if repo is not None and path is not None:
        return purging.plan_path(session.store, repo, os.fsencode(path), progress)
    if chunk is not None:
        return purging.plan_chunk(session.store, ChunkId(parse_id(chunk, "chunk id")), progress)
    if source_url is not None:
        return purging.plan_from(session.store, session.store_at(source_url), progress)
    return purging.plan_again(session.store, progress)


def _what(plan: PurgePlan) -> str:
    return (
        f"{text.count(len(plan.chunks), 'chunk')} ({text.size(plan.size_bytes)}) from "
        f"{text.count(len(plan.packs), 'pack')}"
        + (f": {plan.what}, in {text.count(plan.versions, 'version')}" if plan.what else "")
        + (f", and {text.count(len(plan.shared), 'other file')}" if plan.shared else "")
    )


def _lines(plan: PurgePlan, result: PurgeResult | None) -> list[str]:
    if result is None:
        lines = [f"to purge: {_what(plan)}" if plan.packs else "nothing to purge"]
        lines += [f"shared with {one}" for one in plan.shared]
        lines += [_left_line(pack) for pack in plan.unreadable]
        return lines + _in_place_lines(plan) + _damaged_lines(plan)
    lines = [f"purged {_what(plan)}"]
    lines += [f"arrived meanwhile, and was purged too: {one}" for one in result.shared]
    lines += [_left_line(pack) for pack in result.left]
    if result.writers:
        count = text.count(result.writers, "push") if result.writers == 1 else (
            f"{result.writers} pushes"
        )  # fmt: skip
        lines.append(
            f"{count} began before the purge: when they have ended, run lodefs purge --check"
        )
    return lines + _in_place_lines(plan) + _damaged_lines(plan)


def _in_place_lines(plan: PurgePlan) -> list[str]:
    return [
        f"{text.escaped(name)} (source:key) has such bytes, too, and stays in its bucket: its "
        "owner can delete it there"
        for name in plan.in_place
    ]


def _damaged_lines(plan: PurgePlan) -> list[str]:
    return [
        f"commit {commit.hex()} is damaged, and no branch or tag leads to it: what only this "
        "commit leads to stays until lodefs gc deletes it"
        for commit in plan.damaged
    ]


def _left_line(pack: PackId) -> str:
    return (
        f"pack {pack.hex()} is damaged, and may still have such bytes: "
        "lodefs repair --data, then lodefs purge --check"
    )


def _json_of(plan: PurgePlan, result: PurgeResult | None) -> dict[str, object]:
    return {
        **cli.fields(plan, "what", "chunks"),
        "packs": cli.plain(sorted(plan.packs)),
        **cli.fields(plan, "size_bytes", "versions"),
        "shared": sorted({*plan.shared, *(result.shared if result else ())}),
        "is_done": result is not None,
        "damaged_commits": cli.plain(plan.damaged),
        "in_place": plan.in_place,
        "left": cli.plain(result.left if result else plan.unreadable),
        "writers": result.writers if result else 0,
    }
