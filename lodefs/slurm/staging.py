"""Fetches a job's data to its nodes before it begins. For burst_buffer.lua, on the controller.

A job is staged while it is pending, when its nodes are unknown: its datasets are checked, and fixed
if only its script names them. Once it has nodes, these fetch the data and pin it.
"""

from __future__ import annotations

import re
import time

import msgspec

from lodefs.api.warming import Follower, checked, request_of
from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.protocol.cache_control import (
    EVICT,
    RUNNING,
    EvictRequest,
    EvictView,
    WarmStatus,
)
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.proxies.own_proxy import running_proxy
from lodefs.settings.session import Session
from lodefs.slurm.job_comment import datasets_in, is_fixed, parsed, with_datasets
from lodefs.slurm.job_liveness import Scontrol
from lodefs.slurm.resolving import fixed, job_user

PIN_S = 3600  # until the prologs have pinned it for as long as the job runs
RELEASE_TIMEOUT_S = 60.0
POLL_S = 0.2
_USER = re.compile(r"^\s*UserId=\S*\((\d+)\)", re.MULTILINE)


class WaitingJob(msgspec.Struct, frozen=True):
    """Slurm's knowledge of a job. ``nodes``: empty while it has none. ``uid``: None if more than
    one is shown, which a job name with several lines can cause."""

    comment: str
    nodes: str
    is_array: bool
    uid: int | None = None


def shown_job(text: str) -> WaitingJob:
    """Returns the output of ``scontrol show job`` for one job."""
    fields = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        fields[name] = value.strip()
    nodes = fields.get("NodeList", "")
    is_array = any(line.startswith("JobId=") and "ArrayJobId=" in line for line in text.split("\n"))
    uids = {int(uid) for uid in _USER.findall(text)}
    return WaitingJob(
        comment=fields.get("Comment", ""),
        nodes="" if nodes == "(null)" else nodes,
        is_array=is_array,
        uid=uids.pop() if len(uids) == 1 else None,
    )


def stage(session: Session, call: Scontrol, job: int, words: str) -> None:
    """Checks a job's datasets while it waits. ``words``: the datasets that its script names, which
    are fixed and written into its comment if that has none.

    Raises: InvalidInput (no datasets, or branches in an array), NotFound (also if the job's user
    may not read one), and what resolving raises.
    """
    waiting = shown_job(call(["show", "job", str(job)]))
    user = job_user(session, waiting.uid)
    datasets = datasets_in(waiting.comment)
    if not datasets and not words:
        raise InvalidInput(f"job {job} names no dataset: give --lodefs=REPO@REV:DIR")
    if datasets:
        fixed(session, datasets, user)
        return
    datasets = parsed(words)
    if waiting.is_array and not all(is_fixed(dataset.spec) for dataset in datasets):
        raise InvalidInput(
            "tasks of an array would read different commits: give --lodefs, which fixes them when "
            "the array is submitted, or name commits in full"
        )
    comment = with_datasets(waiting.comment, fixed(session, datasets, user))
    call(["update", f"JobId={job}", f"Comment={comment}"])


def warm_nodes(session: Session, call: Scontrol, job: int, patience_s: float) -> None:
    """Fetches a job's datasets to its nodes, and pins them there. ``patience_s``: how long nothing
    may arrive. Raises: InvalidInput, NotFound (also if the job's user may not read one), and the
    error of the first failed warm job."""
    waiting = shown_job(call(["show", "job", str(job)]))
    if not waiting.nodes:
        raise InvalidInput(f"job {job} has no nodes yet")
    user, datasets = job_user(session, waiting.uid), datasets_in(waiting.comment)
    user.check(datasets)
    nodes = call(["show", "hostnames", waiting.nodes]).split()
    for dataset in datasets:
        request = msgspec.structs.replace(
            request_of(dataset.spec, None, pin_s=PIN_S), nodes=nodes, owner=owner_of(job)
        )
        checked(_warmed(Follower(_client(session), request), str(dataset.spec), patience_s))


def release(session: Session, job: int) -> None:
    """Ends a job's warming and its pins on all nodes that answer. Raises: Unavailable."""
    request = EvictRequest(everything=True, pins_only=True, owner=owner_of(job), all_nodes=True)
    _client(session).call(EvictView, "POST", EVICT, request, timeout_s=RELEASE_TIMEOUT_S)


def _warmed(follower: Follower, name: str, patience_s: float) -> WarmStatus:
    """Returns a finished warm job. If nothing arrives, ends it and raises Unavailable."""
    status = follower.start()
    seen, since_s = (0, 0), time.monotonic()
    while status.state in RUNNING:
        if time.monotonic() - since_s > patience_s:
            follower.cancel()
            why = next((f": {node.error}" for node in status.nodes if node.error), "")
            raise Unavailable(f"{name}: no data has arrived at the nodes for {patience_s:g} s{why}")
        time.sleep(POLL_S)
        status = follower.status()
        if seen != (now := (status.bytes_done, status.files_done)):
            seen, since_s = now, time.monotonic()
    return status


def _client(session: Session) -> ControlClient:
    return ControlClient(running_proxy(session), session.environment.get("LODEFS_TOKEN"))


def owner_of(job: int) -> str:
    """Returns the owner of what is pinned for a job."""
    return f"slurm-{job}"
