"""The phases of a request to a peer, and how long each may take. Pure.

The plan (``request_plan.py``) decides how long a peer may take to begin its answer, and how fast
the body must arrive, since that depends on the request. The other phases take healthy peers
milliseconds.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The event that a request waits for."""

    CONNECT = "a connection"
    TLS = "the end of the TLS handshake"
    SEND = "the peer to take the request"
    ANSWER = "the first byte of the answer"
    HEAD = "the end of the answer's head"
    BODY = "the body"


LIMIT_S = {Phase.CONNECT: 0.75, Phase.TLS: 0.75, Phase.SEND: 0.5, Phase.HEAD: 0.5}


class PhaseTimer:
    """The time that one request has spent in its phase. The caller supplies the time."""

    def __init__(self, phase: Phase, now_s: float) -> None:
        self._phase = phase
        self._since_s = now_s

    def see(self, phase: Phase, now_s: float) -> None:
        """Notes the present phase of the request."""
        if phase != self._phase:
            self._phase, self._since_s = phase, now_s

    @property
    def until_s(self) -> float:
        """Returns when the phase must end."""
        return self._since_s + LIMIT_S.get(self._phase, float("inf"))

    def late(self, now_s: float) -> str:
        """Returns the overdue event; "" if the phase is in time."""
        if now_s < self.until_s:
            return ""
        return f"waited {LIMIT_S[self._phase]:g} s for {self._phase}"
