"""What a push index forgets, and refuses, when chunks of packs are gone and the packs are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.journal.purges import Purge
from lodefs.chunkstore.push.index.chunk_places import NUMBER_BITS, pack_number, split
from lodefs.chunkstore.push.index.push_index import PushIndex
from lodefs.chunkstore.push.index.stat_cache import forget_files_where


def refuse(index: PushIndex, purges: Iterable[Purge]) -> None:
    """Has an index refuse chunks that were purged, and forget where they lay, so that unchanged
    files that have them are read again."""
    for purge in purges:
        day = datetime.fromtimestamp(purge.time_s, UTC).date().isoformat()
        why = f"purged on {day}" + (f" with {purge.what}" if purge.what else "")
        index.refused |= dict.fromkeys(purge.chunks, why)
        index.purges_seen = purge.number
    chunks: dict[PackId, int] = {}
    for places in index.find_all(list(index.refused)).values():
        for number, n in map(split, places):
            for (pack,) in index.select("SELECT id FROM packs WHERE number = ?", (number,)):
                chunks[PackId(pack)] = chunks.get(PackId(pack), 0) | 1 << n
    for pack, bits in chunks.items():  # what earlier calls found is forgotten already
        index.purged[pack] = index.purged.get(pack, 0) | bits
    forget_chunks(index, chunks)


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
