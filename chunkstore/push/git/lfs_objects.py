"""The objects of Git LFS that a store has, for the pointers of a Git commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.foreign.lfs import Pointer
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.push.changes.branch_commits import read_living_head
from lodefs.chunkstore.push.changes.overlay import Overlay, RecentTrees
from lodefs.chunkstore.repo.store import Store

_NAMED_MAX = 8


def stored_objects(
    store: Store, repos: Iterable[str], pointers: Iterable[Pointer]
) -> dict[str, TreeEntry]:
    """Returns the entries of the objects that the LFS servers of repositories have, by id. The
    rest is missing."""
    wanted = sorted({pointer.oid for pointer in pointers})
    found: dict[str, TreeEntry] = {}
    for repo in repos:
        try:
            _, _, commit = read_living_head(store, repo, lfs.OBJECTS)
        except NotFound:
            continue
        objects = Overlay(RecentTrees(store.packs).read_tree, commit.root)
        for oid in wanted:  # in the order of the directories that have them
            if oid in found:
                continue
            entry = objects.get(tuple(name.encode() for name in lfs.object_path(oid).split("/")))
            if isinstance(entry, TreeEntry) and entry.kind is Kind.FILE:
                found[oid] = entry
    return found


def check_objects(
    pointers: Mapping[bytes, Pointer], objects: Mapping[str, TreeEntry], what: str, way_out: str
) -> None:
    """Raises: NotFound, which names pointers without an object, with the ``way_out``; InvalidInput
    for a pointer with another size. ``what`` is the commit."""
    for path, pointer in pointers.items():
        entry = objects.get(pointer.oid)
        if entry is not None and entry.size_bytes != pointer.size_bytes:
            raise InvalidInput(
                f"{_shown(path)} of {what} points to {pointer.size_bytes:,} bytes, but the object "
                f"{pointer.oid} has {entry.size_bytes:,}"
            )
    missing = [path for path, pointer in pointers.items() if pointer.oid not in objects]
    if missing:
        named = ", ".join(f"{_shown(one)} ({pointers[one].oid})" for one in missing[:_NAMED_MAX])
        more = f" and {len(missing) - _NAMED_MAX:,} more" if len(missing) > _NAMED_MAX else ""
        raise NotFound(
            f"the store lacks the objects of Git LFS of {named}{more} in {what}: {way_out}. "
            "Nothing was committed"
        )


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
