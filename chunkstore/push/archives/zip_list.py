"""Bounds the list of members of a zip, which Python's zipfile reads at once and keeps."""

from __future__ import annotations

import io
from typing import Any

from lodefs.chunkstore.errors import InvalidInput

LIST_BYTES_MAX = 32 << 20  # 600,000 members with short names; Python's objects take 15 times that


class BoundedZip:
    """The file of a zip. A read of more than LIST_BYTES_MAX is refused, and only that of the list
    can be so large. In all else it is that file. ``shown`` names it."""

    def __init__(self, file: Any, shown: str) -> None:
        self._file = file
        self._shown = shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> BoundedZip:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """Raises: InvalidInput for too many bytes."""
        if (self._left() if size < 0 else size) > LIST_BYTES_MAX:
            raise InvalidInput(
                f"the list of members of {self._shown} has more than {LIST_BYTES_MAX:,} bytes: "
                "unpack the zip, and push the directory"
            )
        return bytes(self._file.read(size))

    def _left(self) -> int:
        """Returns how many bytes follow."""
        position = self._file.tell()
        end = int(self._file.seek(0, io.SEEK_END))
        self._file.seek(position)
        return int(end - position)
