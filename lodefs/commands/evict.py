"""``lodefs evict``, ``lodefs pins``."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from lodefs.chunkstore.nodeapi.cache_control import (
    EVICT,
    PINS,
    EvictRequest,
    EvictView,
    PinsView,
    PinView,
    decoded,
    encoded,
)
from lodefs.chunkstore.nodeapi.control_client import ControlClient
from lodefs.cli import text
from lodefs.cli.options import (
    examples,
    json_option,
    session_command,
    spec_from,
    write_json,
    write_line,
)
from lodefs.proxies.own_proxy import running_proxy
from lodefs.settings.session import Session

EVICT_TIMEOUT_S = 3600.0  # a file system may take long to remove a terabyte

EPILOG = examples(
    "lodefs evict vision/flickr30k                     # all its commits, and their pins",
    "lodefs evict vision/flickr30k@v1.0:images --dry-run",
    "lodefs evict vision/flickr30k@v1.0 --pins-only    # the data stays until space is needed",
    "lodefs evict --all",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="[REPO[@REV][:PATH]]", required=False)
@click.option("--all", "everything", is_flag=True, help="All pins and all cached data.")
@click.option("--pins-only", is_flag=True, help="Remove pins; keep the data.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
@session_command(store=True, proxy=True)
def evict(
    session: Session,
    spec: str | None,
    everything: bool,
    pins_only: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the pins and drop the cached data of a dataset from the node's proxy.

    Without @REV: of all commits that this node knows. Only whole files of the cache are removed,
    with everything in them; it is fetched again when it is needed. Readers are not disturbed.
    """
    if everything == (spec is not None):
        raise click.UsageError("give REPO[@REV][:PATH], or --all")
    request = _request(spec, everything=everything, pins_only=pins_only, dry_run=dry_run)
    calls = ControlClient(running_proxy(session), session.environment.get("LODEFS_TOKEN"))
    view = calls.call(EvictView, "POST", EVICT, request, timeout_s=EVICT_TIMEOUT_S)
    if as_json:
        write_json(msgspec.to_builtins(view))
        return
    for line in lines_of(view, spec or "", pins_only=pins_only):
        write_line(line)


def _request(spec: str | None, *, everything: bool, pins_only: bool, dry_run: bool) -> EvictRequest:
    if spec is None:
        return EvictRequest(everything=everything, pins_only=pins_only, dry_run=dry_run)
    parsed = spec_from(spec)
    has_rev = "@" in spec.partition(":")[0]
    return EvictRequest(
        repo=parsed.repo,
        rev=parsed.rev if has_rev else None,
        path=encoded(parsed.path),
        pins_only=pins_only,
        dry_run=dry_run,
    )


def lines_of(view: EvictView, what: str, *, pins_only: bool) -> list[str]:
    """The result, for people. ``what`` was to be removed; "": everything."""
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


@click.command(epilog=examples("lodefs pins"))
@json_option
@session_command(store=True, proxy=True)
def pins(session: Session, as_json: bool) -> None:
    """List the pins in the cache of the node's proxy, sorted by their end."""
    calls = ControlClient(running_proxy(session), session.environment.get("LODEFS_TOKEN"))
    view = calls.call(PinsView, "GET", PINS)
    if as_json:
        write_json(msgspec.to_builtins(view))
        return
    _show(view.pins)
    limit = text.size(view.cache_size_bytes_max)
    write_line(
        f"{text.count(len(view.pins), 'pin')}: {text.size(view.pinned_bytes)} of the {limit} that "
        "the cache may hold"
    )


def _show(found: Sequence[PinView]) -> None:
    for pin in found:
        write_line(pin_line(pin))


def pin_line(pin: PinView) -> str:
    """A pin in one line."""
    what = f":{text.escaped(decoded(pin.what))}" if pin.what else ""
    state = "" if pin.is_complete else ", not complete"
    state += f", for {text.escaped(', '.join(pin.owners))}" if pin.owners else ""
    of = f"{text.escaped(pin.repo)}@{pin.commit[:12]}{what}"
    return (
        f"{pin.id}  {of}  until {text.time(pin.pinned_until_s)}, {text.size(pin.size_bytes)}{state}"
    )
