"""``lodefs reflog``."""

from __future__ import annotations

from itertools import chain, islice

import click

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.repo.history import RefMove
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.cli import text
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.commands.log import no_path
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs reflog vision/flickr30k",
    "lodefs branch --force vision/flickr30k@9c2f01ab77de main     # back to one of these",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="REPO[@NAME]", type=SPEC)
@click.option("-n", "limit", type=click.IntRange(1), help="At most this many moves.")
@click.option(
    "--tag", "only_tag", is_flag=True, help="Show the tag NAME, even if a branch had that name."
)
@json_option
@session_command(store=True)
def reflog(session: Session, spec: Spec, limit: int | None, only_tag: bool, as_json: bool) -> None:
    """Show where a branch or tag of REPO was (default: main), newest first, deleted ones too:
    when it moved, from which commit to which, and who pushed.
    """
    from lodefs.chunkstore.repo.history import reflog as moves

    no_path(spec)
    for kind in (TAGS,) if only_tag else (BRANCHES, TAGS):
        found = moves(session.store, spec.repo, kind, spec.rev)
        first = next(found, None)
        if first is not None:
            break
    else:
        session.store.require_repo(spec.repo)
        what = "tag" if only_tag else "branch or tag"
        raise NotFound(f"{spec.repo} never had a {what} {spec.rev}")
    for move in islice(chain([first], found), limit):
        if as_json:
            write_json(_json_of(move))
        else:
            write_line(_shown(move))


def _json_of(move: RefMove) -> dict[str, object]:
    return {
        "time_s": move.time_s,
        "change": move.move.value,
        "previous": None if move.before is None else move.before.hex(),
        "commit": None if move.after is None else move.after.hex(),
        "author": move.author,
    }


def _shown(move: RefMove) -> str:
    author = "" if move.author is None else f"  {text.escaped(move.author)}"
    path = f"{_short(move.before)} -> {_short(move.after)}"
    return f"{text.time(move.time_s)}  {path}  {move.move.value}{author}"


def _short(commit_id: CommitId | None) -> str:
    return f"{'none':<12}" if commit_id is None else commit_id.hex()[:12]
