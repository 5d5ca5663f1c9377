"""Versioned datasets, read and written from a program as from the command line.

::

    import lodefs

    lodefs.push("./flickr30k", "vision/flickr30k", message="first version")
    train = lodefs.snapshot("vision/flickr30k@main")
    train.commit                              # what to write down for a model
    train.read("images/1.jpg")                # bytes, from the node's cache

Each name below is imported when it is first used, so ``import lodefs`` takes no time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lodefs.api import changes as changes
    from lodefs.api.git_importing import import_git as import_git
    from lodefs.api.history import blame as blame
    from lodefs.api.history import diff as diff
    from lodefs.api.history import log as log
    from lodefs.api.importing import import_in_place as import_in_place
    from lodefs.api.mounting import Mount as Mount
    from lodefs.api.mounting import mount as mount
    from lodefs.api.moving import cp as cp
    from lodefs.api.moving import mv as mv
    from lodefs.api.pulling import pull as pull
    from lodefs.api.push_rounds import push_every as push_every
    from lodefs.api.pushing import commit_changes as commit_changes
    from lodefs.api.pushing import merge as merge
    from lodefs.api.pushing import push as push
    from lodefs.api.pushing import revert as revert
    from lodefs.api.refs import branch as branch
    from lodefs.api.refs import tag as tag
    from lodefs.api.repos import fork as fork
    from lodefs.api.repos import rename as rename
    from lodefs.api.snapshots import open as open  # noqa: A004 - lodefs.open
    from lodefs.api.snapshots import snapshot as snapshot
    from lodefs.api.transactions import transaction as transaction
    from lodefs.api.upkeep import deleted as deleted
    from lodefs.api.upkeep import du as du
    from lodefs.api.upkeep import quota as quota
    from lodefs.api.upkeep import retain as retain
    from lodefs.api.upkeep import rm as rm
    from lodefs.api.upkeep import undelete as undelete
    from lodefs.api.warming import warm as warm
    from lodefs.api.writing.writable_changes import commit as commit
    from lodefs.api.writing.writable_changes import restore as restore
    from lodefs.api.writing.writable_changes import status as status
    from lodefs.chunkstore import errors as errors
    from lodefs.reading.snapshot import Snapshot as Snapshot
    from lodefs.reading.snapshot import SnapshotEntry as SnapshotEntry

    __version__: str

_PLACES = {
    name: module
    for module, names in {
        "lodefs.api.git_importing": "import_git",
        "lodefs.api.history": "blame diff log",
        "lodefs.api.importing": "import_in_place",
        "lodefs.api.mounting": "Mount",
        "lodefs.api.moving": "cp mv",
        "lodefs.api.pulling": "pull",
        "lodefs.api.push_rounds": "push_every",
        "lodefs.api.pushing": "commit_changes merge push revert",
        "lodefs.api.refs": "branch tag",
        "lodefs.api.repos": "fork rename",
        "lodefs.api.snapshots": "open snapshot",
        "lodefs.api.transactions": "transaction",
        "lodefs.api.upkeep": "deleted du quota retain rm undelete",
        "lodefs.api.warming": "warm",
        "lodefs.api.writing.writable_changes": "commit restore status",
        "lodefs.reading.snapshot": "Snapshot SnapshotEntry",
    }.items()
    for name in names.split()
}
_MODULES = {
    "changes": "lodefs.api.changes",
    "errors": "lodefs.chunkstore.errors",
    "mount": "lodefs.mount",
}

__all__ = ["changes", "errors", "mount", *_PLACES]  # noqa: PLE0604 - names of the table above


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        from lodefs.cli.parameters import show_options

        found = getattr(import_module(_PLACES[name]), name)
        for one in (found, *vars(type(found)).values()):
            if isinstance(one, FunctionType) and "Unpack" in str(one.__annotations__):
                show_options(one)
        globals()[name] = found
        return found
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name == "__version__":
        from lodefs.chunkstore.installed_version import installed_version

        return installed_version() or "unknown"
    raise AttributeError(f"module 'lodefs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _MountModule(ModuleType):
    """The package ``lodefs.mount``, which can also be called as the function of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from lodefs.api.mounting import mount as mount_snapshot

        return mount_snapshot(*args, **kwargs)


class _Front(ModuleType):
    """This module; it makes the package ``mount`` callable when that is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "mount" and isinstance(value, ModuleType):
            value.__class__ = _MountModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front
