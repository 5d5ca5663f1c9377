"""Checks and their findings. All checks run in parallel, each with a time limit.

A check may hang (a dead NFS server, a kernel that does not answer): its thread is then abandoned,
and the process ends without it.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from threading import Thread
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError

TIMEOUT_S = 10.0


class State(StrEnum):
    """The state of what was checked."""

    OK = "ok"
    WARNING = "warning"  # it works, but worse than it could, or not for long
    FAULT = "fault"  # something does not work
    UNCHECKED = "unchecked"  # this user, or this machine, cannot tell


class Finding(NamedTuple):
    """The finding of a check. ``mend``: how to fix it; "" if there is nothing to fix."""

    check: str
    state: State
    saw: str
    mend: str = ""


class Check(NamedTuple):
    """A name, a function that checks, a time limit, and the likely cause if the limit is
    reached."""

    name: str
    look: Callable[[], Sequence[Finding]]
    if_late: str
    timeout_s: float = TIMEOUT_S


def ok(check: str, saw: str) -> Finding:
    return Finding(check, State.OK, saw)


def warning(check: str, saw: str, mend: str) -> Finding:
    return Finding(check, State.WARNING, saw, mend)


def fault(check: str, saw: str, mend: str) -> Finding:
    return Finding(check, State.FAULT, saw, mend)


def unchecked(check: str, saw: str, mend: str = "") -> Finding:
    """Returns the finding that something could not be checked; ``mend`` says how it can be."""
    return Finding(check, State.UNCHECKED, saw, mend)


def run(
    checks: Sequence[Check], *, clock_s: Callable[[], float] = time.monotonic
) -> Iterator[Finding]:
    """Yields the findings of all checks, in their order, each as soon as all earlier ones are
    known."""
    begin_s = clock_s()
    results = [_start(check) for check in checks]
    for check, found in zip(checks, results, strict=True):
        left_s = max(0.0, begin_s + check.timeout_s - clock_s())
        try:
            yield from found.get(timeout=left_s)
        except queue.Empty:
            saw = f"no answer within {check.timeout_s:g} s"
            yield fault(check.name, saw, check.if_late)


def _start(check: Check) -> queue.SimpleQueue[Sequence[Finding]]:
    found: queue.SimpleQueue[Sequence[Finding]] = queue.SimpleQueue()

    def look() -> None:
        found.put(_guarded(check))

    Thread(target=look, name=f"check-{check.name}", daemon=True).start()
    return found


def _guarded(check: Check) -> Sequence[Finding]:
    """Returns the findings of a check. An error that it did not expect is a finding, too."""
    try:
        return check.look()
    except PermissionError as error:
        return [unchecked(check.name, f"this user has no permission:  {error}", "run it as root")]
    except (LodefsError, OSError) as error:
        return [fault(check.name, str(error), check.if_late)]
    except Exception as error:  # noqa: BLE001 - the other checks still count
        saw = f"{type(error).__name__}: {error} (a fault of lodefs)"
        return [unchecked(check.name, saw, "report it to the developers of lodefs")]
