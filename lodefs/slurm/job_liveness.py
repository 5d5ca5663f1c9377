"""What Slurm says of its jobs: by ``scontrol``, and by their steps on this node."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import NotFound, Unavailable

SCONTROL_TIMEOUT_S = 10.0
_AT_WORK = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING"}
)
_PROGRAM = "slurmstepd"
_STEP = re.compile(rb"slurmstepd: \[(\d+)[.\]]")
_UID = re.compile(rb"^Uid:\t(\d+)\t", re.MULTILINE)
_STATE = re.compile(r"\bJobState=(\w+)")


Scontrol = Callable[[Sequence[str]], str]


def scontrol(environ: Mapping[str, str]) -> Scontrol:
    """A way to call it. It raises: NotFound, Unavailable."""

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
        with suppress(OSError):  # it has ended
            step = _STEP.match(_title(proc / name))
            if step:
                found.add(int(step[1]))
    return found


def _title(process: Path) -> bytes:
    """What a process calls itself; b"" where it is not root's, or not Slurm's: anybody can have any
    title, a setuid program too, and the kernel reads it from memory that a user's file system may
    never give."""
    uid = _UID.search((process / "status").read_bytes())
    program = os.path.basename(os.readlink(process / "exe")).removesuffix(" (deleted)")
    is_roots = uid is not None and int(uid[1]) == 0 and program == _PROGRAM
    return (process / "cmdline").read_bytes() if is_roots else b""


def ask_controller(call: Scontrol) -> Callable[[int], bool]:
    """A question that ``scontrol`` answers: is the job at work? Raises: Unavailable."""

    def is_at_work(job: int) -> bool:
        try:
            shown = call(["--oneliner", "show", "job", str(job)])
        except NotFound:
            return False
        return any(state in _AT_WORK for state in _STATE.findall(shown))

    return is_at_work
