"""The source of a plan, as one machine reads it. Plans lie in the store, and a user who may write
to it may write any plan. So a machine may insist on a source, and reads what stays in place by its
own settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from lodefs.api.importing import place_of, readable_url
from lodefs.chunkstore.errors import InvalidInput

if TYPE_CHECKING:
    from lodefs.chunkstore.format.push_plan import PushPlan
    from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings


def source_of(
    sources: Mapping[str, SourceSettings], named: str | os.PathLike[str] | None, plan: PushPlan
) -> bytes:
    """Returns the real path or the URL that a task of a plan reads. ``sources`` are those of this
    machine's settings; ``named`` is the only source that the task may read (None: any).

    Raises: InvalidInput, which names both, for a plan of another source than ``named``, or whose
    objects lie elsewhere by the settings; what the source raises when it is opened.
    """
    if named is not None:
        _require(plan, named)
    if plan.in_place is None:
        return plan.source
    url = plan.source.decode()
    place = place_of(url, sources, plan.in_place.source)
    if place.prefix != plan.in_place.prefix:
        raise InvalidInput(
            f"the plan {plan.name} has {url} as {plan.in_place.prefix!r} of the source "
            f"{place.source}, and by the settings here it is {place.prefix!r}: give the source the "
            "same URL on all machines"
        )
    return readable_url(url, sources[place.source]).encode()


def _require(plan: PushPlan, named: str | os.PathLike[str]) -> None:
    from lodefs.chunkstore.push.remote.remote_files import is_url, open_remote
    from lodefs.chunkstore.push.source_directory import real_root
    from lodefs.chunkstore.push.workers.source_files import show_path

    root = real_root(named)
    if root == plan.source:
        return
    if is_url(root) and is_url(plan.source):
        with closing(open_remote(os.fsdecode(root))) as remote:  # at the revision that it has now
            if remote.location.encode() == plan.source:
                return
    raise InvalidInput(
        f"the plan {plan.name} is of {show_path(plan.source)}, and this task may read "
        f"{show_path(root)} alone: name the plan's source if that is what it is to read"
    )
