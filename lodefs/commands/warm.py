"""``lodefs warm``, ``pins``, ``evict``: what the node's cache has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from lodefs.api.warming import warm as warm_data
from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.protocol.cache_control import (
    EVICT,
    PINS,
    EvictRequest,
    EvictView,
    PinsView,
    PinView,
    WarmError,
    WarmStatus,
    decoded,
    encoded,
)
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import DURATION
from lodefs.cli.progress_bars import show_progress
from lodefs.proxies.own_proxy import running_proxy
from lodefs.settings.session import Session


@cli.command(
    "lodefs warm vision/flickr30k@v1.0                       # all of it",
    "lodefs warm vision/flickr30k@v1.0:images --pin 7d       # a directory, kept for a week",
    "lodefs warm 'vision/flickr30k:images/**/*.jpg'          # the files that match a pattern",
    "head -1000 order.txt | lodefs warm vision/flickr30k --from -",
    "lodefs warm vision/flickr30k@v1.0 --all-nodes --detach  # on each node of the cluster",
    store=True,
    proxy=True,
)
def warm(
    session: Session,
    spec: Spec | None = cli.argument("REPO[@REV][:PATH]"),
    listed: str | None = cli.option(
        "Read paths below PATH from FILE, one a line; - is stdin.", "--from", metavar="FILE"
    ),
    null: bool = cli.option("With --from: paths end with NUL, not newline.", "-0", "--null"),
    pin_s: int | None = cli.option(
        "Protect it from eviction for so long (12h, 7d, 2w).", "--pin", type=DURATION
    ),
    all_nodes: bool = cli.option("Warm all nodes of the cluster, not only this one."),
    nodes: str | None = cli.option("Warm exactly these nodes of the cluster.", metavar="NODE,..."),
    skip_missing: bool = cli.option("With --all-nodes: go on without nodes that do not answer."),
    detach: bool = cli.option("Do not wait; print the job's id."),
    attached: str | None = cli.option(
        "Wait for a job that was detached.", "--attach", metavar="ID"
    ),
    cancelled: str | None = cli.option("End a job.", "--cancel", metavar="ID"),
    of_jobs: bool = cli.option("List the jobs of the proxy.", "--jobs"),
    as_json: bool = cli.JSON,
) -> None:
    """Bring a revision, or PATH in it, into the cache of the node's proxy.

    PATH may be a pattern: * and ? stand for bytes of one name, [ab] for one of a set, ** for any
    number of directories. Cached data is not fetched again, so repeat an interrupted command.
    Ctrl-C ends the job; with --detach or --attach it goes on.
    """
    if sum([spec is not None, attached is not None, cancelled is not None, of_jobs]) != 1:
        raise click.UsageError("give REPO[@REV][:PATH], or a job, or --jobs")
    cli.reject({"--null": null and listed is None}, "does nothing without --from")
    several = all_nodes or nodes is not None
    cli.reject({"--skip-missing": skip_missing and not several}, "does nothing without --all-nodes")
    cli.reject({"--nodes": nodes is not None and all_nodes}, "names other nodes than --all-nodes")
    names = [name.strip() for name in (nodes or "").split(",") if name.strip()]
    if nodes is not None and not names:
        raise click.UsageError("--nodes names no node")
    if spec is None:
        begins = {"--from": listed, "--pin": pin_s, "--all-nodes": several, "--detach": detach}
        cli.reject(begins, "is only for a new job")
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
                warn=cli.warn,
                session=session,
            )
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("the job was cancelled; fetched data stays: repeat the command")
        raise
    if detach:
        _write(status, as_json=as_json) if as_json else cli.write_line(status.id)
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
                attached, check=False, progress=progress, warn=cli.warn, session=session
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
            cli.warn(f"{node.address} was skipped: {node.error}")
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
        cli.write_json(msgspec.to_builtins(status))
    else:
        cli.write_line(line_of(status))
        for node in status.nodes:
            why = f": {text.escaped(node.error)}" if node.error else ""
            size = text.size(node.bytes_done)
            cli.write_line(f"  {node.address or 'this node'}  {node.state}  {size}{why}")


def line_of(status: WarmStatus) -> str:
    """Returns a job for people, in one line."""
    what = text.escaped(f"{status.repo}@{status.commit[:12]}")
    files = text.count(status.files_done, "file")
    amount = f"{files}, {text.size(status.bytes_done)}, {text.size(status.fetched_bytes)} of it new"
    if status.state == "done":
        rate = f"{status.elapsed_s:.1f} s, {text.size(round(status.bytes_per_s))}/s"
        pin = f"; pinned until {text.time(status.pinned_until_s)}" if status.pinned_until_s else ""
        return f"warmed {what}: {amount}; {rate}{pin}"
    return f"{status.id}  {status.state}  {what}: {amount}"


EVICT_TIMEOUT_S = 3600.0  # a file system may take long to remove a terabyte


@cli.command(
    "lodefs evict vision/flickr30k                     # all its commits, and their pins",
    "lodefs evict vision/flickr30k@v1.0:images --dry-run",
    "lodefs evict vision/flickr30k@v1.0 --pins-only    # the data stays until space is needed",
    "lodefs evict --all",
    store=True,
    proxy=True,
)
def evict(
    session: Session,
    spec: str | None = cli.argument("[REPO[@REV][:PATH]]"),
    everything: bool = cli.option("All pins and all cached data.", "--all"),
    pins_only: bool = cli.option("Remove pins; keep the data."),
    dry_run: bool = cli.option("Only show what would be removed."),
    as_json: bool = cli.JSON,
) -> None:
    """Remove the pins and drop the cached data of a dataset from the node's proxy.

    Without @REV this covers all commits that this node knows. Only whole files of the cache are
    removed, with everything in them; it is fetched again when it is needed. Readers are not
    disturbed.
    """
    if everything == (spec is not None):
        raise click.UsageError("give REPO[@REV][:PATH], or --all")
    request = _request(spec, everything=everything, pins_only=pins_only, dry_run=dry_run)
    calls = ControlClient(running_proxy(session), session.environment.get("LODEFS_TOKEN"))
    view = calls.call(EvictView, "POST", EVICT, request, timeout_s=EVICT_TIMEOUT_S)
    if as_json:
        cli.write_json(msgspec.to_builtins(view))
        return
    for line in lines_of(view, spec or "", pins_only=pins_only):
        cli.write_line(line)


def _request(spec: str | None, *, everything: bool, pins_only: bool, dry_run: bool) -> EvictRequest:
    if spec is None:
        return EvictRequest(everything=everything, pins_only=pins_only, dry_run=dry_run)
    parsed = cli.spec_from(spec)
    has_rev = "@" in spec.partition(":")[0]
    return EvictRequest(
        repo=parsed.repo,
        rev=parsed.rev if has_rev else None,
        path=encoded(parsed.path),
        pins_only=pins_only,
        dry_run=dry_run,
    )


def lines_of(view: EvictView, what: str, *, pins_only: bool) -> list[str]:
    """Returns the result, for people. ``what`` was to be removed; "": everything."""
    removed = "would remove" if view.dry_run else "removed"
    lines = [f"{removed} the pin {pin_line(pin)}" for pin in view.pins]
    if pins_only:
        none = f"no pin is of {text.escaped(what)} alone" if what else "there are no pins"
        return lines or [none]
    if view.cache_files:
        other = view.freed_bytes - view.wanted_bytes
        shared = f", {text.size(other)} of it other data in the same files" if other > 0 else ""
        freed = "would free" if view.dry_run else "freed"
        files = text.count(view.cache_files, "cache file")
        lines.append(f"{freed} {text.size(view.freed_bytes)} in {files}{shared}")
    elif not view.kept_cache_files:
        of = f" of {text.escaped(what)}" if what else ""
        lines.append(f"nothing{of} is in the cache")
    if view.kept_cache_files:
        files = text.count(view.kept_cache_files, "cache file")
        why = "other pins hold them, or somebody reads them" if view.held_by else "they are in use"
        lines.append(f"{files} with {text.size(view.kept_bytes)} of it stay: {why}")
        lines += [f"  held by the pin {pin_line(pin)}" for pin in view.held_by]
    return lines


@cli.command("lodefs pins", store=True, proxy=True)
def pins(session: Session, as_json: bool = cli.JSON) -> None:
    """List the pins in the cache of the node's proxy, sorted by their end."""
    calls = ControlClient(running_proxy(session), session.environment.get("LODEFS_TOKEN"))
    view = calls.call(PinsView, "GET", PINS)
    if as_json:
        cli.write_json(msgspec.to_builtins(view))
        return
    _show(view.pins)
    limit = text.size(view.cache_size_bytes_max)
    cli.write_line(
        f"{text.count(len(view.pins), 'pin')}: {text.size(view.pinned_bytes)} of the {limit} that "
        "the cache may hold"
    )


def _show(found: Sequence[PinView]) -> None:
    for pin in found:
        cli.write_line(pin_line(pin))


def pin_line(pin: PinView) -> str:
    """Returns a pin in one line."""
    what = f":{text.escaped(decoded(pin.what))}" if pin.what else ""
    state = "" if pin.is_complete else ", not complete"
    state += f", for {text.escaped(', '.join(pin.owners))}" if pin.owners else ""
    of = f"{text.escaped(pin.repo)}@{pin.commit[:12]}{what}"
    return (
        f"{pin.id}  {of}  until {text.time(pin.pinned_until_s)}, {text.size(pin.size_bytes)}{state}"
    )
