"""What ``docker volume inspect`` shows of a volume under Status. Pure."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from lodefs.mount.docker.volume import Volume
from lodefs.mount.docker.volume_files import Damaged
from lodefs.mount.docker.volumes import Shown


def status_of(shown: Shown, boot: str) -> dict[str, object]:
    """Names and values for JSON. ``boot``: which start of the machine this is."""
    if isinstance(shown.record, Damaged):
        return {"state": f"damaged: {shown.record.why}"}
    return _of_volume(shown.record, boot) | _of_mount(shown)


@lru_cache(4096)
def time_text(time_s: float) -> str:
    """A Unix time as RFC 3339; the first second where no calendar has it."""
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(int(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return "1970-01-01T00:00:00Z"


def _of_volume(volume: Volume, boot: str) -> dict[str, object]:
    options = volume.options
    status: dict[str, object] = {
        "repo": options.source.repo,
        "asked_for": options.rev,
        "commit": volume.commit,
        "files": volume.files,
        "size_bytes": volume.size_bytes,
        "references": volume.count(boot),
    }
    if options.source.store:
        status["store"] = options.source.store
    if options.source.path:
        status["path"] = options.source.path.decode("utf-8", "backslashreplace")
    if options.follow_s is not None:
        status["follow_s"] = options.follow_s
        status["looked_at"] = time_text(volume.looked_at_s)
        if volume.follow_error:
            status["follow_error"] = volume.follow_error
    if options.pin is not None:
        if volume.pinned_until_s:
            status["pinned_until"] = time_text(volume.pinned_until_s)
        if volume.pin_error:
            status["pin_error"] = volume.pin_error
    return status


def _of_mount(shown: Shown) -> dict[str, object]:
    standing = shown.standing
    if standing is None:
        return {"state": "not mounted"}
    status: dict[str, object] = {"state": "mounted" if standing.alive else "dead"}
    if not isinstance(shown.record, Damaged) and standing.commit != shown.record.commit:
        status["mounted_commit"] = standing.commit
    if shown.traffic is not None:
        status["read"] = msgspec.to_builtins(shown.traffic)
    return status
