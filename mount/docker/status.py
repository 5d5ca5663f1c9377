"""The Status that ``docker volume inspect`` shows of a volume. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from lodefs.mount.docker.volume import Volume
from lodefs.mount.docker.volume_files import Damaged
from lodefs.mount.docker.volumes import Shown
from lodefs.mount.docker.writing import mount_ids
from lodefs.mount.service.interface import Holding

STATES = ("mounted", "unmounted", "dead", "damaged")  # as metrics name them


def status_of(shown: Shown) -> dict[str, object]:
    """Returns names and values for JSON."""
    if isinstance(shown.record, Damaged):
        return {"state": f"damaged: {shown.record.why}"}
    state = state_of(shown)
    status = _of_volume(shown.record, shown.held)
    if shown.failure:
        status["commit_error"] = shown.failure
    status["state"] = "not mounted" if state == "unmounted" else state
    if shown.held.traffic is not None:
        status["read"] = msgspec.to_builtins(shown.held.traffic)
    return status


def state_of(shown: Shown) -> str:
    """One of STATES."""
    if isinstance(shown.record, Damaged):
        return "damaged"
    if not shown.held.place:
        return "unmounted"
    return "dead" if shown.held.is_dead else "mounted"


@lru_cache(4096)
def time_text(time_s: float) -> str:
    """Returns a Unix time as RFC 3339; the first second if no calendar has it."""
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return "1970-01-01T00:00:00Z"


def by_state(shown: Iterable[Shown]) -> dict[str, int]:
    """Returns the number of volumes in each state."""
    return {**dict.fromkeys(STATES, 0), **Counter(map(state_of, shown))}


def _of_volume(volume: Volume, held: Holding) -> dict[str, object]:
    options = volume.options
    status: dict[str, object] = {
        "repo": options.source.repo,
        "asked_for": options.rev,
        "commit": volume.commit,
        "files": volume.files,
        "size_bytes": volume.size_bytes,
        "references": held.references,
    }
    if options.source.store:
        status["store"] = options.source.store
    if options.source.path:
        status["path"] = options.source.path.decode("utf-8", "backslashreplace")
    if options.commits is not msgspec.UNSET:
        status["commits"] = options.commits
        status["mount_ids"] = list(mount_ids(volume))
    if options.follow_s is not None:
        status["follow_s"] = options.follow_s
        status["looked_at"] = time_text(volume.looked_at_s)
        if volume.follow_error:
            status["follow_error"] = volume.follow_error
    if options.pin is not None:
        if held.pinned_until_s:
            status["pinned_until"] = time_text(held.pinned_until_s)
        if held.pin_problem:
            status["pin_error"] = held.pin_problem
    return status
