"""Hides the store itself from readers who may not see all of it.

An error's message may name the location of the store, as S3 and the file system report it. Readers
who are limited by a token, an S3 key or access rules get a general text for such an error. No
message of this process says what repositories there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from msgspec.structs import replace

from lodefs.chunkstore.errors import (
    Corrupt,
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    Purged,
    SourceLost,
    SourceUnknown,
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.objects.schemes import SETTINGS
from lodefs.chunkstore.protocol.cache_control import WarmStatus
from lodefs.chunkstore.protocol.wire import Failure, error_of

PLACES = ("store", "cache", "tokens")  # fields of /status with the location of something
_SPOKEN = (InvalidInput, NotFound, Purged)  # errors about the request, unless they name a location
_DAMAGED = "the stored data is damaged, and no good copy of it was found"
_TEXTS: tuple[tuple[type[LodefsError], str], ...] = (
    (NotFound, "there is nothing with that name"),
    (InvalidInput, "the request is invalid"),
    (Purged, "these bytes were purged for good"),
    (Unavailable, "the store does not answer, or this node is overloaded: try again"),
    (DeadlineExceeded, "the answer took too long"),
    (SourceUnknown, "this node's settings do not name the bucket in which these bytes lie"),
    (Denied, "the store refuses this node"),
    (SourceLost, "an object of a bucket in which these bytes lie was changed, or is gone"),
    (Corrupt, _DAMAGED),
    (UnknownFormat, _DAMAGED),
)
_OTHER = "an error inside the proxy"


def places_of(status: Mapping[str, object]) -> list[str]:
    """Returns the texts in a node's status that say where its store and cache are."""
    found = [place for name in PLACES if isinstance(place := status.get(name), str) and place]
    for url in map(urlsplit, tuple(found)):
        if url.scheme in SETTINGS:
            found += [f"bucket {url.netloc}", f"/{url.netloc}/", f"//{url.netloc}"]
        elif url.scheme and len(url.path) > 1:
            found.append(url.path)
    return found


def redacted(error: LodefsError, places: Sequence[str]) -> LodefsError:
    """Returns the error for a limited reader; the same error if nothing must be hidden."""
    if isinstance(error, _SPOKEN) and not names_place(str(error), places):
        return error
    kind, text = next((one for one in _TEXTS if isinstance(error, one[0])), (LodefsError, _OTHER))
    made = kind(text)
    if isinstance(made, Unavailable) and isinstance(error, Unavailable):
        made.retry_after_s, made.lasting_s = error.retry_after_s, error.lasting_s
    return made


def redacted_job(job: WarmStatus, places: Sequence[str]) -> WarmStatus:
    """Returns a warm job for a limited reader."""
    failures = [Failure(one.error, one.message) for one in job.errors]
    messages = [str(redacted(error_of(one), places)) for one in failures]
    pairs = zip(job.errors, messages, strict=True)
    return replace(
        job,
        errors=[replace(one, message=message) for one, message in pairs],
        nodes=[replace(one, error="failed" if one.error else "") for one in job.nodes],
    )


def names_place(text: str, places: Sequence[str]) -> bool:
    """Whether a text says where the store or the cache is."""
    return any(place in text for place in places)


def without_places(figures: Mapping[str, object]) -> dict[str, object]:
    """Returns the fields of a node's or server's status without locations."""
    return {name: value for name, value in figures.items() if name not in PLACES}
