"""A process that pushes, for tests that kill it: ``python -m tests.support.chunkstore.pusher``.

Arguments: source (a directory or a URL), store directory, index directory, and where it kills
itself: ``before N`` or ``after N`` (the Nth put into the store, or of keys that begin with a sixth
argument), or ``never 0``. Writes the commit's id at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.faulty_store import FaultyObjects


def die_before(_perform: Callable[[], Any]) -> Any:
    """An Effect: the process dies instead of the call."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(perform: Callable[[], Any]) -> Any:
    """An Effect: the process dies when the call is done."""
    perform()
    os.kill(os.getpid(), signal.SIGKILL)


def main(
    source: str, store_dir: str, index_dir: str, when: str, number: str, prefix: str = ""
) -> None:
    """Pushes ``source`` to the branch main of the repository r."""
    objects = FaultyObjects(DirectoryObjects(store_dir))
    store = open_store(objects)
    if when != "never":
        effect = die_before if when == "before" else die_after
        objects.add(effect, "put", prefix, first=int(number))
    options = PushOptions(message="", author="", time_s=0, index_dir=Path(index_dir))
    result = push(store, source, "r", "main", options)
    sys.stdout.write(f"commit {result.commit} new {result.new_bytes}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
