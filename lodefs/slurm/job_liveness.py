"""The state of Slurm's jobs, from ``scontrol`` and from their steps on this node."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

from lodefs.chunkstore.errors import NotFound, Unavailable

SCONTROL_TIMEOUT_S = 10.0
_AT_WORK = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING"}
)
_SUCCEEDED = "COMPLETED"
_PROGRAM = "slurmstepd"
_STEP = re.compile(rb"slurmstepd: \[(\d+)[.\]]")
_UID = re.compile(rb"^Uid:\t(\d+)\t", re.MULTILINE)
_STATE = re.compile(r"\bJobState=(\w+)")
_EACH = re.compile(r"^(?=JobId=)", re.MULTILINE)
_STATE_LINE = re.compile(r"^ +JobState=(\w+)", re.MULTILINE)
_OUTPUT_LINE = re.compile(r"^ +StdErr=(/.*)$", re.MULTILINE)
_RESTARTS_LINE = re.compile(r"^ +Requeue=\d+ Restarts=(\d+)", re.MULTILINE)


Scontrol = Callable[[Sequence[str]], str]


def scontrol(environ: Mapping[str, str]) -> Scontrol:
    """Returns a function that calls it. The function raises: NotFound, Unavailable."""

    def call(words: Sequence[str]) -> str:
        try:
            done = subprocess.run(["scontrol", *words], capture_output=True, text=True, check=False,
                                  timeout=SCONTROL_TIMEOUT_S, env=dict(environ))  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"scontrol: {error}") from error
        if done.returncode:
            kind = NotFound if "Invalid job id" in done.stderr else Unavailable
            raise kind(f"scontrol {' '.join(words[:3])}: {done.stderr.strip()}")
        return done.stdout

    return call


def jobs_with_steps(proc: Path = Path("/proc")) -> set[int]:
    """Jobs that have a slurmstepd of root's here."""
    found = set()
    for name in filter(str.isdecimal, os.listdir(proc)):
        with suppress(OSError):  # the process has ended
            step = _STEP.match(_title(proc / name))
            if step:
                found.add(int(step[1]))
    return found


def _title(process: Path) -> bytes:
    """Returns the title of a process; b"" if it is not root's, or not Slurm's. Any process can have
    any title, a setuid program too, and the kernel reads it from memory that a user's file system
    may never deliver."""
    uid = _UID.search((process / "status").read_bytes())
    program = os.path.basename(os.readlink(process / "exe")).removesuffix(" (deleted)")
    is_roots = uid is not None and int(uid[1]) == 0 and program == _PROGRAM
    return (process / "cmdline").read_bytes() if is_roots else b""


class JobEnd(Enum):
    """The end of a run of a job. Slurm forgets jobs some minutes later (MinJobAge)."""

    AT_WORK = "at work"
    SUCCEEDED = "COMPLETED"
    FAILED = "did not end well"
    FORGOTTEN = "not known to Slurm any more"


def ask_end(call: Scontrol) -> Callable[[int, int], JobEnd]:
    """Returns a question for ``scontrol``: how did the run of a job with so many restarts end?
    Raises: Unavailable."""

    def end_of(job: int, restarts: int) -> JobEnd:
        try:
            return end_in(call(["show", "job", str(job)]), job, restarts)
        except NotFound:
            return JobEnd.FORGOTTEN

    return end_of


def end_in(shown: str, job: int, restarts: int) -> JobEnd:
    """Returns the end of a run, from ``scontrol show job``. A run that was followed by another one
    did not end well: its job was requeued. Pure."""
    found = _of_job(shown, job)
    state, count = _STATE_LINE.search(found), _RESTARTS_LINE.search(found)
    if state is None or count is None:
        return JobEnd.FORGOTTEN
    if int(count[1]) != restarts:
        return JobEnd.FAILED
    if state[1] in _AT_WORK:
        return JobEnd.AT_WORK
    return JobEnd.SUCCEEDED if state[1] == _SUCCEEDED else JobEnd.FAILED


def output_in(shown: str, job: int) -> str:
    """Returns the path of a job's standard error, from ``scontrol show job``, on which its user may
    have had an influence. Raises: NotFound without a path. Pure."""
    found = _OUTPUT_LINE.search(_of_job(shown, job))
    if found is None:
        raise NotFound(f"job {job} has no output of its own")
    return found[1]


def _of_job(shown: str, job: int) -> str:
    return next((one for one in _EACH.split(shown) if one.startswith(f"JobId={job} ")), "")


def ask_controller(call: Scontrol) -> Callable[[int], bool]:
    """Returns a question for ``scontrol``: is the job at work? Raises: Unavailable."""

    def is_at_work(job: int) -> bool:
        try:
            shown = call(["--oneliner", "show", "job", str(job)])
        except NotFound:
            return False
        return any(state in _AT_WORK for state in _STATE.findall(shown))

    return is_at_work
