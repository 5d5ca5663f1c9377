"""``lodefs branch`` and ``lodefs tag``: list, create, move, delete, get back."""

from __future__ import annotations

from dataclasses import dataclass

import click

from lodefs.api.refs import Refs
from lodefs.api.refs import branch as branches
from lodefs.api.refs import tag as tags
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, check_ref_name
from lodefs.chunkstore.repo.refs import singular
from lodefs.cli import text
from lodefs.cli.options import (
    SPEC,
    examples,
    json_option,
    reject,
    session_command,
    write_json,
    write_line,
)
from lodefs.commands.log import no_path
from lodefs.settings.session import Session

BRANCH_EPILOG = examples(
    "lodefs branch vision/flickr30k@v1.0 dev             # a new branch dev at v1.0",
    "lodefs branch --force vision/flickr30k@v1.0 main    # main goes back to v1.0",
    "lodefs branch --undelete vision/flickr30k dev",
)
TAG_EPILOG = examples(
    "lodefs tag vision/flickr30k v1.0                    # a tag of main's latest commit",
    "lodefs tag --undelete vision/flickr30k v1.0",
)


@click.command(epilog=BRANCH_EPILOG)
@click.argument("spec", metavar="REPO[@REV]", type=SPEC)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-d", "--delete", is_flag=True, help="Delete the branch NAME.")
@click.option("--undelete", is_flag=True, help="Get the deleted branch NAME back.")
@click.option("-f", "--force", is_flag=True, help="Move NAME to REV if it exists.")
@json_option
@session_command(store=True)
def branch(
    session: Session,
    spec: Spec,
    name: str | None,
    delete: bool,
    undelete: bool,
    force: bool,
    as_json: bool,
) -> None:
    """List the branches of REPO, or with NAME: create that branch at REV (default: main).

    `lodefs reflog` shows where a branch was before it moved or was deleted.
    """
    action = RefAction(delete=delete, undelete=undelete, force=force)
    _run(session, branches, spec, name, action, as_json=as_json)


@click.command(epilog=TAG_EPILOG)
@click.argument("spec", metavar="REPO[@REV]", type=SPEC)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-d", "--delete", is_flag=True, help="Delete the tag NAME.")
@click.option("--undelete", is_flag=True, help="Get the deleted tag NAME back.")
@click.option("-f", "--force", is_flag=True, help="Move NAME to REV if it exists.")
@json_option
@session_command(store=True)
def tag(
    session: Session,
    spec: Spec,
    name: str | None,
    delete: bool,
    undelete: bool,
    force: bool,
    as_json: bool,
) -> None:
    """List the tags of REPO, or with NAME: create that tag at REV (default: main).

    `lodefs reflog` shows where a tag was before it moved or was deleted.
    """
    action = RefAction(delete=delete, undelete=undelete, force=force)
    _run(session, tags, spec, name, action, as_json=as_json)


@dataclass(frozen=True, slots=True)
class RefAction:
    """The action on NAME; none of these: create it."""

    delete: bool
    undelete: bool
    force: bool


def _run(
    session: Session, refs: Refs, spec: Spec, name: str | None, action: RefAction, *, as_json: bool
) -> None:
    no_path(spec)
    reject({"--force": action.delete and action.force}, "does nothing with --delete")
    others = {"--force": action.force, "--delete": action.delete}
    reject(others if action.undelete else {}, "does nothing with --undelete")
    if name is not None:
        check_ref_name(name)
    elif action.delete or action.force or action.undelete:
        raise InvalidInput("NAME is missing")
    if name is None:
        _list(session, refs, spec.repo, as_json=as_json)
    elif action.delete:
        _delete(session, refs, spec.repo, name, as_json=as_json)
    elif action.undelete:
        _undelete(session, refs, spec.repo, name, as_json=as_json)
    else:
        _create(session, refs, spec, name, force=action.force, as_json=as_json)


def _list(session: Session, refs: Refs, repo: str, *, as_json: bool) -> None:
    for found in refs.list(repo, session=session):
        if as_json:
            write_json(found._asdict())
        else:
            write_line(f"{found.name:<24} {found.commit[:12]}  {text.time(found.time_s)}")


def _create(
    session: Session, refs: Refs, spec: Spec, name: str, *, force: bool, as_json: bool
) -> None:
    made = refs(spec, name, force=force, session=session)
    if as_json:
        write_json(made._asdict())
        return
    write_line(f"{spec.repo}@{name} is {_short(made.commit)}")
    if made.previous not in (None, made.commit):
        again = f"{spec.repo}@{_short(made.previous)} {name}"
        write_line(f"undo: lodefs {singular(refs.kind)} --force {again}")


def _delete(session: Session, refs: Refs, repo: str, name: str, *, as_json: bool) -> None:
    gone = refs.delete(repo, name, session=session)
    if as_json:
        write_json({"name": name, "commit": gone.previous, "deleted": True})
    else:
        write_line(f"deleted {repo}@{name} (was {gone.previous})")
        write_line(f"undo: lodefs {singular(refs.kind)} --undelete {repo} {name}")


def _undelete(session: Session, refs: Refs, repo: str, name: str, *, as_json: bool) -> None:
    back = refs.undelete(repo, name, session=session)
    if as_json:
        write_json(back._asdict())
    else:
        write_line(f"{repo}@{name} is {_short(back.commit)} again")


def _short(commit: str | None) -> str:
    return (commit or "")[:12]
