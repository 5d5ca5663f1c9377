"""``lodefs branch``, ``tag``, ``rm``, ``undelete``: names of commits, and whole repositories."""

from __future__ import annotations

from dataclasses import dataclass

import click

from lodefs.api.refs import RefChange, Refs
from lodefs.api.refs import branch as branches
from lodefs.api.refs import tag as tags
from lodefs.api.upkeep import DeletedItem, NamedRef, deleted
from lodefs.api.upkeep import rm as remove
from lodefs.api.upkeep import undelete as restore
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, Spec, Target, check_ref_name
from lodefs.chunkstore.journal.deletion import living_refs, ref_of
from lodefs.chunkstore.repo.refs import BRANCHES, singular
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.consent import require_consent
from lodefs.settings.session import Session


@cli.command(
    "lodefs branch vision/flickr30k@v1.0 dev             # a new branch dev at v1.0",
    "lodefs branch --force vision/flickr30k@v1.0 main    # main goes back to v1.0",
    "lodefs branch --reset vision/flickr30k@v1.0 main    # the same, if main exists",
    "lodefs branch --move vision/flickr30k@dev trial     # dev is called trial",
    "lodefs branch --undelete vision/flickr30k dev",
    store=True,
)
@click.option("-d", "--delete", is_flag=True, help="Delete the branch NAME.")
@click.option("--undelete", is_flag=True, help="Get the deleted branch NAME back.")
@click.option("-f", "--force", is_flag=True, help="Move NAME to REV if it exists.")
@click.option("--move", is_flag=True, help="Give the branch REV the name NAME.")
@click.option("--reset", is_flag=True, help="Move NAME, which must exist, to REV.")
@click.option("-y", "--yes", is_flag=True, help="Delete the branch main without a question.")
def branch(
    session: Session,
    spec: Spec = cli.argument("REPO[@REV]"),
    name: str | None = cli.argument("[NAME]"),
    as_json: bool = cli.JSON,
    **flags: bool,
) -> None:
    """List the branches of REPO, or with NAME: create that branch at REV (default: main).

    `lodefs reflog` shows where a branch was before it moved or was deleted.
    """
    _run(session, branches, spec, name, RefAction(**flags), as_json=as_json)


@cli.command(
    "lodefs tag vision/flickr30k v1.0                    # a tag of main's latest commit",
    "lodefs tag --undelete vision/flickr30k v1.0",
    store=True,
)
@click.option("-d", "--delete", is_flag=True, help="Delete the tag NAME.")
@click.option("--undelete", is_flag=True, help="Get the deleted tag NAME back.")
@click.option("-f", "--force", is_flag=True, help="Move NAME to REV if it exists.")
def tag(
    session: Session,
    spec: Spec = cli.argument("REPO[@REV]"),
    name: str | None = cli.argument("[NAME]"),
    as_json: bool = cli.JSON,
    **flags: bool,
) -> None:
    """List the tags of REPO, or with NAME: create that tag at REV (default: main).

    `lodefs reflog` shows where a tag was before it moved or was deleted.
    """
    _run(session, tags, spec, name, RefAction(**flags), as_json=as_json)


@dataclass(frozen=True, slots=True)
class RefAction:
    """The action on NAME; none of these: create it."""

    delete: bool
    undelete: bool
    force: bool
    move: bool = False
    reset: bool = False
    yes: bool = False

    def check(self) -> None:
        """Raises UsageError for two at once."""
        given = {f"--{name}": getattr(self, name) for name in ("delete", "undelete", "force")}
        given |= {"--move": self.move, "--reset": self.reset}
        first, *others = [name for name, is_given in given.items() if is_given] or [""]
        if others:
            raise click.UsageError(f"{others[0]} does nothing with {first}")
        cli.reject({"--yes": self.yes and not self.delete}, "does nothing without --delete")


def _run(
    session: Session, refs: Refs, spec: Spec, name: str | None, action: RefAction, *, as_json: bool
) -> None:
    cli.no_path(spec)
    action.check()
    if name is not None:
        check_ref_name(name)
    elif action != RefAction(delete=False, undelete=False, force=False):
        raise InvalidInput("NAME is missing")
    if name is None:
        _list(session, refs, spec.repo, as_json=as_json)
    elif action.delete:
        if refs.kind == BRANCHES and name == DEFAULT_BRANCH:
            what = f"this deletes {spec.repo}@{name}, the branch that commands take by default"
            require_consent(what, is_given=action.yes)
        _delete(session, refs, spec.repo, name, as_json=as_json)
    elif action.undelete:
        _undelete(session, refs, spec.repo, name, as_json=as_json)
    elif action.move:
        _move(session, refs, spec, name, as_json=as_json)
    elif action.reset:
        _show_made(refs, spec, refs.reset(spec, name, session=session), as_json=as_json)
    else:
        made = refs(spec, name, force=action.force, session=session)
        _show_made(refs, spec, made, as_json=as_json)


def _list(session: Session, refs: Refs, repo: str, *, as_json: bool) -> None:
    for found in refs.list(repo, session=session):
        if as_json:
            cli.write_json(found._asdict())
        else:
            cli.write_line(f"{found.name:<24} {found.commit[:12]}  {text.time(found.time_s)}")


