"""Whether a job of Slurm is still at work on this node."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from lodefs.chunkstore.errors import Unavailable

SCONTROL_TIMEOUT_S = 10.0
_AT_WORK = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING"}
)
_STEP = re.compile(rb"slurmstepd: \[(\d+)[.\]]")
_STATE = re.compile(r"\bJobState=(\w+)")


def jobs_with_steps(proc: Path = Path("/proc")) -> set[int]:
    """Jobs that have a slurmstepd here."""
    found = set()
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            step = _STEP.match(path.read_bytes())
        except OSError:
            continue
        if step:
            found.add(int(step[1]))
    return found


def ask_controller(environ: Mapping[str, str]) -> Callable[[int], bool]:
    """A question that ``scontrol`` answers: is the job at work? Raises: Unavailable."""

    def is_at_work(job: int) -> bool:
        try:
            done = subprocess.run(
                ["scontrol", "--oneliner", "show", "job", str(job)],
                capture_output=True,
                text=True,
                timeout=SCONTROL_TIMEOUT_S,
                env=dict(environ),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"scontrol: {error}") from error
        if done.returncode and "Invalid job id" in done.stderr:
            return False
        if done.returncode:
            raise Unavailable(f"scontrol show job {job}: {done.stderr.strip()}")
        return any(state in _AT_WORK for state in _STATE.findall(done.stdout))

    return is_at_work
