"""Copies that an S3 server makes itself, from one prefix to another: no byte passes here.

Protocol: Amazon S3 API Reference, CopyObject.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Protocol

from lodefs.chunkstore.objects.retrying import RetryBudget, Retrying
from lodefs.chunkstore.objects.s3 import S3Objects


class ServerCopy(Protocol):
    """Copies objects of one store to another one on the same server. Safe for many threads."""

    def copy(self, key: str, if_match: str) -> str:
        """Copies an object, as it is at an ETag, to the same key there, and gives the copy's ETag.

        What arrives is to be looked at: a server may not know all of the request. Raises: NotFound
        if there is no such object; Changed if it has another ETag, or something is at the key
        there, where the server knows these conditions; Unavailable, Denied, and InvalidInput or
        Unsupported where a server does not copy.
        """
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class S3ServerCopy:
    """From a prefix on S3 to another one, which the same credentials reach at one endpoint."""

    def __init__(
        self, bucket: str, prefix: str, there: Callable[[], S3Objects], budget: RetryBudget
    ) -> None:
        """``there`` opens the other one, for the first copy."""
        self._bucket = bucket
        self._prefix = prefix
        self._open = there
        self._budget = budget
        self._opened: S3Objects | None = None
        self._lock = Lock()  # one thread opens it

    def copy(self, key: str, if_match: str) -> str:
        with self._lock:
            self._opened = there = self._opened or self._open()
        return Retrying(there, self._budget).repeat(
            lambda: there.copy_from(self._bucket, self._prefix, key, if_match)
        )

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
