"""``lodefs run``."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence

import click

from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings import datasets as dataset_lists
from lodefs.settings.datasets import Dataset, is_dataset
from lodefs.settings.session import Session

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit codes, as of env(1) and shells


@cli.command(
    "lodefs run vision/cats@v1:/tmp/cats -- python train.py --data /tmp/cats",
    "lodefs run vision/cats@v1:./cats nlp/wiki:text:./wiki ls cats wiki",
    store=True,
    proxy=True,
    context_settings={"allow_interspersed_args": False},
)
def run(
    session: Session,
    words: tuple[str, ...] = cli.argument(
        "REPO[@REV][:PATH]:DIR... [--] COMMAND [ARGUMENTS]...",
        type=click.UNPROCESSED,
        required=True,
    ),
    read_timeout_s: float | None = cli.option(
        "Time limit of a read, in seconds; then EIO [30].",
        "--read-timeout",
        type=FiniteRange(0.1, 3600),
        metavar="S",
    ),
    log_path: str = cli.option(
        "Write the log of the mounts to FILE [syslog].", "--log", default="", metavar="FILE"
    ),
) -> None:
    """Run a command that sees datasets, each read-only on its directory DIR.

    Only the command and what it starts see the mounts. They end with the command, however it ends.
    Needs no root: without it, the command runs in a user namespace. The command takes the place
    of this process, so that signals and the exit code are its own. A DIR that is missing is
    created, and stays. A proxy that is started for the command ends with it.
    """
    named, command = _split(words)
    from lodefs.api import job_mounts  # here: mistakes above are told at once

    log_path = os.path.abspath(log_path) if log_path else ""
    prepared = job_mounts.prepare(
        session, named, read_timeout_s=read_timeout_s, log_path=log_path, say=cli.warn
    )
    job_mounts.enter(prepared)
    name = command[0]
    program = name if "/" in name else shutil.which(name)  # it may come with a dataset
    try:
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "command not found")
        job_mounts.exec_command(program, command, session)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        session.exit_code = NOT_FOUND if missing else NOT_EXECUTABLE
        click.echo(f"lodefs: error: {text.escaped(name)}: {error.strerror}", err=True)


def _split(words: Sequence[str]) -> tuple[list[Dataset], list[str]]:
    """The datasets, and the command. Before ``--`` there are only datasets."""
    end = words.index("--") if "--" in words else -1
    if end < 0 or not all(map(is_dataset, words[:end])):
        end = next((n for n, word in enumerate(words) if not is_dataset(word)), len(words))
    if not end:
        raise click.UsageError(f"{words[0]!r} is no dataset with a place: {dataset_lists.FORM}.")
    command = list(words[end:])
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise click.UsageError("no command is given: what should run?")
    return [dataset_lists.parse(word) for word in words[:end]], command
