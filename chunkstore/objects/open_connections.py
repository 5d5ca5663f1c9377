"""Connections of a store that stay open while nobody asks: stores that have any, and their
wrappers, implement KeepsOpen."""

from __future__ import annotations

from typing import Protocol


class KeepsOpen(Protocol):
    """A store that can be reached without connecting first."""

    def keep_open(self, connections: int) -> None:
        """Keeps that many idle connections open: opens those that are missing or were closed by the
        server. Raises: Unavailable, DeadlineExceeded, Denied."""
        ...


def keep_open(objects: object, connections: int) -> None:
    """Calls the store's ``keep_open``; does nothing if the store does not implement KeepsOpen."""
    store: KeepsOpen | None = objects if hasattr(objects, "keep_open") else None
    if store is not None:
        store.keep_open(connections)
