"""Commits or keeps the changes of jobs, one after the other, and reports what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.slurm.job_liveness import Scontrol, ask_end, output_in
from lodefs.slurm.job_output import append_lines
from lodefs.slurm.node_changes import NodeChanges, Settled, told

POLL_S = 1.0

Tell = Callable[[str], None]


def settle(
    changes: NodeChanges, call: Scontrol, job: int | None, wait_s: float, tell: Tell
) -> bool:
    """Settles all changes of a job, or of all jobs, whose time comes within ``wait_s``. Returns
    whether nothing failed. ``tell`` is called with the outcomes, which also go to each job's output
    (standard error), if its user may write there. Raises: UnknownFormat."""
    deadline_s = time.monotonic() + wait_s
    while True:
        settled, is_left = _round(changes, call, job)
        is_over = not is_left or time.monotonic() + POLL_S > deadline_s
        _tell(
            settled if is_over else [one for one in settled if not one.is_tried_again], call, tell
        )
        if is_over:
            return not any(one.error for one in settled)
        time.sleep(POLL_S)


def _round(changes: NodeChanges, call: Scontrol, job: int | None) -> tuple[list[Settled], bool]:
    """The changes that were settled, and whether another round is needed."""
    settled, is_left = list[Settled](), False
    end_of = ask_end(call)
    for change in changes.changes(job):
        try:
            found = changes.settle(change, end_of)
        except Unavailable:  # the controller does not answer
            found = None
        if found is not None:
            settled.append(found)
        is_left = is_left or found is None or found.is_tried_again
    return settled, is_left


def _tell(settled: Sequence[Settled], call: Scontrol, tell: Tell) -> None:
    for one in settled:
        job, line = one.change.job, told(one).replace("\n", " ")
        tell(f"job {job}: {line}")
        with suppress(LodefsError):  # Slurm has forgotten the job, or it has no output of its own
            shown = call(["show", "job", str(job)])
            append_lines(one.change.uid, output_in(shown, job), [f"lodefs: {line}"])
