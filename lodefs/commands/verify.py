"""``lodefs verify``."""

from __future__ import annotations

import click

from chunkstore.names import Spec
from lodefs import exits, text
from lodefs.commands.log import no_path
from lodefs.meter import metered
from lodefs.options import SPEC, json_option, session_command, write_json, write_line
from lodefs.session import Session


@click.command()
@click.argument("spec", metavar="[REPO[@REV]]", type=SPEC, required=False)
@click.option("--data", is_flag=True, help="Read and check every byte too.")
@click.option("--workers", type=click.IntRange(1, 256), default=8, help="Parallel reads [8].")
@json_option
@session_command
def verify(session: Session, spec: Spec | None, data: bool, workers: int, as_json: bool) -> None:
    """Check that every reference of the store, or of one revision, resolves.

    Lists all problems and exits with 1 where there are any.
    """
    from chunkstore.verify import verify as check

    if spec is not None:
        no_path(spec)
    with metered() as progress:
        result = check(session.store, spec, data=data, workers=workers, progress=progress)
    if as_json:
        write_json(
            {
                "problems": result.problems,
                "commits": result.commits,
                "directories": result.directories,
                "files": result.files,
                "data_bytes": result.data_bytes,
            }
        )
    else:
        for problem in result.problems:
            write_line(text.shown(problem))
        read = f", {text.size(result.data_bytes)} read" if data else ""
        write_line(
            f"{text.count(result.commits, 'commit')}, {text.count(result.files, 'file')}{read}: "
            + (text.count(len(result.problems), "problem") if result.problems else "all is well")
        )
    if result.problems:
        session.exit_code = exits.FAILURE
