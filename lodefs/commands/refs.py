"""``lodefs branch`` and ``lodefs tag``: list, create, move, delete, get back."""

from __future__ import annotations

from dataclasses import dataclass

import click

from lodefs.chunkstore.errors import AlreadyExists, InvalidInput
from lodefs.chunkstore.format.names import Spec, check_ref_name
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, singular
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
    _run(session, BRANCHES, spec, name, action, as_json=as_json)


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
    _run(session, TAGS, spec, name, action, as_json=as_json)


@dataclass(frozen=True, slots=True)
class RefAction:
    """The action on NAME; none of these: create it."""

    delete: bool
    undelete: bool
    force: bool


def _run(
    session: Session, kind: str, spec: Spec, name: str | None, action: RefAction, *, as_json: bool
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
        _list(session, kind, spec.repo, as_json=as_json)
    elif action.delete:
        _delete(session, kind, spec.repo, name, as_json=as_json)
    elif action.undelete:
        _undelete(session, kind, spec.repo, name, as_json=as_json)
    else:
        _create(session, kind, spec, name, force=action.force, as_json=as_json)


def _list(session: Session, kind: str, repo: str, *, as_json: bool) -> None:
    found = session.store.refs(repo).list(kind)
    if not found:
        session.store.require_repo(repo)
    for name, entry in found.items():
        assert entry.commit is not None
        if as_json:
            write_json({"name": name, "commit": entry.commit.hex(), "time_s": entry.time_s})
        else:
            write_line(f"{name:<24} {entry.commit.hex()[:12]}  {text.time(entry.time_s)}")


def _create(
    session: Session, kind: str, spec: Spec, name: str, *, force: bool, as_json: bool
) -> None:
    store = session.store
    commit_id = store.resolve(spec.repo, spec.rev)
    store.commit(spec.repo, commit_id)  # a ref never points to a missing commit
    refs = store.refs(spec.repo)
    latest = refs.latest(kind, name)
    now = latest.commit if latest else None
    if now not in (None, commit_id) and not force:
        raise AlreadyExists(f"{name} exists already, at {now.hex()[:12]}; --force moves it")
    if now is None:
        store.check_new_ref(spec.repo, kind, name)
    if now != commit_id:
        store.ensure_writable()
        sequence = None if latest is None else latest.sequence
        refs.advance(kind, name, commit_id, expected_sequence=sequence)
    if as_json:
        previous = None if now is None else now.hex()
        write_json({"name": name, "commit": commit_id.hex(), "previous": previous})
        return
    write_line(f"{spec.repo}@{name} is {commit_id.hex()[:12]}")
    if now not in (None, commit_id):
        was = now.hex()[:12]
        write_line(f"undo: lodefs {singular(kind)} --force {spec.repo}@{was} {name}")


def _delete(session: Session, kind: str, repo: str, name: str, *, as_json: bool) -> None:
    session.store.require_repo(repo)
    refs = session.store.refs(repo)
    entry = refs.read(kind, name)
    assert entry.commit is not None
    refs.advance(kind, name, None, expected_sequence=entry.sequence)
    if as_json:
        write_json({"name": name, "commit": entry.commit.hex(), "deleted": True})
    else:
        write_line(f"deleted {repo}@{name} (was {entry.commit.hex()})")
        write_line(f"undo: lodefs {singular(kind)} --undelete {repo} {name}")


def _undelete(session: Session, kind: str, repo: str, name: str, *, as_json: bool) -> None:
    store = session.store
    store.require_repo(repo)
    refs = store.refs(repo)
    deleted, commit_id = refs.before_deletion(kind, name)
    store.commit(repo, commit_id)
    store.check_new_ref(repo, kind, name)
    store.ensure_writable()
    refs.advance(kind, name, commit_id, expected_sequence=deleted.sequence)
    if as_json:
        write_json({"name": name, "commit": commit_id.hex(), "previous": None})
    else:
        write_line(f"{repo}@{name} is {commit_id.hex()[:12]} again")
