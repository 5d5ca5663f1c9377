"""The node on which a job writes: the first one, which runs its batch script. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FIRST = re.compile(r"(?:[^,\[]|\[[^\]]*\])*")
_RANGES = re.compile(r"\[([^\],-]*)[^\]]*\]")


def first_of(nodes: str) -> str:
    """Returns the first name in a list of Slurm's, such as ``n[01-03,7],login``."""
    found = _FIRST.match(nodes)
    return _RANGES.sub(r"\1", found[0]) if found else ""


def is_first(environ: Mapping[str, str]) -> bool:
    """Whether a prolog with this environment runs on the first node of its job. False if Slurm does
    not say so, unless the job has one node."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    here = environ.get("SLURMD_NODENAME", "")
    if nodes and here:
        return first_of(nodes) == here
    return environ.get("SLURM_JOB_NUM_NODES") == "1"
