"""``lodefs warm``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from lodefs.api.warming import warm as warm_data
from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.nodeapi.cache_control import WarmError, WarmStatus, decoded
from lodefs.cli import exit_codes, text
from lodefs.cli.options import (
    SPEC,
    examples,
    json_option,
    reject,
    session_command,
    warn,
    write_json,
    write_line,
)
from lodefs.cli.parsed_type import DURATION
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs warm vision/flickr30k@v1.0                       # all of it",
    "lodefs warm vision/flickr30k@v1.0:images --pin 7d       # a directory, kept for a week",
    "lodefs warm 'vision/flickr30k:images/**/*.jpg'          # the files that match a pattern",
    "head -1000 order.txt | lodefs warm vision/flickr30k --from -",
    "lodefs warm vision/flickr30k@v1.0 --all-nodes --detach  # on each node of the cluster",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="REPO[@REV][:PATH]", type=SPEC, required=False)
@click.option(
    "--from",
    "listed",
    metavar="FILE",
    help="Read paths below PATH from FILE, one a line; - is stdin.",
)
@click.option("-0", "--null", is_flag=True, help="With --from: paths end with NUL, not newline.")
@click.option(
    "--pin", "pin_s", type=DURATION, help="Protect it from eviction for so long (12h, 7d, 2w)."
)
@click.option("--all-nodes", is_flag=True, help="Warm all nodes of the cluster, not only this one.")
@click.option("--nodes", metavar="NODE,...", help="Warm exactly these nodes of the cluster.")
@click.option(
    "--skip-missing", is_flag=True, help="With --all-nodes: go on without nodes that do not answer."
)
@click.option("--detach", is_flag=True, help="Do not wait; print the job's id.")
@click.option("--attach", "attached", metavar="ID", help="Wait for a job that was detached.")
@click.option("--cancel", "cancelled", metavar="ID", help="End a job.")
@click.option("--jobs", "of_jobs", is_flag=True, help="List the jobs of the proxy.")
@json_option
@session_command(store=True, proxy=True)
def warm(
    session: Session,
    spec: Spec | None,
    listed: str | None,
    null: bool,
    pin_s: int | None,
    all_nodes: bool,
    nodes: str | None,
    skip_missing: bool,
    detach: bool,
    attached: str | None,
    cancelled: str | None,
    of_jobs: bool,
    as_json: bool,
) -> None:
    """Bring a revision, or PATH in it, into the cache of the node's proxy.

    PATH may be a pattern: * and ? stand for bytes of one name, [ab] for one of a set, ** for any
    number of directories. Cached data is not fetched again, so repeat an interrupted command.
    Ctrl-C ends the job; with --detach or --attach it goes on.
    """
    if sum([spec is not None, attached is not None, cancelled is not None, of_jobs]) != 1:
        raise click.UsageError("give REPO[@REV][:PATH], or a job, or --jobs")
    reject({"--null": null and listed is None}, "does nothing without --from")
    several = all_nodes or nodes is not None
    reject({"--skip-missing": skip_missing and not several}, "does nothing without --all-nodes")
    reject({"--nodes": nodes is not None and all_nodes}, "names other nodes than --all-nodes")
    names = [name.strip() for name in (nodes or "").split(",") if name.strip()]
    if nodes is not None and not names:
        raise click.UsageError("--nodes names no node")
    if spec is None:
        begins = {"--from": listed, "--pin": pin_s, "--all-nodes": several, "--detach": detach}
        reject(begins, "is only for a new job")
        _of_jobs(session, attached, cancelled, as_json=as_json)
        return
    paths = _paths(listed, null=null)
    try:
        with show_progress(enabled=False if detach else None) as progress:
            status = warm_data(
                spec,
                paths,
                pin_s=pin_s or 0,
                all_nodes=all_nodes,
                skip_missing=skip_missing,
                nodes=names,
                wait=not detach,
                check=False,
                progress=progress,
                warn=warn,
                session=session,
            )
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("the job was cancelled; what was fetched stays: repeat the command")
        raise
    if detach:
        _write(status, as_json=as_json) if as_json else write_line(status.id)
        return
    _end(session, status, as_json=as_json)


def _paths(listed: str | None, *, null: bool) -> list[bytes] | None:
    if listed is None:
        if null:
            raise click.UsageError("--null needs --from")
        return None
    if listed == "-":
        data = sys.stdin.buffer.read()
    else:
        try:
            data = Path(listed).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"--from: {listed} does not exist") from error
    return [path for path in data.split(b"\0" if null else b"\n") if path.strip()]


def _of_jobs(
    session: Session, attached: str | None, cancelled: str | None, *, as_json: bool
) -> None:
    if attached is not None:
        with show_progress() as progress:
            status = warm_data.attach(
                attached, check=False, progress=progress, warn=warn, session=session
            )
        _end(session, status, as_json=as_json)
    elif cancelled is not None:
        _write(warm_data.cancel(cancelled, session=session), as_json=as_json)
    else:
        for status in warm_data.jobs(session=session):
            _write(status, as_json=as_json)


def _end(session: Session, status: WarmStatus, *, as_json: bool) -> None:
    _write(status, as_json=as_json)
    for node in status.nodes:
        if node.state == "skipped":
            warn(f"{node.address} was skipped: {node.error}")
    if status.state == "done":
        return
    session.exit_code = exit_codes.FAILURE
    for error in status.errors:
        click.echo(f"lodefs: error: {_error_text(error)}", err=True)
        if session.exit_code == exit_codes.FAILURE:
            session.exit_code = _code_of(error)
    if status.errors_total > len(status.errors):
        more = text.count(status.errors_total - len(status.errors), "more error")
        click.echo(f"lodefs: error: {more}", err=True)


def _error_text(error: WarmError) -> str:
    path = f"{text.escaped(decoded(error.path))}: " if error.path else ""
    return path + text.escaped(error.message)


def _code_of(error: WarmError) -> int:
    kind = getattr(errors, error.error, LodefsError)
    return next(
        (code for base, code in exit_codes.CODES if issubclass(kind, base)), exit_codes.FAILURE
    )


def _write(status: WarmStatus, *, as_json: bool) -> None:
    if as_json:
        write_json(msgspec.to_builtins(status))
    else:
        write_line(line_of(status))
        for node in status.nodes:
            why = f": {text.escaped(node.error)}" if node.error else ""
            size = text.size(node.bytes_done)
            write_line(f"  {node.address or 'this node'}  {node.state}  {size}{why}")


def line_of(status: WarmStatus) -> str:
    """A job for people, in one line."""
    what = text.escaped(f"{status.repo}@{status.commit[:12]}")
    files = text.count(status.files_done, "file")
    amount = f"{files}, {text.size(status.bytes_done)}, {text.size(status.fetched_bytes)} of it new"
    if status.state == "done":
        rate = f"{status.elapsed_s:.1f} s, {text.size(round(status.bytes_per_s))}/s"
        pin = f"; pinned until {text.time(status.pinned_until_s)}" if status.pinned_until_s else ""
        return f"warmed {what}: {amount}; {rate}{pin}"
    return f"{status.id}  {status.state}  {what}: {amount}"
