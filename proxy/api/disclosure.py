"""What a reader who may not see all of the store is told: nothing of the store itself.

An error's message may name where the store is, as S3 and the file system give it. Whoever is
limited, by a token, by a key for S3 or by rules of access, is told of such an error by its kind.
What a repository may be called, and whether there is one, no message of this process says.
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
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.protocol.cache_control import WarmStatus
from lodefs.chunkstore.protocol.wire import Failure, error_of

PLACES = ("store", "cache", "tokens")  # figures in /status that say where something lies
_SPOKEN = (InvalidInput, NotFound, Purged)  # of what was asked for, unless they name a place
_DAMAGED = "what is stored is damaged, and no good copy of it was found"
_TEXTS: tuple[tuple[type[LodefsError], str], ...] = (
    (NotFound, "there is no such thing"),
    (InvalidInput, "the request cannot be answered as it is"),
    (Purged, "these bytes were removed for good"),
    (Unavailable, "the store does not answer, or this node has too much to do: try again"),
    (DeadlineExceeded, "the answer took longer than it may"),
    (Denied, "the store refuses this node"),
    (Corrupt, _DAMAGED),
    (UnknownFormat, _DAMAGED),
)
_OTHER = "an error inside the proxy"


def places_of(status: Mapping[str, object]) -> list[str]:
    """The texts that say where a node's store and cache are, from its figures."""
    found = [place for name in PLACES if isinstance(place := status.get(name), str) and place]
    for url in map(urlsplit, tuple(found)):
        if url.scheme == "s3":
            found += [f"bucket {url.netloc}", f"/{url.netloc}/", f"//{url.netloc}"]
        elif url.scheme and len(url.path) > 1:
            found.append(url.path)
    return found


def redacted(error: LodefsError, places: Sequence[str]) -> LodefsError:
    """The error as a limited reader is told it; the same if nothing has to be kept back."""
    if isinstance(error, _SPOKEN) and not names_place(str(error), places):
        return error
    kind, text = next((one for one in _TEXTS if isinstance(error, one[0])), (LodefsError, _OTHER))
    made = kind(text)
    if isinstance(made, Unavailable) and isinstance(error, Unavailable):
        made.retry_after_s, made.lasting_s = error.retry_after_s, error.lasting_s
    return made


def redacted_job(job: WarmStatus, places: Sequence[str]) -> WarmStatus:
    """A warm job as a limited reader is shown it."""
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
    """Figures of a node, or of its server, without what says where something lies."""
    return {name: value for name, value in figures.items() if name not in PLACES}
