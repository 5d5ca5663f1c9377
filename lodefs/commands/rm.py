"""``lodefs rm`` and ``lodefs undelete``."""

from __future__ import annotations

import click

from lodefs.api.upkeep.deleting import DeletedItem, NamedRef, deleted
from lodefs.api.upkeep.deleting import rm as remove
from lodefs.api.upkeep.deleting import undelete as restore
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Target
from lodefs.chunkstore.journal.deletion import living_refs, ref_of
from lodefs.chunkstore.repo.refs import singular
from lodefs.cli import text
from lodefs.cli.consent import require_consent
from lodefs.cli.options import (
    TARGET,
    examples,
    json_option,
    session_command,
    write_json,
    write_line,
)
from lodefs.settings.session import Session

RM_EPILOG = examples(
    "lodefs rm vision/flickr30k@old              # a branch or tag",
    "lodefs rm vision/flickr30k --yes            # a repository, with all branches and tags",
)
UNDELETE_EPILOG = examples(
    "lodefs undelete                             # what is deleted",
    "lodefs undelete vision/flickr30k",
)


@click.command(epilog=RM_EPILOG)
@click.argument("target", metavar="REPO[@BRANCH-or-TAG]", type=TARGET)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@session_command(store=True)
def rm(session: Session, target: Target, yes: bool, as_json: bool) -> None:
    """Delete a repository, or one branch or tag of it.

    Nobody finds it any more, a second later on nodes that have just read it. Its data goes with
    `lodefs gc`, a day or more later, but for what others need: until then mounts read on, and
    `lodefs undelete` gets it back. `lodefs du` says how much that frees.
    """
    require_consent(f"this deletes {_what(session, target)}", is_given=yes)
    gone = remove(target, session=session)
    if as_json:
        write_json({"target": str(target), "refs": [_json_of(ref) for ref in gone]})
        return
    if target.rev is None:
        write_line(f"deleted {target} with {text.count(len(gone), 'ref')}")
    else:
        was = f" (was {gone[0].commit})" if gone[0].commit else ""
        write_line(f"deleted {gone[0].kind} {target}{was}")
    write_line(f"undo: lodefs undelete {target}")


def _what(session: Session, target: Target) -> str:
    store = session.store
    try:
        store.require_repo(target.repo)
        if target.rev is not None:
            ref, _ = ref_of(store, target.repo, target.rev)
            return f"the {singular(ref.kind)} {target}"
    except NotFound:
        return str(target)  # of one that was removed by hand a collection may know
    kinds = [singular(ref.kind) for ref, _ in living_refs(store, target.repo)]
    branches = kinds.count("branch")
    with_what = text.count(branches, "branch") if branches == 1 else f"{branches:,} branches"
    return f"{target} with {with_what} and {text.count(kinds.count('tag'), 'tag')}"


@click.command(epilog=UNDELETE_EPILOG)
@click.argument("target", metavar="[REPO[@BRANCH-or-TAG]]", type=TARGET, required=False)
@click.option("--empty", is_flag=True, help="Only free REPO's name, so that it can be pushed to.")
@json_option
@session_command(store=True)
def undelete(session: Session, target: Target | None, empty: bool, as_json: bool) -> None:
    """Get a deleted repository, branch or tag back; without an argument, list what is deleted.

    It works until `lodefs gc` has deleted the data, a day or more after `lodefs rm`.
    """
    if target is None or (empty and target.rev is not None):
        if empty:
            raise InvalidInput("--empty needs the name of a repository, without a revision")
        _list(deleted(session=session), as_json=as_json)
        return
    found = restore(target, empty=empty, session=session)
    if as_json:
        lost = [one._asdict() for one in found.lost]
        write_json({"refs": [_json_of(ref) for ref in found.refs], "lost": lost})
    else:
        for ref in found.refs:
            write_line(f"{ref.repo}@{ref.name} is {(ref.commit or '')[:12]} again")
        if empty:
            write_line(f"{target.repo} is empty, and can be pushed to")
    for one in found.lost:
        click.echo(
            f"lodefs: {one.kind} {one.repo}@{one.name} is lost: {text.escaped(one.reason)}",
            err=True,
        )
    if found.lost:
        session.exit_code = 1


def _list(items: list[DeletedItem], *, as_json: bool) -> None:
    for one in items:
        if as_json:
            write_json(one._asdict())
            continue
        name = one.repo if one.name is None else f"{one.repo}@{one.name}"
        by = f" by {text.escaped(one.by)}" if one.by else ""
        lost = "" if one.is_there else ", and its data is gone"
        write_line(f"{text.time(one.time_s)}  {one.kind:<10}  {name}{by}{lost}")


def _json_of(ref: NamedRef) -> dict[str, object]:
    return {"kind": ref.kind, "name": ref.name, "commit": ref.commit}
