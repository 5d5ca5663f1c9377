"""Reads of a worker from a source that a URL names: several requests at once."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, SourceChanged
from lodefs.chunkstore.push.remote.remote_files import (
    NoAccess,
    Piece,
    RemoteFiles,
    open_remote,
    stat_of_state,
)
from lodefs.chunkstore.push.workers.worker import (
    CHANGED,
    NO_ACCESS,
    NO_SOURCE,
    RESIZED,
    Outcome,
    Read,
)

THREADS = 8  # requests of one worker at once


class RemoteReads:
    """Implements Reads. It holds the pieces of one unit at most, besides the slot."""

    def __init__(self, root: bytes) -> None:
        """Raises: InvalidInput for an unknown kind of URL."""
        self._remote: RemoteFiles = open_remote(os.fsdecode(root))
        self._threads = ThreadPoolExecutor(THREADS)
        self._ahead: deque[Future[Piece]] = deque()

    def begin(self, reads: Sequence[Read]) -> None:
        """Implements Reads: asks for all of them."""
        self._ahead = deque(self._threads.submit(self._piece, read) for read in reads)

    def read_into(self, read: Read, room: memoryview) -> Outcome:
        """Implements Reads. The state of the piece shows whether the file has changed."""
        asked = self._ahead.popleft()
        try:
            piece = asked.result()
        except SourceChanged:
            return Outcome(None, CHANGED)
        except NoAccess as error:
            return Outcome(None, NO_ACCESS, str(error))
        except NotFound as error:
            return Outcome(None, errno.ENOENT, str(error))
        except Denied as error:
            return Outcome(None, errno.EACCES, str(error))
        except LodefsError as error:
            return Outcome(None, NO_SOURCE, str(error))
        stat = stat_of_state(piece.file_size_bytes, piece.state)
        size_bytes = read.overlap + read.size_bytes
        if stat.size_bytes != read.file_size_bytes or size_bytes >= len(room):
            return Outcome(stat, RESIZED)
        if len(piece.data) != size_bytes:
            return Outcome(stat, CHANGED)
        room[:size_bytes] = piece.data
        return Outcome(stat, condition=piece.condition)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._remote.close()

    def _piece(self, read: Read) -> Piece:
        return self._remote.read(
            read.path, read.offset - read.overlap, read.overlap + read.size_bytes
        )
