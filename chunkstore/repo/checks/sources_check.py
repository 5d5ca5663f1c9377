"""Checks the objects of sources in which files lie in place, without reading them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lodefs.chunkstore.errors import SourceLost
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.chunkstore.format.virtual_pack import SourceObject, VirtualPack
from lodefs.chunkstore.objects.in_place.virtual_packs import check_in_place, virtual_pack_of
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import read_index

File = TypeVar("File")


@dataclass(slots=True)
class InPlace(Generic[File]):
    """An object of a source, the packs that have chunks in it, and the files of these chunks."""

    object: SourceObject
    packs: set[PackId] = field(default_factory=set)
    files: list[File] = field(default_factory=list)


def add_objects(
    found: dict[SourceObject, InPlace[File]],
    virtual: VirtualPack,
    segments: Iterable[tuple[Segment, File]],
) -> None:
    """Adds the objects in which these segments of a pack lie to ``found``."""
    object_of = {
        number: virtual.objects[run.object]
        for run in virtual.runs
        for number in range(run.first, run.first + run.chunks)
    }
    for segment, file in segments:
        numbers = range(segment.first, segment.first + segment.count)
        for one in {object_of[number] for number in numbers if number in object_of}:
            place = found.setdefault(one, InPlace(one))
            place.packs.add(segment.pack)
            if not place.files or place.files[-1] is not file:
                place.files.append(file)


def check_object(objects: ObjectStore, place: InPlace[File]) -> None:
    """Checks that an object is unchanged, unless no pack needs it any more because it was adopted
    meanwhile. Raises: SourceLost, SourceUnknown, Denied, Unavailable."""
    try:
        check_in_place(objects, place.object)
    except SourceLost:
        if any(_has(objects, pack_id, place.object) for pack_id in place.packs):
            raise


def _has(objects: ObjectStore, pack_id: PackId, found: SourceObject) -> bool:
    """Whether a pack, as it is now, has chunks in an object."""
    virtual = virtual_pack_of(objects, pack_id, read_index(objects, pack_id).etag)
    return virtual is not None and found in virtual.objects
