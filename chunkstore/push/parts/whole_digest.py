"""The digest of a large file whose chunks others store: BLAKE3 of all its bytes, read in order."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from blake3 import blake3

from lodefs.chunkstore.format.push_plan import PlannedDirectory
from lodefs.chunkstore.push.parts.part_scan import columns_of
from lodefs.chunkstore.push.trees.directories import changed_since, is_changed
from lodefs.chunkstore.push.workers.pipeline import read_error
from lodefs.chunkstore.push.workers.worker import Read, open_reads
from lodefs.chunkstore.system.progress import Progress

READ_BYTES = 8 << 20
_BATCH_BYTES = 8 * READ_BYTES  # as many reads as a remote source is asked for at once


def read_digest(root: bytes, file: PlannedDirectory, progress: Progress) -> bytes:
    """Returns the digest of the only file in ``file``. Other cores hash while this one reads.

    Raises: SourceChanged if the file is not as it was planned; Denied, NotFound, Unavailable.
    """
    columns = columns_of(file)
    path = b"/".join(filter(None, (file.path, file.names[0])))
    progress.files_total += 1
    progress.bytes_total += file.sizes[0]
    hasher = blake3(max_threads=blake3.AUTO)
    rooms = [memoryview(bytearray(READ_BYTES + 1)) for _ in range(2)]  # one is hashed meanwhile
    hashed: Future[object] | None = None
    with closing(open_reads(root)) as source, ThreadPoolExecutor(1, "lodefs-digest") as executor:
        for offset in range(0, file.sizes[0], _BATCH_BYTES):
            batch = _reads(path, file.sizes[0], offset)
            source.begin(batch)
            for read in batch:
                outcome = source.read_into(read, rooms[0])
                if outcome.problem > 0:
                    raise read_error(path, outcome.problem, outcome.reason)
                if outcome.problem or is_changed(columns, 0, outcome.stat):
                    raise changed_since(path)
                if hashed is not None:
                    hashed.result()
                hashed = executor.submit(hasher.update, rooms[0][: read.size_bytes])
                rooms.reverse()
                progress.bytes_done += read.size_bytes
    progress.files_done += 1
    return hasher.digest()


def _reads(path: bytes, size_bytes: int, begin: int) -> list[Read]:
    """Returns the reads of one batch."""
    end = min(begin + _BATCH_BYTES, size_bytes)
    return [
        Read(path, size_bytes, offset, min(READ_BYTES, end - offset))
        for offset in range(begin, end, READ_BYTES)
    ]
