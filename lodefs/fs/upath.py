"""Paths of universal_pathlib: ``UPath("lodefs://vision/flickr30k@v1.0/images/1.jpg")``."""

from __future__ import annotations

from upath import UPath


class LodefsPath(UPath):  # type: ignore[misc]  # it may not be installed
    """A path in a snapshot. Found by universal_pathlib's entry point."""

    __slots__ = ()
