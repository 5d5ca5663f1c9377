"""``lodefs health``."""

from __future__ import annotations

import os
from pathlib import Path

from lodefs.chunkstore.errors import LodefsError
from lodefs.cli import exit_codes
from lodefs.cli import options as cli
from lodefs.settings.session import Session

TIMEOUT_S = 2.0  # for each request


@cli.command("lodefs health", "lodefs health --mounter || drain_this_node", proxy=True)
def health(
    session: Session,
    mounter: bool = cli.option("Also require a running `lodefs mounter`."),
    socket: Path = cli.option(
        "[/run/lodefs/mounter/mounter.sock]",
        "--mounter-socket",
        default=Path("/run/lodefs/mounter/mounter.sock"),
        metavar="PATH",
        envvar="LODEFS_MOUNTER_SOCKET",
    ),
) -> None:
    """Check within a few seconds that this node can mount. If so, print nothing and exit with 0;
    else print the reasons and exit with 1.

    This is for Slurm's HealthCheckProgram and the like. `lodefs doctor` checks more and takes
    longer.
    """
    from lodefs.mount.service.client import RemoteMounts
    from lodefs.proxies.own_proxy import node_proxy, ready

    problems = []
    if not os.path.exists("/dev/fuse"):
        problems.append("/dev/fuse is missing: modprobe fuse")
    url = node_proxy(session)
    if not ready(url, TIMEOUT_S):
        problems.append(f"the proxy at {url} is not ready")
    if mounter:
        try:
            RemoteMounts(socket).ping(TIMEOUT_S)
        except LodefsError as error:
            problems.append(str(error))
    for problem in problems:
        cli.write_line(problem)
    if problems:
        session.exit_code = exit_codes.FAILURE
