"""The limit of open files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lodefs.chunkstore.system.fd_limit import (
    CACHE_FILES_MAX,
    INDEX_FILES_MAX,
    OTHERS_MIN,
    PEER_SOCKETS_MAX,
    shares,
)

PROGRAM = """
import resource, sys
from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.system.fd_limit import raise_limit
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
        (20, 32, "the limit of open files is 32 (ulimit -n): a mount needs 256"),
    ],
)
def test_the_limit(soft: int, hard: int, said: str) -> None:
    """A process takes all the files that it may open, and says at once where they are too few."""
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


@pytest.mark.parametrize("limit", [256, 300, 1024, 4096, 5440, 524_288, sys.maxsize])
@pytest.mark.parametrize("fetches", [1, 32, 256])
@pytest.mark.parametrize("in_cluster", [False, True])
def test_shares_fit_into_the_limit(limit: int, fetches: int, in_cluster: bool) -> None:
    """All that a proxy may open together is below the limit, sockets to other nodes included, and
    each share is of use."""
    got = shares(limit, fetches_max=fetches, in_cluster=in_cluster)
    fetching = min(2 * fetches, limit // 4)
    assert sum(got) + fetching + OTHERS_MIN <= limit
    assert got.connections >= (32 if in_cluster else 48)
    assert (32 if in_cluster else 0) <= got.peer_sockets <= (PEER_SOCKETS_MAX if in_cluster else 0)
    assert 32 <= got.cache_files <= CACHE_FILES_MAX
    assert 32 <= got.index_files <= INDEX_FILES_MAX


@pytest.mark.parametrize("limit", [1024, 4096, sys.maxsize])
def test_data_processes_have_a_share(limit: int) -> None:
    """Sockets to data processes fit in as well, and each other share is of use yet."""
    got = shares(limit, fetches_max=32, in_cluster=True, data_sockets=80)
    assert sum(got) + 64 + 80 + OTHERS_MIN <= limit
    assert min(got) >= 32


def test_a_high_limit_takes_nothing_away() -> None:
    """With the descriptors that systemd gives, all shares are as set."""
    got = shares(524_288, fetches_max=32, in_cluster=True)
    assert got[1:] == (CACHE_FILES_MAX, INDEX_FILES_MAX, PEER_SOCKETS_MAX)
    assert got.connections > 3 * 4096
