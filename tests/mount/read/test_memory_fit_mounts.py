"""NodeMounts in memory keeps the contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lodefs.mount.helper.interface import Source
from tests.support.docker.memory_mounts import MemoryMounts, Repo
from tests.support.docker.node_mounts_suite import Given, NodeMountsSuite

COMMIT = "c1" * 32
DIRECTORIES = frozenset({b"", b"train"})


@dataclass
class InMemory(Given):
    """A Given over MemoryMounts."""

    memory: MemoryMounts = field(kw_only=True)

    def lose(self) -> None:
        self.memory.kill(str(self.place))

    def lose_supervisor(self) -> None:
        self.memory.kill(str(self.place), wholly=False)


class TestMemoryMounts(NodeMountsSuite):
    @pytest.fixture
    def given(self, tmp_path: Path) -> Given:
        right, wrong, place = tmp_path / "right", tmp_path / "wrong", tmp_path / "place"
        right.write_text("right-token\n")
        wrong.write_text("wrong-token\n")
        place.mkdir()
        memory = MemoryMounts(
            {
                "vision/cats": Repo({"main": COMMIT}, DIRECTORIES),
                "secret": Repo({"main": COMMIT}, token="right-token"),
            }
        )
        return InMemory(
            memory,
            Source(repo="vision/cats"),
            COMMIT,
            b"train",
            b"train/a",
            Source(repo="secret", token_file=str(right)),
            Source(repo="secret", token_file=str(wrong)),
            place,
            memory=memory,
        )
