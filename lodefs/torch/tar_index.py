"""The samples of a WebDataset shard: a tar whose neighbouring members with one name are one sample.

The name goes up to the first dot of the last part of the path (``a/b/000.seg.png``: sample
``a/b/000``, field ``seg.png``), as in the webdataset package. Only headers are read here.
"""

from __future__ import annotations

import tarfile
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt
from lodefs.reading.snapshot import Snapshot


class TarSample(NamedTuple):
    """Where a sample's fields lie in its shard: (name, first byte, end)."""

    shard: str
    key: str
    fields: tuple[tuple[str, int, int], ...]


def samples_of(snapshot: Snapshot, shard: str) -> list[TarSample]:
    """The samples of a shard, in their order. Raises: NotFound, Corrupt if it is no tar."""
    samples: list[TarSample] = []
    key, fields = "", list[tuple[str, int, int]]()
    try:
        with (
            snapshot.raw(shard) as raw,
            tarfile.open(fileobj=raw, mode="r:") as tar,
        ):
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
                if not member.isfile():
                    continue
                name, field = split_name(member.name)
                if name != key and fields:
                    samples.append(TarSample(shard, key, tuple(fields)))
                    fields = []
                key = name
                end = member.offset_data + member.size
                fields.append((field, member.offset_data, end))
    except tarfile.TarError as error:
        raise Corrupt(f"{snapshot}/{shard} is not a tar, or is damaged: {error}") from error
    if fields:
        samples.append(TarSample(shard, key, tuple(fields)))
    return samples


def split_name(path: str) -> tuple[str, str]:
    """The sample and the field of a member."""
    folder, slash, name = path.rpartition("/")
    stem, _, field = name.partition(".")
    return f"{folder}{slash}{stem}", field.lower()
