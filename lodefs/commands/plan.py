"""``lodefs plan``: a push in parts, by many machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lodefs.api.parts import push_plans
from lodefs.api.parts.executors import EXECUTORS
from lodefs.api.parts.part_tasks import TaskResult
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.system.task_share import TaskShare
from lodefs.cli import commit_report, text
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import TASK_SHARE
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.push.parts.plan_status import PlanStatus

_NAMED_MAX = 20


@click.group(
    epilog=cli.examples(
        "lodefs plan create crawl-7 /data/crawl data/crawl",
        "lodefs plan part crawl-7 3/32    # on as many machines as you like",
        "lodefs plan status crawl-7",
        "lodefs plan finish crawl-7",
    )
)
def plan() -> None:
    """Push with many machines: a plan, its parts, one commit.

    PLAN is a name of your choice. All machines must see SRC at the same place.
    """


@cli.command(
    'lodefs plan create crawl-7 /data/crawl data/crawl -m "seventh crawl"',
    "lodefs plan create crawl-7 s3://their-bucket/crawl data/crawl@new",
    "lodefs plan create crawl-7 s3://their-bucket/crawl data/crawl --in-place",
    group=plan,
    store=True,
    of=push_plans.create_plan,
)
def create(
    session: Session,
    name: str = cli.argument("PLAN"),
    source: str = cli.argument("SRC"),
    repo: Spec = cli.argument("REPO[@BRANCH]"),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Scan SRC, and plan its push to a branch in parts.

    Parts have up to 50,000 files or 8 GiB, the first ones less; a larger file is a part of its own,
    and one of more than 64 GiB is in parts of 8 GiB. Only names and times are read: a file that
    changes before its part is done makes that part fail.
    """
    with show_progress() as progress:
        found = push_plans.create_plan(
            name, source, repo, session=session, progress=progress, **options
        )
    made = found.plan
    if as_json:
        skipped = [text.percent_encoded(one.path) for one in found.skipped]
        cli.write_json(
            {"plan": name, **cli.fields(made, "repo", "branch", "parts", "files", "size_bytes")}
            | {"excluded": found.excluded, "skipped": skipped}
        )
        return
    for one in found.skipped[:_NAMED_MAX]:
        cli.warn(f"left out: {one.reason}")
    files, size = text.count(made.files, "file"), text.size(made.size_bytes)
    cli.write_line(f"{name}  {text.count(made.parts, 'part')}, {files}, {size}")


