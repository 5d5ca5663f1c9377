"""Phases: how long a request to a peer may wait for what."""

from __future__ import annotations

import pytest

from lodefs.proxy.peers.client.phases import LIMIT_S, Phase, PhaseTimer


@pytest.mark.parametrize("phase", list(LIMIT_S))
def test_a_phase_has_its_own_time(phase: Phase) -> None:
    """A request is in time until the limit of its phase, whatever went before, and then late."""
    clock = PhaseTimer(Phase.ANSWER, 0.0)
    assert clock.late(1000.0) == ""
    clock.see(phase, 1000.0)
    clock.see(phase, 1000.0 + LIMIT_S[phase] / 2)
    assert clock.until_s == 1000.0 + LIMIT_S[phase]
    assert clock.late(clock.until_s - 0.01) == ""
    assert phase in clock.late(clock.until_s)


@pytest.mark.parametrize("phase", [Phase.ANSWER, Phase.BODY])
def test_what_depends_on_the_question_has_no_limit_here(phase: Phase) -> None:
    """The plan knows how long the answer may take."""
    clock = PhaseTimer(Phase.CONNECT, 0.0)
    clock.see(phase, 0.1)
    assert clock.late(1e9) == ""
