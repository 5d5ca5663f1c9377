"""A program that reads files again and again, past the page cache, and compares them.

It runs where the files are, also in another machine, and needs nothing but Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from loadtests.services.machine import PYTHON, Machine

_STOP = "/run/stop-reading"
_PROGRAM = """
import hashlib, json, mmap, os, sys
place, stop, digests = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
reads, wrong = 0, []
buffer = mmap.mmap(-1, 1 << 20)  # direct reads want whole pages
print("reading")
while not os.path.exists(stop):
    for name, digest in digests.items():
        found = hashlib.sha256()
        try:
            fd = os.open(f"{place}/{name}", os.O_RDONLY | os.O_DIRECT)
            at = 0
            while count := os.preadv(fd, [buffer], at):
                at += count
                found.update(buffer[:count])
            os.close(fd)
        except OSError as error:
            wrong.append(f"{name}: {error}")
        else:
            if found.hexdigest() != digest:
                wrong.append(f"{name}: other bytes")
        reads += 1
print(json.dumps({"reads": reads, "wrong": wrong}))
"""


@dataclass
class Seen:
    """How often a whole file was read, and what was wrong."""

    reads: int = 0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def rereading(machine: Machine, place: str, sha256: Mapping[str, str]) -> Iterator[Seen]:
    """Reads files of a directory of a machine during the block; after it, what was seen is told.

    ``sha256``: the files' names and digests in hex.
    """
    seen = Seen()
    machine.run("rm", "-f", _STOP)
    words = (PYTHON, "-u", "-c", _PROGRAM, place, _STOP, json.dumps(dict(sha256)))
    with machine.start(*words) as child:
        child.wait_for("^reading$")
        yield seen
        machine.run("touch", _STOP)
        if child.wait() != 0:
            raise child.failed("failed")
        told = json.loads(child.output.splitlines()[-1])
        seen.reads, seen.wrong = told["reads"], told["wrong"]
