"""``lodefs node-labels``."""

from __future__ import annotations

import logging

from lodefs import kubernetes as rules
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.protocol.cache_control import PINS, PinsView
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import FiniteRange
from lodefs.kubernetes import ApiServer
from lodefs.settings.session import Session

_log = logging.getLogger("lodefs.kubernetes")


@cli.command("lodefs node-labels --node $NODE_NAME --every 30", name="node-labels", proxy=True)
def node_labels(
    session: Session,
    node: str = cli.option("The node that this pod runs on.", metavar="NAME", required=True),
    interval_s: float = cli.option(
        "Compare pins and labels every S seconds [30].",
        "--every",
        default=30.0,
        metavar="S",
        type=FiniteRange(min=1.0),
    ),
) -> None:
    """Keep the labels of a Kubernetes node in step with the pins of its cache, until SIGTERM.

    `pinned.lodefs.dev/vision.flickr30k: 5f2c81aa9d03` says that the cache has all of this commit,
    so that pods can prefer the node. It runs in a pod whose service account may get and patch
    nodes. It repeats what fails at the next comparison, and leaves the labels when it ends.
    """
    from lodefs.mount.helper.end_signals import asked_to_end
    from lodefs.proxies.own_proxy import running_proxy
    from lodefs.proxy.service.logs import configure_logs

    configure_logs("info", "auto", identifier="lodefs-node-labels")
    server = ApiServer(session.environment)
    said = ""
    with asked_to_end() as end:
        while not end.is_set():
            try:
                _look(server, running_proxy(session), node)
                said = ""
            except LodefsError as error:
                if str(error) != said:  # log a lasting error once
                    _log.warning("cannot update the labels of %s: %s", node, error)
                said = str(error)
            end.wait(interval_s)


def _look(server: ApiServer, proxy: str, node: str) -> None:
    """Compares pins and labels once, and patches the labels."""
    calls = ControlClient(proxy)
    try:
        pins = calls.call(PinsView, "GET", PINS).pins
    finally:
        calls.close()
    patch = rules.changes(server.node_labels(node), rules.labels(pins))
    if patch:
        server.patch_node_labels(node, patch)
        _log.info("labels of %s: %s", node, patch)