@cli.command(
    "lodefs plan part crawl-7 3/32",
    'lodefs plan part crawl-7 "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"',
    "seq 32 | xargs -P 4 -I K lodefs plan part crawl-7 K/32",
    group=plan,
    store=True,
    of=push_plans.do_parts,
)
def part(
    session: Session,
    name: str = cli.argument("PLAN"),
    share: TaskShare = cli.argument("K/N", type=TASK_SHARE),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Do task K of N, counted from 1: each N-th part of PLAN. 0/N is the last task.

    Tasks may run in any order, again, and at once, and may be killed: parts that are done take no
    time, and N may change. A part that fails does not stop the others; the exit code is then 1.
    """

    def tell(one: TaskResult) -> None:
        _tell(one, as_json=as_json)

    with show_progress() as progress:
        done = push_plans.do_parts(
            name, share.task, share.tasks, tell, session=session, progress=progress, **options
        )
    session.exit_code = int(any(one.error is not None for one in done))


@cli.command(
    "lodefs plan run crawl-7 --executor processes:8",
    "lodefs plan run crawl-7 --executor dask://scheduler:8786",
    group=plan,
    store=True,
)
def run(
    session: Session,
    name: str = cli.argument("PLAN"),
    executor: str = cli.option(EXECUTORS, required=True, metavar="EXECUTOR"),
    skip_unreadable: bool = cli.option("Leave out files that cannot be read or that change."),
    source: str | None = cli.option(
        "Read only SRC: refuse a plan of another source.", metavar="SRC"
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Do all parts of PLAN that are not done, with an executor.

    The exit code is 1 if parts failed.
    """
    with show_progress() as progress:
        failed = push_plans.run_plan(
            name,
            executor,
            skip_unreadable=skip_unreadable,
            source=source,
            progress=progress,
            session=session,
        )
    for one in failed:
        _tell(one, as_json=as_json)
    session.exit_code = int(bool(failed))


@cli.command("lodefs plan status crawl-7 --json", group=plan, store=True)
def status(session: Session, name: str = cli.argument("PLAN"), as_json: bool = cli.JSON) -> None:
    """Show which parts of PLAN are done, which failed, and which are to be done.

    The exit code is 1 unless all parts are done.
    """
    found = push_plans.status_of(name, session=session)
    is_over = found.commit is not None
    session.exit_code = 0 if is_over else int(bool(found.todo))
    if as_json:
        cli.write_json(
            {
                **cli.fields(found.plan, "name", "repo", "branch", "parts", "files", "size_bytes"),
                "commit": None if found.commit is None else found.commit.hex(),
                "done": len(found.done),
                "failed": [
                    {"part": number + 1, "host": one.host, "message": one.message}
                    for number, one in sorted(found.failed.items())
                ],
                "missing": [number + 1 for number in found.missing],
                "unchecked": [number + 1 for number in found.unchecked],
            }
        )
        return
    _show_status(found)


@cli.command("lodefs plan finish crawl-7", group=plan, store=True, of=push_plans.finish_plan)
def finish(
    session: Session,
    name: str = cli.argument("PLAN"),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Commit what the parts of PLAN have stored, once all are done.

    It may be repeated, and on another machine: a plan makes one commit. If the branch has moved
    since the plan was made, nothing is committed; --onto names the head to replace. A gc run
    removes the plan later.
    """
    with show_progress() as progress:
        result = push_plans.finish_plan(name, session=session, progress=progress, **options)
    if as_json:
        cli.write_json(commit_report.json_of(result, dry_run=False))
    else:
        branch = push_plans.branch_of(name, session=session)
        commit_report.show(result, branch, dry_run=False, as_json=False)


@cli.command("lodefs plan discard crawl-7", group=plan, store=True)
def discard(session: Session, name: str = cli.argument("PLAN")) -> None:
    """Remove PLAN. Its commit stays, if it is finished; otherwise gc deletes its data."""
    push_plans.discard_plan(name, session=session)
    cli.write_line(f"discarded the plan {name}")


def _tell(one: TaskResult, *, as_json: bool) -> None:
    if as_json:
        values = {"part": one.number + 1, **cli.fields(one, "files", "size_bytes")}
        cli.write_json(values | {"message": one.error})
    elif one.error is not None:
        cli.warn(f"part {one.number + 1} failed: {one.error}")
    else:
        files, size = text.count(one.files, "file"), text.size(one.size_bytes)
        cli.write_line(f"part {one.number + 1}: {files}, {size}")


def _show_status(found: PlanStatus) -> None:
    made = found.plan
    files, size = text.count(made.files, "file"), text.size(made.size_bytes)
    cli.write_line(f"plan       {made.name}: {files}, {size}, to {made.repo}@{made.branch}")
    cli.write_line(f"done       {len(found.done):,} of {text.count(made.parts, 'part')}")
    for what, numbers in (("missing", found.missing), ("unchecked", found.unchecked)):
        if numbers:
            cli.write_line(f"{what:<10} {_ranges([number + 1 for number in numbers])}")
    for number, one in sorted(found.failed.items())[:_NAMED_MAX]:
        cli.write_line(f"failed     {number + 1}, on {one.host}: {text.escaped(one.message)}")
    if len(found.failed) > _NAMED_MAX:
        cli.write_line(f"failed     {len(found.failed) - _NAMED_MAX:,} more")
    if found.commit is not None:
        cli.write_line(f"commit     {found.commit.hex()}")


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as ranges (1-4,7), which Slurm takes for an array."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
