"""The mounts of this machine, put together for services that make them for others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lodefs.mount.node.helper_client import MountHelper
from lodefs.mount.node.interface import NodeMounts
from lodefs.mount.node.kernel_mounts import KernelMounts
from lodefs.proxies.store_proxies import StoreProxies
from lodefs.settings.session import Session


@contextmanager
def open_node_mounts(
    session: Session, state: Path, owner: str, log: logging.Logger
) -> Iterator[NodeMounts]:
    """Mounts through the node's proxy, and through proxies of their own for other stores.

    ``state``: the service's directory; the other proxies' state lies in it. ``owner``: what the
    mounts say that they were made for ("docker", "csi"). The end touches no mount. Unavailable.
    """
    say = partial(log.warning, "%s")
    with MountHelper() as helper:
        proxies = StoreProxies(session, state / "proxies", say)
        proxies.adopt()
        try:
            yield KernelMounts(
                helper, proxies.proxy_for, environ=session.environment, log=say, owner=owner
            )
        finally:
            proxies.close()
