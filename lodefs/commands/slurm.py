"""``lodefs slurm``: the commands that Slurm's scripts and the plug-in call."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.protocol.figures.job_counts import Jobs
    from lodefs.slurm.job_mounts import BeginChanges, JobMounts
    from lodefs.slurm.job_record import JobRecord, Shown
    from lodefs.slurm.job_report import JobReport

OPTION_VARIABLE = "SPANK__SLURM_SPANK_OPTION_lodefs_lodefs"  # as Slurm names it for a prolog
SWEEP_AGE_S = 60.0
_MOUNTER: Any = cli.option(
    "The socket of the node's `lodefs mounter` [/run/lodefs/mounter/mounter.sock].",
    metavar="PATH",
    envvar="LODEFS_MOUNTER_SOCKET",
    default=Path("/run/lodefs/mounter/mounter.sock"),
)


@click.group(epilog=cli.examples("lodefs slurm resolve vision/cats@main:/data"))
def slurm() -> None:
    """Mount and warm datasets for Slurm's jobs; docs/hpc.md explains each of these commands."""


@cli.command(
    "lodefs slurm resolve vision/cats@main:/data",
    "lodefs slurm resolve --comment 'run 7 lodefs=vision/cats@main:/data'",
    group=slurm,
    store=True,
    proxy=True,
)
def resolve(
    session: Session,
    words: str | None = cli.argument("[REPO@REV[:PATH]:DIR[,...]]"),
    comment: str = cli.option("The job's comment so far.", default="", metavar="TEXT"),
    uid: str | None = cli.option("The job's user, if not you; '' if unknown.", metavar="N"),
) -> None:
    """Print a job's comment with the present commit of each branch and tag.

    cli_filter.lua calls this at submission, so that all nodes, tasks of an array and requeues read
    the same. Without datasets the comment is printed unchanged. burst_buffer.lua gives --uid: a
    dataset that the rules of access keep from this user counts as missing. If the user is unknown,
    datasets that rules limit are not looked up, and the comment is printed unchanged.
    """
    from lodefs.slurm.job_comment import datasets_in, parsed, with_datasets
    from lodefs.slurm.resolving import fixed, job_user

    if uid and not (uid.isascii() and uid.isdecimal() and int(uid) < 2**32 - 1):
        raise InvalidInput(f"--uid {uid}: give the number of a user")
    datasets = datasets_in(comment) if words is None else parsed(words)
    user = None if uid is None else job_user(session, int(uid) if uid else None)
    if user is not None and not uid:
        fixed(session, user.readable(datasets), user)  # `stage` knows the user, and fixes the rest
        datasets = []
    cli.write_line(with_datasets(comment, fixed(session, datasets, user)) if datasets else comment)


@cli.command("lodefs slurm prolog --pin", group=slurm)
def prolog(
    session: Session,
    mounter: Path = _MOUNTER,
    pin: bool = cli.option("Fetch the datasets, and keep them while the job runs."),
    timeout_s: float = cli.option(
        "Time limit for all mounts of the job, in seconds [20].",
        "--timeout",
        default=20.0,
        metavar="S",
        type=FiniteRange(0.1, 3600),
    ),
    changes: Path | None = cli.option(
        "Keep what jobs change in this directory of a local disk, which is root's alone "
        "[/var/lib/lodefs/writable].",
        metavar="DIR",
    ),
) -> None:
    """Mount the job's datasets below /run/lodefs/jobs/JOB. Slurm's Prolog runs this, as root.

    It exits with 0 even on failure, since Slurm drains a node whose prolog fails. The plug-in or
    the task prolog tells the job instead.
    """
    from lodefs.slurm.job_record import JobRecord

    environ = session.environment
    comment = environ.get("SLURM_JOB_COMMENT", "")
    if "lodefs=" not in comment and (asked := environ.get(OPTION_VARIABLE)):
        comment = f"lodefs={asked}"
    try:
        job = _number(session, "SLURM_JOB_ID")
        before = _figures(session, job) if "lodefs=" in comment else {}
        uid = _number(session, "SLURM_JOB_UID")
        record = JobRecord(
            job=job,
            uid=uid,
            gid=_number(session, "SLURM_JOB_GID", default=_group_of(uid)),
            restarts=_number(session, "SLURM_JOB_RESTART_COUNT", default=0),
            before=before,
            begun_s=time.time(),
        )
        problem = _begin(session, mounter, record, comment, pin, timeout_s, changes)
    except (LodefsError, OSError) as error:
        problem = str(error)
    if problem:
        _say(problem)


