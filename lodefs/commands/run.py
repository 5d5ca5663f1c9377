"""``lodefs run``."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import click

from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import FiniteRange, UntouchedPath
from lodefs.settings import datasets as dataset_lists
from lodefs.settings.datasets import Dataset, is_dataset
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.api.writing.job_changes import Ended, JobChanges

NOT_COMMITTED = 125  # exit codes, as of env(1), timeout(1) and shells
NOT_EXECUTABLE, NOT_FOUND = 126, 127


class _OfChanges(TypedDict):
    """The policy for changes to datasets that take some."""

    when: Annotated[
        str | None,
        cli.option(
            "Commit what the command has changed: on-success, always or never [on-success].",
            "--commit",
            choices=("on-success", "always", "never"),
        ),
    ]
    branch: Annotated[
        str | None,
        cli.option("Commit to this branch, which is made if there is none.", metavar="NAME"),
    ]
    message: Annotated[
        str | None, cli.option("The message of the commit.", "-m", "--message", metavar="TEXT")
    ]
    upper: Annotated[
        str | None,
        cli.option(
            "Keep the changes in this directory of a local disk [one below "
            "/var/lib/lodefs/writable, or ~/.local/state/lodefs/writable].",
            "--upper",
            type=UntouchedPath(),
            metavar="DIR",
        ),
    ]


@cli.command(
    "lodefs run vision/cats@v1:/tmp/cats -- python train.py --data /tmp/cats",
    "lodefs run vision/cats@v1:./cats nlp/wiki:text:./wiki ls cats wiki",
    'lodefs run -m "smaller" vision/cats@main:/tmp/cats:rw -- python shrink.py /tmp/cats',
    store=True,
    proxy=True,
    context_settings={"allow_interspersed_args": False},
)
def run(
    session: Session,
    words: tuple[str, ...] = cli.argument(
        "REPO[@REV][:PATH]:DIR[:rw]... [--] COMMAND [ARGUMENTS]...",
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
    **of_changes: Unpack[_OfChanges],
) -> None:
    """Run a command that sees datasets, each on its directory DIR: read-only, or with :rw for
    changes.

    Only the command and what it starts see the mounts. They end with the command, however it ends.
    It needs no root: without root, the command runs in a user namespace. The command takes the
    place of this process, so that signals and the exit code are its own. A DIR that is missing is
    created, and stays. A proxy that is started for the command ends with it.

    With :rw this process waits for the command and all that it has started, passes signals on to
    it, and then commits the changes to the branch. Changes that are not committed are kept, and
    named: `lodefs commit DIR` commits them. If a commit fails, the exit code is 125.
    """
    named, command = _split(words)
    given: dict[str, Any] = {name: value for name, value in of_changes.items() if value is not None}
    _check_options(named, given)
    from lodefs.api import job_mounts  # here: mistakes above are told at once

    log_path = os.path.abspath(log_path) if log_path else ""
    changes = None
    if any(one.is_writable for one in named):
        from lodefs.api.writing.job_changes import JobChanges  # it takes a while to import

        changes = JobChanges(
            session=session, read_timeout_s=read_timeout_s, log_path=log_path, **given
        )
    prepared = job_mounts.prepare(
        session,
        named,
        read_timeout_s=read_timeout_s,
        log_path=log_path,
        changes=changes,
        say=cli.warn,
    )
    job_mounts.enter(prepared)
    if changes is None:
        session.exit_code = _become(session, command)
    else:
        _run(session, command, changes)


def _check_options(named: Sequence[Dataset], given: Mapping[str, object]) -> None:
    """Raises UsageError for options of changes that there are none of."""
    taking = sum(one.is_writable for one in named)
    if not taking:
        options = {f"--{'commit' if name == 'when' else name}": given[name] for name in given}
        cli.reject(options, "is for a dataset that takes changes: REPO@BRANCH:DIR:rw")
    if "upper" in given and taking > 1:
        raise click.UsageError("--upper is for one dataset that takes changes, and there are more")


def _become(session: Session, command: Sequence[str]) -> int:
    """Run a command in the place of this process, or say why not: then the exit code returns."""
    from lodefs.api import job_mounts

    name = command[0]
    program = name if "/" in name else shutil.which(name)  # it may come with a dataset
    try:
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "command not found")
        job_mounts.exec_command(program, command, session)
    except OSError as error:
        click.echo(f"lodefs: error: {text.escaped(name)}: {error.strerror}", err=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _run(session: Session, command: Sequence[str], changes: JobChanges) -> None:
    """Run a command as a child of this process, and tell what becomes of its changes."""
    from lodefs.api import job_process

    session.exit_code = code = job_process.run(lambda: os._exit(_become(session, command)))
    for one in changes.end(code):
        for line in _told(one, code):
            click.echo(f"lodefs: {text.escaped(line)}", err=True)
        if one.error is not None:
            session.exit_code = NOT_COMMITTED


def _told(one: Ended, code: int) -> list[str]:
    """Returns the outcome of the changes on a directory, for people."""
    lines = []
    if one.result is not None:
        lines = [f"left out of the commit: {left}" for left in one.result.skipped]
        lines.append(
            f"{one.directory}: nothing was changed"
            if one.result.unchanged
            else f"the changes on {one.directory} are commit {one.result.commit} of the branch "
            f"{one.branch}"
        )
    if one.error is not None:
        why = "; ".join([str(one.error), *getattr(one.error, "__notes__", [])])
        after = f" (the command ended with {code})" if code else ""
        lines.append(f"error: the changes on {one.directory} are not committed{after}: {why}")
    if one.kept is not None:
        lines.append(
            f"the changes on {one.directory} are kept in {one.kept.directory}: `lodefs commit "
            f"{one.directory}` commits them, `lodefs unmount --discard {one.directory}` gives them "
            "up"
        )
    return lines


def _split(words: Sequence[str]) -> tuple[list[Dataset], list[str]]:
    """Returns the datasets, and the command. Before ``--`` there are only datasets."""
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
