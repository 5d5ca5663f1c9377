"""Versioned datasets, read and written from a program as from the command line.

::

    import lodefs

    lodefs.push("./flickr30k", "vision/flickr30k", message="first version")
    train = lodefs.snapshot("vision/flickr30k@main")
    train.commit                              # what to write down for a model
    train.read("images/1.jpg")                # bytes, from the node's cache

What is below is imported when it is first used: ``import lodefs`` costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lodefs.api import changes as changes
    from lodefs.api.history import blame as blame
    from lodefs.api.history import diff as diff
    from lodefs.api.history import log as log
    from lodefs.api.mounting import Mount as Mount
    from lodefs.api.mounting import mount as mount
    from lodefs.api.pulling import pull as pull
    from lodefs.api.pushing import commit_changes as commit_changes
    from lodefs.api.pushing import merge as merge
    from lodefs.api.pushing import push as push
    from lodefs.api.refs import branch as branch
    from lodefs.api.refs import tag as tag
    from lodefs.api.snapshots import open as open  # noqa: A004 - lodefs.open
    from lodefs.api.snapshots import snapshot as snapshot
    from lodefs.api.upkeep.accounts import du as du
    from lodefs.api.upkeep.deleting import deleted as deleted
    from lodefs.api.upkeep.deleting import rm as rm
    from lodefs.api.upkeep.deleting import undelete as undelete
    from lodefs.api.upkeep.retaining import quota as quota
    from lodefs.api.upkeep.retaining import retain as retain
    from lodefs.api.warming import warm as warm
    from lodefs.chunkstore import errors as errors
    from lodefs.reading.snapshot import Snapshot as Snapshot
    from lodefs.reading.snapshot import SnapshotEntry as SnapshotEntry

    __version__: str

_PLACES = {
    "Mount": "lodefs.api.mounting",
    "Snapshot": "lodefs.reading.snapshot",
    "SnapshotEntry": "lodefs.reading.snapshot",
    "blame": "lodefs.api.history",
    "branch": "lodefs.api.refs",
    "deleted": "lodefs.api.upkeep.deleting",
    "commit_changes": "lodefs.api.pushing",
    "diff": "lodefs.api.history",
    "du": "lodefs.api.upkeep.accounts",
    "log": "lodefs.api.history",
    "merge": "lodefs.api.pushing",
    "open": "lodefs.api.snapshots",
    "pull": "lodefs.api.pulling",
    "push": "lodefs.api.pushing",
    "quota": "lodefs.api.upkeep.retaining",
    "retain": "lodefs.api.upkeep.retaining",
    "rm": "lodefs.api.upkeep.deleting",
    "snapshot": "lodefs.api.snapshots",
    "tag": "lodefs.api.refs",
    "undelete": "lodefs.api.upkeep.deleting",
    "warm": "lodefs.api.warming",
}
_MODULES = {
    "changes": "lodefs.api.changes",
    "errors": "lodefs.chunkstore.errors",
    "mount": "lodefs.mount",
}

__all__ = ["changes", "errors", "mount", *_PLACES]  # noqa: PLE0604 - names of the table above


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        found = getattr(import_module(_PLACES[name]), name)
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
    """The package ``lodefs.mount``, which is also the function of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from lodefs.api.mounting import mount as mount_snapshot

        return mount_snapshot(*args, **kwargs)


class _Front(ModuleType):
    """This module: the package ``mount`` becomes callable when it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "mount" and isinstance(value, ModuleType):
            value.__class__ = _MountModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front
