"""The node's proxy as a service of systemd: why it does not start."""

from __future__ import annotations

import os
import time

from lodefs.chunkstore.nodeapi.wire import SOCKET_DEFAULT
from lodefs.proxy.service.failed_starts import PREFIX

UNIT = "lodefs-proxy.service"
ASK_TIMEOUT_S = 5.0
LOOK_S, PAUSE_S = 3.0, 0.1
_PROPERTIES = ("ActiveState", "NRestarts", "StatusText")
_IS_BOOTED = "/run/systemd/system"  # sd_booted(3)


def why_not_started(url: str) -> str | None:
    """What the node's proxy said when it could not start, how often, and where there is more; None
    unless ``url`` is where that service listens, and systemd says so."""
    if url != f"unix:{SOCKET_DEFAULT}" or not os.path.isdir(_IS_BOOTED):
        return None
    ends_s = time.monotonic() + LOOK_S
    while (shown := _shown()) and (why := told(shown)) is None:
        if not _is_tried_again(shown) or time.monotonic() > ends_s:
            return None
        time.sleep(PAUSE_S)  # systemd forgets what it said before while it is started again
    return why if shown else None


def told(shown: str) -> str | None:
    """The same, of what ``systemctl show`` writes of the unit."""
    found = _properties(shown)
    status = found.get("StatusText", "")
    if found.get("ActiveState") == "active" or not status.startswith(PREFIX):
        return None
    tries = f" (tried {int(found['NRestarts']) + 1:,} times)" if found.get("NRestarts") else ""
    return (
        f"the node's proxy {status}{tries}; journalctl -u lodefs-proxy has more. "
        "It is tried again by itself; at once: systemctl restart lodefs-proxy"
    )


def _is_tried_again(shown: str) -> bool:
    found = _properties(shown)
    return found.get("ActiveState") == "activating" and found.get("NRestarts") != "0"


def _properties(shown: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in shown.splitlines())


def _shown() -> str:
    import subprocess  # here: mostly nobody asks

    command = ["systemctl", "show", *(f"--property={name}" for name in _PROPERTIES), UNIT]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
