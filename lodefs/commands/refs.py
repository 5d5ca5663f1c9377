"""``lodefs branch`` and ``lodefs tag``: list, create, move, delete, get back."""

from __future__ import annotations

from dataclasses import dataclass

import click

from lodefs.api.refs import RefChange, Refs
from lodefs.api.refs import branch as branches
from lodefs.api.refs import tag as tags
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, Spec, check_ref_name
from lodefs.chunkstore.repo.refs import BRANCHES, singular
from lodefs.cli import text
from lodefs.cli.consent import require_consent
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
    "lodefs branch --reset vision/flickr30k@v1.0 main    # the same, if main exists",
    "lodefs branch --move vision/flickr30k@dev trial     # dev is called trial",
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
@click.option("--move", is_flag=True, help="Give the branch REV the name NAME.")
@click.option("--reset", is_flag=True, help="Move NAME, which must exist, to REV.")
@click.option("-y", "--yes", is_flag=True, help="Delete the branch main without a question.")
@json_option
@session_command(store=True)
def branch(session: Session, spec: Spec, name: str | None, as_json: bool, **flags: bool) -> None:
    """List the branches of REPO, or with NAME: create that branch at REV (default: main).

    `lodefs reflog` shows where a branch was before it moved or was deleted.
    """
    _run(session, branches, spec, name, RefAction(**flags), as_json=as_json)


@click.command(epilog=TAG_EPILOG)
@click.argument("spec", metavar="REPO[@REV]", type=SPEC)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-d", "--delete", is_flag=True, help="Delete the tag NAME.")
@click.option("--undelete", is_flag=True, help="Get the deleted tag NAME back.")
@click.option("-f", "--force", is_flag=True, help="Move NAME to REV if it exists.")
@json_option
@session_command(store=True)
def tag(session: Session, spec: Spec, name: str | None, as_json: bool, **flags: bool) -> None:
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
        reject({"--yes": self.yes and not self.delete}, "does nothing without --delete")


def _run(
    session: Session, refs: Refs, spec: Spec, name: str | None, action: RefAction, *, as_json: bool
) -> None:
    no_path(spec)
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
            write_json(found._asdict())
        else:
            write_line(f"{found.name:<24} {found.commit[:12]}  {text.time(found.time_s)}")


def _show_made(refs: Refs, spec: Spec, made: RefChange, *, as_json: bool) -> None:
    if as_json:
        write_json(made._asdict())
        return
    write_line(f"{spec.repo}@{made.name} is {_short(made.commit)}")
    if made.previous not in (None, made.commit):
        again = f"{spec.repo}@{_short(made.previous)} {made.name}"
        write_line(f"undo: lodefs {singular(refs.kind)} --force {again}")


def _move(session: Session, refs: Refs, spec: Spec, name: str, *, as_json: bool) -> None:
    made = refs.move(spec.repo, spec.rev, name, session=session)
    if as_json:
        write_json(made._asdict())
    else:
        write_line(f"{spec.repo}@{spec.rev} is {spec.repo}@{name} now, at {_short(made.commit)}")


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
