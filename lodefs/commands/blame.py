"""``lodefs blame``."""

from __future__ import annotations

import click

from lodefs.api.history import blame as blamed
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import text
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs blame vision/flickr30k:captions.csv",
    "lodefs blame vision/flickr30k@v1.0:images          # each entry of a directory",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="REPO[@REV][:PATH]", type=SPEC)
@json_option
@session_command(store=True)
def blame(session: Session, spec: Spec, as_json: bool) -> None:
    """Show which commit made PATH what it is; of a directory, each of its entries, the latest
    changes first. A directory counts as changed by anything below it.
    """
    for one in blamed(spec, session=session):
        commit = one.commit
        if as_json:
            write_json(
                {
                    "path": text.percent_encoded(one.path),
                    "commit": one.commit_id.hex(),
                    "author": commit.author,
                    "time_s": commit.time_s,
                    "message": commit.message,
                }
            )
            continue
        first = next(iter(text.escaped_lines(commit.message)), "")
        who = (
            f"{one.commit_id.hex()[:12]}  {text.time(commit.time_s)}  {text.escaped(commit.author)}"
        )
        write_line(f"{who}  {text.escaped(one.path)}  {first}".rstrip())
