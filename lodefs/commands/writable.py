"""``lodefs commit`` and ``lodefs restore``: the changes in a writable mount."""

from __future__ import annotations

from typing import Any

from lodefs.api.writing import writable
from lodefs.api.writing.writable_changes import commit as commit_mount
from lodefs.api.writing.writable_changes import restore as restore_paths
from lodefs.api.writing.writable_changes import status
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import commit_report, text
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import FiniteRange, UntouchedPath
from lodefs.cli.progress_bars import show_progress
from lodefs.commands.history import difference_json_of, difference_line_of
from lodefs.settings.session import Session


@cli.command(
    'lodefs commit ./work -m "corrected captions"',
    "lodefs commit ./work --branch experiment --wait 60",
    "lodefs commit ./work --dry-run",
    store=True,
    of=commit_mount,
)
def commit(
    session: Session,
    directory: str = cli.argument("DIR", type=UntouchedPath()),
    wait_s: float = cli.option(
        "Wait this many seconds for files that are open for writing [0].",
        "--wait",
        type=FiniteRange(0, 7 * 86400),
        default=0.0,
        metavar="S",
    ),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Commit the changes in the writable mount on DIR to its branch.

    DIR then shows the new commit, without changes. Only changed files are read. Commits of others
    to the branch since then are kept, and show in DIR, too; a path that they changed as well is a
    conflict: nothing is committed, and it is named (exit code 15).

    Meanwhile DIR takes no changes. Files that are open for writing are named, with the processes
    that have them open; --wait S waits until they are closed.
    """
    with show_progress() as progress:
        result = commit_mount(
            directory, wait_s=wait_s, session=session, progress=progress, **options
        )
    record = writable.place_of(session, directory).read()
    branch = options["branch"] or (record.branch if record is not None else "")
    spec = Spec(record.repo if record is not None else "", branch)
    dry_run = options["dry_run"]
    commit_report.show(result, spec, dry_run=dry_run, as_json=as_json, has_options=False)


@cli.command(
    "lodefs restore ./work captions.csv images/2024",
    store=True,
)
def restore(
    session: Session,
    directory: str = cli.argument("DIR", type=UntouchedPath()),
    paths: tuple[str, ...] = cli.argument("PATH...", required=True),
) -> None:
    """Put files and directories of the writable mount on DIR back as they are in its base.

    Each PATH, relative to DIR, is replaced when all of it was read; its changes are lost.
    """
    restore_paths(directory, paths, session=session)


def show_status(session: Session, directory: str, *, as_json: bool) -> None:
    """Writes the changes in a writable mount."""
    found = status(directory, session=session)
    has_moved = bool(found.branch) and found.head != found.commit
    if as_json:
        keys = "repo", "branch", "commit", "head"
        cli.write_json(
            {key: getattr(found, key) or None for key in keys}
            | {
                "mountpoint": text.percent_encoded(
                    found.mountpoint.encode(errors="surrogateescape")
                ),
                "path": text.percent_encoded(found.path),
                "mounted": found.is_mounted,
                "read_only": found.is_read_only,
                "changes": [difference_json_of(one) for one in found.differences],
                "skipped": [
                    {"path": text.percent_encoded(one.path), "message": one.reason}
                    for one in found.skipped
                ],
            }
        )
        return
    spec = Spec(found.repo, found.branch or found.commit[:12], found.path)
    more = "" if found.is_mounted else ", not mounted"
    cli.write_line(f"{text.escaped(str(spec))}, base {found.commit[:12]}{more}")
    if found.is_read_only:
        cli.write_line(
            "it takes no changes now: a commit is under way, or was interrupted (`lodefs commit` "
            "goes on, and `lodefs mount --writable` has it take changes again)"
        )
    if has_moved:
        at = found.head[:12] or "no more"
        cli.write_line(f"the branch is at {at}: a commit will follow that")
    for one in found.differences:
        cli.write_line(difference_line_of(one))
    for left in found.skipped:
        cli.write_line(f"no commit can hold it: {text.escaped(left.reason)}")
    if not found.differences and not found.skipped:
        cli.write_line("nothing changed")
