"""What a push index forgets: packs, or some of their chunks, that the store does not have any more.

With them go the directories whose files lie there, so that these files are read again; and all
trees, of which some lead there and the others are found again by their chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import SAME_PACK, Segment, decode_tree
from lodefs.chunkstore.push.chunk_places import NUMBER_BITS, pack_number
from lodefs.chunkstore.push.push_index import PushIndex

_FORGET_AT_ONCE = 256


def forget_packs(index: PushIndex, pack_ids: Collection[PackId]) -> None:
    """Forgets whole packs. Raises as the methods of PushIndex."""
    if not pack_ids:
        return
    numbers = [pack_number(pack_id) for pack_id in pack_ids]
    with index.writing() as db:
        for at in range(0, len(numbers), _FORGET_AT_ONCE):
            some = numbers[at : at + _FORGET_AT_ONCE]
            marks = ",".join("?" * len(some))
            for table in ("chunks", "older"):
                statement = f"DELETE FROM {table} WHERE place >> {NUMBER_BITS} IN ({marks})"
                db.execute(statement, some)
            db.execute(f"DELETE FROM packs WHERE number IN ({marks})", some)
            db.execute(f"DELETE FROM unpublished WHERE pack IN ({marks})", some)
        db.execute("DELETE FROM trees")
    _forget_directories(index, lambda segment: segment.pack in pack_ids)


def forget_chunks(index: PushIndex, chunks: Mapping[PackId, int]) -> None:
    """Forgets some chunks of packs that are there: the bits of their numbers."""
    places = [
        ((pack_number(pack) << NUMBER_BITS) + n,)
        for pack, bits in chunks.items()
        for n in range(bits.bit_length())
        if bits >> n & 1
    ]
    if not places:
        return
    with index.writing() as db:
        db.execute("CREATE TEMP TABLE gone (place INTEGER PRIMARY KEY)")
        db.executemany("INSERT OR IGNORE INTO gone VALUES (?)", places)
        for table in ("chunks", "older"):
            db.execute(f"DELETE FROM {table} WHERE place IN (SELECT place FROM gone)")
        db.execute("DROP TABLE gone")
        db.execute("DELETE FROM trees")

    def is_lost(segment: Segment) -> bool:
        wanted = ((1 << segment.count) - 1) << segment.first
        return bool(chunks.get(segment.pack, 0) & wanted)

    _forget_directories(index, is_lost)


def _forget_directories(index: PushIndex, is_lost: Callable[[Segment], bool]) -> None:
    """Forgets the directories with a file that lies in a lost segment."""
    for number, key, files in index.directories():
        segments = (s for entry in decode_tree(files, SAME_PACK) for s in entry.segments)
        if any(map(is_lost, segments)):
            with index.writing() as db:
                row = number, key
                db.execute("DELETE FROM directories WHERE source = ? AND key = ?", row)
