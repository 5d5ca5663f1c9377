"""What a push index forgets when chunks of packs are gone from the store, and the packs are not."""

from __future__ import annotations

from collections.abc import Mapping

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.push.index.chunk_places import NUMBER_BITS, pack_number
from lodefs.chunkstore.push.index.push_index import PushIndex
from lodefs.chunkstore.push.index.stat_cache import forget_files_where


def forget_chunks(index: PushIndex, chunks: Mapping[PackId, int]) -> None:
    """Forgets chunks of packs (the bits of their numbers); the directories with files that lie
    there, so that these files are read again; and all trees, of which some lead there, and the
    others are found again by their chunks. Raises as the methods of PushIndex."""
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

    forget_files_where(index, is_lost)