def _show_made(refs: Refs, spec: Spec, made: RefChange, *, as_json: bool) -> None:
    if as_json:
        cli.write_json(made._asdict())
        return
    cli.write_line(f"{spec.repo}@{made.name} is {_short(made.commit)}")
    if made.previous not in (None, made.commit):
        again = f"{spec.repo}@{_short(made.previous)} {made.name}"
        cli.write_line(f"undo: lodefs {singular(refs.kind)} --force {again}")


def _move(session: Session, refs: Refs, spec: Spec, name: str, *, as_json: bool) -> None:
    made = refs.move(spec.repo, spec.rev, name, session=session)
    if as_json:
        cli.write_json(made._asdict())
    else:
        cli.write_line(
            f"{spec.repo}@{spec.rev} is {spec.repo}@{name} now, at {_short(made.commit)}"
        )


def _delete(session: Session, refs: Refs, repo: str, name: str, *, as_json: bool) -> None:
    gone = refs.delete(repo, name, session=session)
    if as_json:
        cli.write_json({"name": name, "commit": gone.previous, "deleted": True})
    else:
        cli.write_line(f"deleted {repo}@{name} (was {gone.previous})")
        cli.write_line(f"undo: lodefs {singular(refs.kind)} --undelete {repo} {name}")


def _undelete(session: Session, refs: Refs, repo: str, name: str, *, as_json: bool) -> None:
    back = refs.undelete(repo, name, session=session)
    if as_json:
        cli.write_json(back._asdict())
    else:
        cli.write_line(f"{repo}@{name} is {_short(back.commit)} again")


def _short(commit: str | None) -> str:
    return (commit or "")[:12]


@cli.command(
    "lodefs rm vision/flickr30k@old              # a branch or tag",
    "lodefs rm vision/flickr30k --yes            # a repository, with all branches and tags",
    store=True,
)
def rm(
    session: Session,
    target: Target = cli.argument("REPO[@BRANCH-or-TAG]"),
    yes: bool = cli.option("Do not ask.", "-y", "--yes"),
    as_json: bool = cli.JSON,
) -> None:
    """Delete a repository, or one branch or tag of it.

    Nobody finds it any more; nodes that have just read it notice this a second later. `lodefs gc`
    deletes its data a day or more later, except for data that others need. Until then mounts read
    on, and `lodefs undelete` gets it back. `lodefs du` says how much that frees.
    """
    require_consent(f"this deletes {_what(session, target)}", is_given=yes)
    gone = remove(target, session=session)
    if as_json:
        cli.write_json({"target": str(target), "refs": [_json_of(ref) for ref in gone]})
        return
    if target.rev is None:
        cli.write_line(f"deleted {target} with {text.count(len(gone), 'ref')}")
    else:
        was = f" (was {gone[0].commit})" if gone[0].commit else ""
        cli.write_line(f"deleted {gone[0].kind} {target}{was}")
    cli.write_line(f"undo: lodefs undelete {target}")


def _what(session: Session, target: Target) -> str:
    store = session.store
    try:
        store.require_repo(target.repo)
        if target.rev is not None:
            ref, _ = ref_of(store, target.repo, target.rev)
            return f"the {singular(ref.kind)} {target}"
    except NotFound:
        return str(target)  # of one that was removed by hand a gc run may know
    kinds = [singular(ref.kind) for ref, _ in living_refs(store, target.repo)]
    branches = kinds.count("branch")
    with_what = text.count(branches, "branch") if branches == 1 else f"{branches:,} branches"
    return f"{target} with {with_what} and {text.count(kinds.count('tag'), 'tag')}"


@cli.command(
    "lodefs undelete                             # what is deleted",
    "lodefs undelete vision/flickr30k",
    store=True,
)
def undelete(
    session: Session,
    target: Target | None = cli.argument("[REPO[@BRANCH-or-TAG]]"),
    empty: bool = cli.option("Only free REPO's name, so that it can be pushed to."),
    as_json: bool = cli.JSON,
) -> None:
    """Get a deleted repository, branch or tag back. Without an argument, list all that are deleted.

    It works until `lodefs gc` has deleted the data, a day or more after `lodefs rm`.
    """
    if target is None or (empty and target.rev is not None):
        if empty:
            raise InvalidInput("--empty needs the name of a repository, without a revision")
        _rm_list(deleted(session=session), as_json=as_json)
        return
    found = restore(target, empty=empty, session=session)
    if as_json:
        lost = [one._asdict() for one in found.lost]
        cli.write_json({"refs": [_json_of(ref) for ref in found.refs], "lost": lost})
    else:
        for ref in found.refs:
            cli.write_line(f"{ref.repo}@{ref.name} is {(ref.commit or '')[:12]} again")
        if empty:
            cli.write_line(f"{target.repo} is empty, and can be pushed to")
    for one in found.lost:
        click.echo(
            f"lodefs: {one.kind} {one.repo}@{one.name} is lost: {text.escaped(one.reason)}",
            err=True,
        )
    if found.lost:
        session.exit_code = 1


def _rm_list(items: list[DeletedItem], *, as_json: bool) -> None:
    for one in items:
        if as_json:
            cli.write_json(one._asdict())
            continue
        name = one.repo if one.name is None else f"{one.repo}@{one.name}"
        by = f" by {text.escaped(one.by)}" if one.by else ""
        lost = "" if one.is_there else ", and its data is gone"
        cli.write_line(f"{text.time(one.time_s)}  {one.kind:<10}  {name}{by}{lost}")


def _json_of(ref: NamedRef) -> dict[str, object]:
    return {"kind": ref.kind, "name": ref.name, "commit": ref.commit}
