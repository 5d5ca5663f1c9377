"""``lodefs doctor``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import LodefsError
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.doctor.check import Finding, State
    from lodefs.proxy.config import Config

NAME_CHARS = 18
_INDENT = " " * (len("unchecked") + 1)


@cli.command("lodefs doctor", "lodefs doctor --json | jq 'select(.mend)'", store=True, proxy=True)
def doctor(session: Session, as_json: bool = cli.JSON) -> None:
    """Look for what is wrong on this node, and say how to fix it.

    It checks the settings, the store (it writes and removes a small object), the kernel and FUSE
    (it makes a trial mount), the cache's disk (it writes and removes 32 MiB), limits, the proxy,
    mounts, other nodes, ports, tokens and certificates. This takes some seconds, 30 at most. As an
    ordinary user it names what it could not check. The exit code is 1 if anything does not work.
    """
    from lodefs.commands.version import number
    from lodefs.doctor.check import State
    from lodefs.doctor.examination import examine
    from lodefs.doctor.subject import subject_of

    config, mistakes = _settings(session)
    subject = subject_of(session, version=number(), config=config, mistakes=mistakes)
    states = Counter[State]()
    for finding in examine(subject):
        states[finding.state] += 1
        if as_json:
            cli.write_json(as_object(finding))
        else:
            for line in lines(finding):
                cli.write_line(line)
    if not as_json:
        cli.write_line(summary(states))
    if states[State.FAULT]:
        session.exit_code = exit_codes.FAILURE


def _settings(session: Session) -> tuple[Config | None, tuple[str, ...]]:
    """Returns the settings of this node's proxy (None without a store), and what is wrong with
    them."""
    from lodefs.commands.serve import settings
    from lodefs.proxy.config import Config

    try:
        if not session.has_store:
            return None, ()
        return Config.from_mapping(settings(session, {})), ()
    except LodefsError as error:
        return None, (str(error),)


def lines(finding: Finding) -> list[str]:
    """Returns a finding for people: what was seen, and below it how to fix it."""
    first = f"{finding.state:<9} {finding.check:<{NAME_CHARS}} {text.escaped(finding.saw)}"
    mend = [f"{_INDENT}{'':<{NAME_CHARS}} -> {text.escaped(finding.mend)}"] if finding.mend else []
    return [first, *mend]


def as_object(finding: Finding) -> dict[str, object]:
    """Returns a finding as JSON, for scripts."""
    return {
        "check": finding.check,
        "state": str(finding.state),
        "saw": finding.saw,
        "mend": finding.mend or None,
    }


def summary(states: Counter[State]) -> str:
    """Returns the number of findings of each state, in one line."""
    from lodefs.doctor.check import State

    faults, warnings = (text.count(states[one], one) for one in (State.FAULT, State.WARNING))
    return f"{faults}, {warnings}, {states[State.OK]:,} ok, {states[State.UNCHECKED]:,} unchecked"
