"""The methods of a file system that would write: they say why they do not."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

from lodefs.reading.snapshot_file import READ_ONLY


class ReadOnlyMethods:
    """For a file system of fsspec, before its base. Each raises OSError with EROFS."""

    def _rm(self, path: str) -> NoReturn:
        read_only(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> NoReturn:  # noqa: ARG002, FBT002
        read_only(path)

    def rm_file(self, path: str) -> NoReturn:
        read_only(path)

    def rmdir(self, path: str) -> NoReturn:
        read_only(path)

    def mkdir(self, path: str, *_: Any, **__: Any) -> NoReturn:
        read_only(path)

    def makedirs(self, path: str, *_: Any, **__: Any) -> NoReturn:
        read_only(path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> NoReturn:  # noqa: ARG002
        read_only(path2)

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG002
        read_only(rpath)

    def mv(self, path1: str, path2: str, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG002
        read_only(path2)

    def touch(self, path: str, *_: Any, **__: Any) -> NoReturn:
        read_only(path)


def read_only(path: Any) -> NoReturn:
    """Raises: OSError with EROFS, which says how to write."""
    raise OSError(errno.EROFS, READ_ONLY, str(path))
