"""Real overlayfs mounts over plain directories, for tests of what their upper directories say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lodefs.chunkstore.system import libc

_MNT_DETACH = 2

needs_overlay = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount an overlayfs")


@dataclass(frozen=True)
class OverlayMount:
    """``merged`` is what programs see and change; ``upper`` is where the changes lie."""

    merged: Path
    upper: Path


@contextmanager
def overlay(
    lower: Path, place: Path, *, renames_directories: bool = True
) -> Iterator[OverlayMount]:
    """An overlayfs over ``lower``, mounted as lodefs does it, with all else in ``place``.
    ``renames_directories``: as root; a user's overlay has programs copy them."""
    made = OverlayMount(place / "merged", place / "upper")
    for directory in (made.merged, made.upper, place / "work"):
        directory.mkdir(parents=True)
    redirect = "on" if renames_directories else "off"
    options = (
        f"lowerdir={lower},upperdir={made.upper},workdir={place / 'work'},"
        f"index=off,metacopy=off,redirect_dir={redirect}"
    )
    merged = os.fsencode(made.merged)
    libc.call("mount", b"overlay", merged, b"overlay", 0, os.fsencode(options))
    try:
        yield made
    finally:
        libc.call("umount2", merged, _MNT_DETACH)
