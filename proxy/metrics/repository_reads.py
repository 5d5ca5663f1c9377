"""The bytes that readers of this node got, by repository and by source."""

from __future__ import annotations

from enum import IntEnum

from lodefs.chunkstore.protocol.wire import Origin


class Source(IntEnum):
    """The sources of bytes for readers."""

    DIRECT = 0  # a mount or a Python program read the cache's files by itself
    CACHE = 1  # the proxy had them in its cache
    PEERS = 2
    STORE = 3

    @property
    def label(self) -> str:
        return self.name.lower()


OF_ORIGIN = {None: Source.CACHE, Origin.PEERS: Source.PEERS, Origin.STORE: Source.STORE}
REPOSITORIES_KNOWN_MAX = 100_000  # further ones are counted as one


class SourceReads:
    """Reads of one repository from one source: plain numbers, which only the event loop's thread
    changes."""

    __slots__ = ("read_bytes", "reads")

    def __init__(self) -> None:
        self.reads = 0
        self.read_bytes = 0

    def add(self, size_bytes: int, reads: int = 1) -> None:
        """Counts bytes of ``reads`` reads that began."""
        self.reads += reads
        self.read_bytes += size_bytes


class RepositoryReads:
    """All reads of a node, for use on the event loop only."""

    def __init__(self) -> None:
        self._repositories: dict[str, tuple[SourceReads, ...]] = {}

    def of(self, repo: str) -> tuple[SourceReads, ...]:
        found = self._repositories.get(repo)
        if found is None:
            if len(self._repositories) >= REPOSITORIES_KNOWN_MAX:
                repo = ""
            found = self._repositories.setdefault(repo, tuple(SourceReads() for _ in Source))
        return found

    def figures(self) -> dict[str, tuple[int, ...]]:
        """Returns, by repository, reads and bytes of each source, one after the other."""
        return {
            repo: tuple(n for one in sources for n in (one.reads, one.read_bytes))
            for repo, sources in self._repositories.items()
            if any(one.reads for one in sources)
        }
