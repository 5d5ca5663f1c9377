"""VolumeWriter in memory: a disk with changes and a store with commits, which outlive a plugin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from lodefs.chunkstore.errors import InUse, LodefsError, NotFound
from lodefs.mount.volumes.changes import Base, Closed, WritableVolume
from lodefs.mount.volumes.options import DISCARD
from tests.support.docker.memory_mounts import Repo

MAIN = "main"


class MemoryWriter:
    """See VolumeWriter. ``step`` is called before and after each thing that it does: a test may end
    the process there."""

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.messages: list[str] = []  # of the commits, in order
        self.changes: dict[str, list[str]] = defaultdict(list)  # by place, what is in no commit
        self.bases: dict[str, str] = {}  # by place, of what is there
        self.mounted: set[str] = set()
        self.in_use: set[str] = set()  # places that a container has, whatever dockerd knows
        self.failures: list[LodefsError] = []  # of the next commits
        self.step: Callable[[], None] = lambda: None

    def branch(self, volume: WritableVolume) -> str:
        """See VolumeWriter."""
        repo, branch = volume.source.repo, volume.branch
        if repo not in self.repos:
            raise NotFound(f"there is no repository {repo}")
        revisions = self.repos[repo].revisions
        return revisions.setdefault(branch, revisions[MAIN])

    def base(self, volume: WritableVolume) -> Base:
        """See VolumeWriter."""
        source = volume.source
        head = self.repos[source.repo].revisions.get(volume.branch)
        if head is None:
            raise NotFound(f"{source.repo} has no branch {volume.branch} any more")
        return Base(source, self.bases.get(self.place(volume), head))

    def place(self, volume: WritableVolume) -> str:
        """See VolumeWriter."""
        return f"/writable/{volume.key}"

    def mount(self, volume: WritableVolume, token: str | None) -> str:
        """See VolumeWriter."""
        place = self.place(volume)
        if place in self.in_use - self.mounted:
            raise InUse(f"{place}: a container has it still")
        self.step()
        self.bases[place] = volume.commit
        self.mounted.add(place)
        self.step()
        return place

    def close(self, volume: WritableVolume, message: str) -> Closed:
        """See VolumeWriter."""
        place = self.place(volume)
        self.step()
        self.mounted.discard(place)
        if place in self.in_use:
            raise InUse(f"{place}: a container has it still")
        if volume.commits == DISCARD:
            self.changes[place].clear()
        if not self.changes[place]:
            self.bases.pop(place, None)
            return Closed("", kept=False)
        if not message:
            return Closed("", kept=True)
        if self.failures:
            raise self.failures.pop(0)
        self._commit(volume, place, message)
        self.step()
        return Closed(self.repos[volume.source.repo].revisions[volume.branch], False)

    def _commit(self, volume: WritableVolume, place: str, message: str) -> None:
        self.step()
        self.messages.append(message)
        commit = f"{len(self.messages):02x}" * 32
        self.repos[volume.source.repo].revisions[volume.branch] = commit
        self.changes[place].clear()
        self.bases.pop(place, None)
