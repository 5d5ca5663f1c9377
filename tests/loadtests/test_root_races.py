"""Root works where a user changes paths all the time, and touches nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.rootraces.attacks import ATTACKS, Attack
from loadtests.rootraces.races import played, race
from loadtests.rootraces.user import swaps
from loadtests.rootraces.world import world
from tests.support.chunkstore import leftovers

TRIES = 20  # of each attack; ``./run bench root-races`` makes 10,000
NAIVE_TRIES = 400

pytestmark = pytest.mark.fuse


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that users may enter, unlike pytest's own."""
    if os.geteuid() != 0:
        pytest.skip("needs root, which is attacked")
    with leftovers.claimed("races-") as made:
        made.chmod(0o755)
        yield Path(os.path.realpath(made))


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_else_is_touched(folder: Path, attack: str) -> None:
    """Root does what it was asked to, or says no."""
    found = race(folder / attack, attack, TRIES)
    assert found._replace(refused=0) == (attack, TRIES, 0, 0, 0, "")


def test_root_that_follows_paths_is_caught(folder: Path) -> None:
    """The same user against a function that trusts its path."""
    with world(folder / "world") as made:
        path = made.home / "d/new/m"
        moves = [swaps(str(made.home / "d"), str(made.roots))]
        attack = Attack(lambda: os.makedirs(path, exist_ok=True), moves)
        assert played(made, "naive", attack, NAIVE_TRIES).touched