@cli.command("lodefs slurm epilog", group=slurm)
def epilog(session: Session, mounter: Path = _MOUNTER, as_json: bool = cli.JSON) -> None:
    """Unmount the job's datasets on this node. Slurm's Epilog runs this, as root; it exits with 0.

    It writes one line to the system's log and the output: the job's reads through the node's
    mounts, from cache, peers and store. The line says "at least" if some reads are unknown, and
    "not known" (null in JSON) if all are, for example if a mount could not count.
    """
    from lodefs.slurm.job_report import log

    report, unknown = None, ""
    try:
        job = _number(session, "SLURM_JOB_ID")
        try:  # before the mounts end, and with them their counters
            report = _report(session, job)
        except Exception as error:  # noqa: BLE001 - the mounts must be removed after any error
            unknown = f"the reads of job {job} are not known: {error}"
        _mounts(mounter).end(job)
    except Exception as error:  # noqa: BLE001 - Slurm would drain the node
        _say(f"{error}; `lodefs slurm sweep` tries again")
    if unknown:
        _say(unknown)
    if report is not None:
        cli.write_json(msgspec.to_builtins(report)) if as_json else cli.write_line(report.line)
        log(report.line)


@cli.command("lodefs slurm enter --asked vision/cats@main:/data", group=slurm)
def enter(
    session: Session,
    asked: str = cli.option("What the step's own --lodefs says.", default="", metavar="LIST"),
) -> None:
    """Show the job's datasets on their directories, in this mount namespace, for the plug-in."""
    from lodefs.slurm.job_comment import parsed
    from lodefs.slurm.job_namespace import enter as enter_job
    from lodefs.slurm.job_record import JobRecords

    enter_job(JobRecords(), _number(session, "SLURM_JOB_ID"), parsed(asked) if asked else [])


@cli.command("lodefs slurm commit", "lodefs slurm commit 1234 --wait 600", group=slurm, store=True)
def commit(
    session: Session,
    job: int | None = cli.argument(default=None),
    wait_s: float = cli.option(
        "Wait this many seconds for the job's end, and for what a commit needs [0].",
        "--wait",
        default=0.0,
        metavar="S",
        type=FiniteRange(0, 7 * 86400),
    ),
    mounter: Path = _MOUNTER,
) -> None:
    """Commit or keep, as they asked, the changes of ended jobs on this node.

    This covers all jobs, or JOB. Slurm's Epilog and HealthCheckProgram run it, as root, with
    credentials that may write to the store. It reports the outcome on its output, in the system's
    log, and at the end of the job's output. It may be repeated and killed: there is one commit.
    """
    from lodefs.slurm import job_liveness
    from lodefs.slurm.node_changes import NodeChanges
    from lodefs.slurm.settling import settle

    call = job_liveness.scontrol(session.environment)
    if not settle(NodeChanges(session, mounter), call, job, wait_s, cli.write_line):
        session.exit_code = exit_codes.FAILURE


@cli.command("lodefs slurm sweep", group=slurm)
def sweep(session: Session, mounter: Path = _MOUNTER) -> None:
    """Remove the mounts of jobs that are gone, such as those whose epilog never ran.

    This is for HealthCheckProgram: it asks Slurm's controller about a job only if the node has no
    process of the job.
    """
    from lodefs.slurm import job_liveness
    from lodefs.slurm.job_record import JobRecords

    records, mounts = JobRecords(), _mounts(mounter)
    steps = job_liveness.jobs_with_steps()
    is_at_work = job_liveness.ask_controller(job_liveness.scontrol(session.environment))
    for job in records.jobs():
        try:
            if job in steps or records.age_s(job, time.time()) < SWEEP_AGE_S or is_at_work(job):
                continue
            mounts.end(job)
            cli.write_line(f"job {job} is gone: its mounts were released")
        except Exception as error:  # noqa: BLE001 - whatever one job has, others are swept
            _say(f"job {job}: {error}")
            session.exit_code = exit_codes.FAILURE


