"""A mount service within the process of a driver that is alone on its machine: a managed plugin."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.interface import NodeMounts
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.upkeep import MountUpkeep

RUN = Path("/run/lodefs")  # a reboot empties it
WORK_END_S = 20.0  # for background work to end with the process
_log = logging.getLogger("lodefs.mounter")


@contextmanager
def hosted(
    state: Path, node: NodeMounts, boot: str, idle_s: float
) -> Iterator[tuple[SharedMounts, Callable[[], None]]]:
    """Yields the service, which mounts below ``state``/mounts, and a function that starts its
    upkeep. Its end touches no mount. Raises: InUse, Denied, InvalidInput, Unavailable."""
    run = RUN / f"hosted-{blake3(bytes(state)).hexdigest(length=8)}"
    files = MountFiles(state / "mounter", run, state / "mounts")
    try:
        woken, calls = threading.Event(), Calls()
        mounts = SharedMounts(files, node, boot=boot, on_change=woken.set)
        upkeep = MountUpkeep(mounts, calls, woken, idle_s=idle_s)
        try:
            yield mounts, upkeep.start
        finally:
            upkeep.stop(WORK_END_S)
            if not calls.wait_idle(WORK_END_S):
                _log.warning("unfinished work is left to the next start")
    finally:
        files.close()
