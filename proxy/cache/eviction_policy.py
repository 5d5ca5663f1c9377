"""What a node's cache evicts first: the uses of its files that it is told of."""

from __future__ import annotations

from enum import Enum, auto


class Use(Enum):
    """Why a file of the cache is touched."""

    WRITTEN = auto()  # chunks were added
    ASKED = auto()  # a reader waits for bytes that were just added, and gets them from memory
    READ = auto()  # the proxy read its bytes
    REPORTED = auto()  # a mount read its bytes
    NEIGHBOUR = auto()  # somebody reads what lies beside its chunks in a pack
    WARMED = auto()  # a warm job found it complete