@cli.command(
    "lodefs slurm stage 1234",
    "lodefs slurm stage 1234 a/b@main:/tmp/b",
    group=slurm,
    store=True,
    proxy=True,
)
def stage(
    session: Session,
    job: int = cli.argument(),
    words: str = cli.argument("[REPO@REV[:PATH]:DIR[,...]]", default=""),
) -> None:
    """Check the datasets of a job that waits. burst_buffer.lua runs this, on the controller.

    Datasets that only the job's script names are fixed now, and written into its comment.
    """
    from lodefs.slurm import job_liveness, staging

    staging.stage(session, job_liveness.scontrol(session.environment), job, words)


@cli.command("lodefs slurm warm 1234", group=slurm, store=True, proxy=True)
def warm(
    session: Session,
    job: int = cli.argument(),
    patience_s: float = cli.option(
        "Give up when nothing has come for so long, in seconds [60].",
        "--patience",
        default=60.0,
        metavar="S",
        type=FiniteRange(1, 86400),
    ),
) -> None:
    """Bring a job's datasets to its nodes, and pin them. Run by burst_buffer.lua."""
    from lodefs.slurm import job_liveness, staging

    staging.warm_nodes(session, job_liveness.scontrol(session.environment), job, patience_s)


@cli.command("lodefs slurm release 1234", group=slurm, store=True, proxy=True)
def release(session: Session, job: int = cli.argument()) -> None:
    """End the warming of a job, and its pins, on all nodes. Run by burst_buffer.lua."""
    from lodefs.slurm import staging

    staging.release(session, job)


def _report(session: Session, job: int) -> JobReport | None:
    from lodefs.proxies.own_proxy import node_job_figures
    from lodefs.slurm.job_record import JobRecords
    from lodefs.slurm.job_report import devices_of, report_of

    records = JobRecords()
    record = records.read(job)
    if record is None:
        return None
    return report_of(record, node_job_figures(session), devices_of(record, records))


def _figures(session: Session, job: int) -> dict[str, Jobs]:
    """Returns the counts of a job's reads so far. A prolog does without them."""
    from lodefs.proxies.own_proxy import node_job_figures
    from lodefs.slurm.job_report import figures_of

    figures = node_job_figures(session)
    with suppress(OSError):
        return figures_of(job, figures) if figures is not None else {}
    return {}


def _begin(
    session: Session,
    mounter: Path,
    record: JobRecord,
    comment: str,
    pin: bool,
    timeout_s: float,
    changes: Path | None,
) -> str:
    from lodefs.slurm.first_node import is_first

    writes_here = is_first(session.environment)
    return _mounts(mounter, _check_read(session), _begin_changes(session, mounter, changes)).begin(
        record, comment, pinned=pin, timeout_s=timeout_s, writes_here=writes_here
    )


def _begin_changes(session: Session, mounter: Path, upper: Path | None) -> BeginChanges:
    def begin(record: JobRecord, shown: Shown) -> str:
        from lodefs.settings.access_rules import check_writer  # here: most jobs change nothing
        from lodefs.slurm.node_changes import NodeChanges

        changes = NodeChanges(
            session,
            mounter,
            check_write=partial(check_writer, session),
            upper="" if upper is None else os.path.abspath(upper),
        )
        return changes.begin(record, shown)

    return begin


def _check_read(session: Session) -> Callable[[int, str], None]:
    from lodefs.settings.access_rules import access_rules, user_of

    rules = access_rules(session)
    return lambda uid, repo: rules.check(user_of(uid), repo)


def _mounts(
    mounter: Path,
    check_read: Callable[[int, str], None] = lambda _uid, _repo: None,
    begin_changes: BeginChanges | None = None,
) -> JobMounts:
    from lodefs.mount.service.client import RemoteMounts
    from lodefs.slurm.job_mounts import JobMounts
    from lodefs.slurm.job_record import JobRecords

    return JobMounts(
        JobRecords(), RemoteMounts(mounter), check_read=check_read, begin_changes=begin_changes
    )


def _group_of(uid: int) -> int:
    """Returns the group of a user; the number itself of one without an account, who gets no
    mounts."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_gid
    return uid


def _number(session: Session, variable: str, default: int | None = None) -> int:
    """``default``: where an older Slurm does not set it."""
    if default is not None and variable not in session.environment:
        return default
    try:
        return int(session.environment[variable])
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"{variable} is no number: Slurm sets it, for prologs and steps"
        ) from error


def _say(problem: str) -> None:
    click.echo(f"lodefs: error: {text.escaped(problem)}", err=True)
