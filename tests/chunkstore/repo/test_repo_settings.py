"""What is set for a repository, over lists that lack it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lodefs.chunkstore.format.repo_settings import RepoSettings
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.repo.repo_settings import SettingsLog
from tests.support.chunkstore.memory_objects import MemoryObjects


class Blind(MemoryObjects):
    """A store whose lists never show anything."""

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        yield from ()


def test_changes_that_no_list_shows() -> None:
    """A change ends, and builds on those before it, where lists lack them all."""
    log, seen = SettingsLog(Blind(), "r", lambda: 0), list[RepoSettings]()

    def change(now: RepoSettings) -> RepoSettings:
        seen.append(now)
        assert len(seen) < 10, "it never ends"
        return replace(now, may_lack_history=not now.may_lack_history)

    first = log.change(change)
    assert (first.sequence, first.may_lack_history) == (0, True)
    assert log.change(change) == replace(first, sequence=1, may_lack_history=False)
    assert log.surely_newest().sequence == 1
