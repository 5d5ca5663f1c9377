"""What one request of a reader waited for."""

from __future__ import annotations

from lodefs.chunkstore.nodeapi.wire import Origin

_STORE, _PEERS = Origin.STORE.encode(), Origin.PEERS.encode()


class Waited:
    """Seconds that one thread waited since ``clear``, by layer: for the proxy while it fetched from
    the store or from peers, for the proxy alone, for the cache's disk."""

    __slots__ = ("disk_s", "peers_s", "proxy_s", "store_s")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A new request begins."""
        self.store_s = self.peers_s = self.proxy_s = self.disk_s = 0.0

    @property
    def is_any(self) -> bool:
        """Whether it has waited for anything."""
        return bool(self.proxy_s or self.store_s or self.disk_s or self.peers_s)

    def for_proxy(self, origin: bytes, elapsed_s: float) -> None:
        """The proxy has answered; ``origin``: what its ORIGIN_HEADER says, b"" without one."""
        if origin == _STORE:
            self.store_s += elapsed_s
        elif origin == _PEERS:
            self.peers_s += elapsed_s
        else:
            self.proxy_s += elapsed_s

    def for_disk(self, elapsed_s: float) -> None:
        """A file of the cache has been read from the disk."""
        self.disk_s += elapsed_s
