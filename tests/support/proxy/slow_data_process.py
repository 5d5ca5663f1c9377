"""A data process as a program whose disk is slow: the first argument says how many seconds each
write takes longer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.data import process
from lodefs.proxy.data.order import FetchTask

_PROGRAM = (sys.executable, "-P", str(Path(__file__)))
SLOW = (*_PROGRAM, "0.02")  # orders take long enough for something to happen to them
TOO_SLOW = (*_PROGRAM, "0.6")
DEAD = (*_PROGRAM, "600")


def _slowly(
    order: FetchTask,
    index: PackIndex,
    first: int,
    raws: Sequence[Buffer],
    files: Sequence[int],
) -> None:
    threading.Event().wait(_pause_s)
    _write(order, index, first, raws, files)


_write = process._write

if __name__ == "__main__":
    _pause_s = float(sys.argv.pop(1))
    process._write = _slowly
    process.main()
