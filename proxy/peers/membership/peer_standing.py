"""The state between this node and a peer, in words for users and for /status."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum

log = logging.getLogger("lodefs.peers")

WELL = "well"
DOWN = "down"  # probes fail, so it is not asked at all
REFUSED = "refused"  # it is healthy, but this node refuses its requests
REFUSED_S = 180.0  # how long a refusal is shown after the last one


class Fault(StrEnum):
    """The faults of a peer."""

    UNREACHABLE = "unreachable"  # no connection, or a broken one
    LATE = "late"  # too slow, or silent
    FAILING = "failing"  # it answers with errors
    # It does not trust this node, or this node does not trust its certificate
    REFUSING = "refusing"
    WRONG = "wrong"  # wrong bytes, or invalid HTTP


_LOG_TEXTS = {
    Fault.UNREACHABLE: "peer %s cannot be reached: %s",
    Fault.LATE: "peer %s is too slow and is avoided for a time: %s",
    Fault.FAILING: "peer %s answers with errors: %s",
    Fault.REFUSING: "peer %s and this node do not trust each other: %s",
    Fault.WRONG: "peer %s sent wrong bytes and is not asked for a time: %s",
    REFUSED: "requests in the name of peer %s are refused: %s",
}


def log_change(address: str, state: str, reason: str) -> None:
    """Logs one line about a peer whose state has changed."""
    if state == WELL:
        log.info("peer %s is healthy again", address)
    else:
        log.warning(_LOG_TEXTS[state], address, reason)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The state of one peer at one time. Times are seconds before it; None: never."""

    state: str  # a Fault, or one of the constants above
    reason: str  # why it is not healthy; "" if it is
    usable: bool  # whether it is asked for packs now
    latency_s: float
    seen_ago_s: float | None  # since its last answer or request
    received_bytes: int
    sent_bytes: int
    error: str  # the last error, even if the peer is healthy again
    error_ago_s: float | None

    def view(self) -> dict[str, object]:
        return {
            "usable": self.usable,
            "state": self.state,
            "reason": self.reason,
            "latency_s": round(self.latency_s, 6),
            "seen_ago_s": _rounded(self.seen_ago_s),
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "error": self.error,
            "error_ago_s": _rounded(self.error_ago_s),
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
