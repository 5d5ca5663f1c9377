"""The limit of open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from chunkstore.errors import Unavailable
from chunkstore.openfiles import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
try:
    raise_limit("a mount")
except Unavailable as error:
    print(error)
else:
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "said"),
    [
        (64, 300, "300 300"),
        (256, 256, "256 256"),
        (20, 32, "only 32 files may be open here (ulimit -n): a mount needs 256"),
    ],
)
def test_the_limit(soft: int, hard: int, said: str) -> None:
    """A process takes all the files that it may open, and says at once where they are too few."""
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
