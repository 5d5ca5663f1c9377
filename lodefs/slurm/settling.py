"""Commits or keeps the changes of jobs, one after the other, and reports what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.cli.text import escaped
from lodefs.slurm.job_liveness import Scontrol, ask_end, output_in
from lodefs.slurm.job_report import log
from lodefs.slurm.node_changes import NodeChanges, Settled, Tell, told
from lodefs.slurm.user_process import append_lines

POLL_S, PAUSE_S_MAX = 1.0, 60.0

Say = Callable[[str], None]


def settle(changes: NodeChanges, call: Scontrol, job: int | None, wait_s: float, say: Say) -> bool:
    """Settles all changes of a job, or of all jobs, whose time comes within ``wait_s``; what fails
    is tried again after longer and longer pauses. Returns whether nothing failed. ``say`` is called
    with the outcomes. What is new of them also goes to the system's log and to each job's output
    (standard error), if its user may write there. Raises: UnknownFormat, NoSpace, Denied."""
    deadline_s, pause_s = time.monotonic() + wait_s, POLL_S
    while True:
        is_last = time.monotonic() + pause_s > deadline_s
        settled, is_left = _round(changes, call, job, partial(_tell, call, say, is_last))
        has_failed = any(one.error for one in settled)
        if is_last or not is_left:
            return not has_failed
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX) if has_failed else POLL_S


def _round(
    changes: NodeChanges, call: Scontrol, job: int | None, tell: Tell
) -> tuple[list[Settled], bool]:
    """Returns the changes that were settled, and whether another round is needed."""
    settled, is_left = list[Settled](), False
    end_of = ask_end(call)
    for change in changes.changes(job):
        try:
            found = changes.settle(change, end_of, tell)
        except Unavailable:  # the controller does not answer
            found = None
        if found is not None:
            settled.append(found)
        is_left = is_left or found is None or found.is_tried_again
    return settled, is_left


def _tell(call: Scontrol, say: Say, is_last: bool, one: Settled) -> str:
    """Tells an outcome, unless another round may change it."""
    if one.is_tried_again and not is_last:
        return ""
    job, line = one.change.job, escaped(told(one))
    say(f"job {job}: {line}")
    if line != one.change.told:
        log(f"job {job}: {line}")
        with suppress(LodefsError):  # Slurm has forgotten the job, or it has no output of its own
            shown = call(["show", "job", str(job)])
            append_lines(one.change.uid, output_in(shown, job), [f"lodefs: {line}"])
    return line
