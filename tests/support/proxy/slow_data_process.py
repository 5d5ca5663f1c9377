"""A data process as a program whose disk is slow: it pauses before each write."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from lodefs.chunkstore.types import Buffer
from lodefs.proxy.data import process
from lodefs.proxy.data.order import FetchOrder

ARGV = (sys.executable, "-P", str(Path(__file__)))
PAUSE_S = 0.02


def _slowly(
    order: FetchOrder,
    raw_starts: Sequence[int],
    first: int,
    raws: Sequence[Buffer],
    files: Sequence[int],
) -> None:
    threading.Event().wait(PAUSE_S)
    _write(order, raw_starts, first, raws, files)


_write = process._write

if __name__ == "__main__":
    process._write = _slowly
    process.main()
