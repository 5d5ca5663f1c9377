"""Labels of a node, by what is pinned in its cache: ``pinned.lodefs.dev/REPO: COMMIT``. Pure.

Keys and values are of Kubernetes' syntax (labels and selectors): a name of at most 63 characters,
letters and digits at both ends. ``/`` of a repository becomes ``.``; what does not fit then gets a
digest at its end. Of several commits the one that is pinned for longest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from blake3 import blake3

from lodefs.chunkstore.nodeapi.cache_control import PinView

PREFIX = "pinned.lodefs.dev/"
COMMIT_DIGITS = 12
_NAME_CHARS_MAX = 63
_DIGEST_DIGITS = 8
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")


def label_key(repo: str) -> str:
    """The label of a repository."""
    name = repo.replace("/", ".")
    if len(name) > _NAME_CHARS_MAX or not _NAME.match(name):
        digest = blake3(repo.encode()).hexdigest(length=_DIGEST_DIGITS // 2)
        kept = name.strip("._-")[: _NAME_CHARS_MAX - _DIGEST_DIGITS - 1]
        name = f"{kept}-{digest}" if kept else digest
    return PREFIX + name


def labels(pins: Iterable[PinView]) -> dict[str, str]:
    """The labels that a node with these pins has. Pins whose data has not come in full do not
    count."""
    found: dict[str, str] = {}
    for pin in sorted(pins, key=lambda pin: (pin.pinned_until_s, pin.commit)):
        if pin.is_complete:
            found[label_key(pin.repo)] = pin.commit[:COMMIT_DIGITS]
    return found


def changes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """What to patch (RFC 7396) so that a node's own labels become ``wanted``; others stay."""
    patch: dict[str, str | None] = {
        key: None for key in present if key.startswith(PREFIX) and key not in wanted
    }
    patch.update({key: value for key, value in wanted.items() if present.get(key) != value})
    return patch
