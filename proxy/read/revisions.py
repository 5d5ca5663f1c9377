"""Lists what a store has, some names at a time: its repositories, and the branches and tags of
each.

Both are in the order of the keys that S3 clients see, REPO@REV/PATH. The store's own order differs:
there the keys of a repository begin with REPO/. Every call ends after some names or some time,
whatever the store has, and uses its own threads, so that fetches never wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush, merge
from time import monotonic

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import check_repo
from lodefs.chunkstore.objects.interface import check_prefix
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store
from lodefs.proxy.node import NamePage
from lodefs.proxy.runtime.thread_pools import Pools

NAMES_MAX = 10  # in one page: a client that sees groups skips most names
PAGE_S = 2.0  # then a page with any names ends
START_BYTES_MAX = 512
_NAME_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/")


class Revisions:
    """The repositories, branches and tags of a store. For use on the event loop only."""

    def __init__(
        self,
        store: Store,
        pools: Pools,
        *,
        deadline_s: float,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._pools = pools
        self._deadline_s = deadline_s
        self._clock_s = clock_s

    async def repos(self, prefix: bytes, start: bytes) -> NamePage:
        repos = ((name, True) for name in repos_from(self._store, prefix, start))
        return await self._pools.listing.bounded(
            "the list of repositories", self._deadline_s, lambda: self._page("@", repos)
        )

    async def revisions(self, repo: str, start: bytes) -> NamePage:
        return await self._pools.listing.bounded(
            f"the list of branches and tags of {repo}",
            self._deadline_s,
            lambda: self._page("/", _refs_from(self._store, repo, start)),
        )

    def _page(self, end: str, names: Iterator[tuple[str, bool]]) -> NamePage:
        """Returns some of the names that count; ``names`` says of each whether it does."""
        ends_s = self._clock_s() + PAGE_S
        found: list[str] = []
        for looked_at, (name, counts) in enumerate(names):
            if looked_at and (looked_at >= NAMES_MAX or self._clock_s() > ends_s):
                return NamePage(found, f"{name}{end}".encode())
            if counts and name not in found[-1:]:  # a branch and a tag may have the same name
                found.append(name)
        return NamePage(found, None)


def repos_from(store: Store, prefix: bytes, start: bytes) -> Iterator[str]:
    """Yields repositories whose names begin with a prefix, by the bytes of NAME@, from ``start``
    on, also the one whose NAME@ ``start`` begins with.

    The store orders them by NAME/refs/. So a name waits until no later name can begin with it and
    continue with '-', '.', '/' or a digit, which are less than '@'. Names that come before
    ``start`` in the store's order, but not in this one, are looked up.
    """
    after, below = _text(start), prefix.decode("ascii", "replace")
    if not _is_prefix(keys.REPOS + below):
        return
    waiting: list[str] = []  # ordered by NAME@
    for cut in range(1, len(after)):
        name = after[:cut]
        behind = after[cut] <= "@" and f"{name}/refs/" <= after
        if behind and name.startswith(below) and _is_repo_name(name) and store.has_refs(name):
            heappush(waiting, f"{name}@")
    for name in store.repos(below, start=after):
        while waiting and f"{waiting[0][:-1]}:" < f"{name}/refs/":  # ':' comes after the digits
            yield heappop(waiting)[:-1]
        if f"{name}@" not in waiting:
            heappush(waiting, f"{name}@")
    while waiting:
        yield heappop(waiting)[:-1]


def _refs_from(store: Store, repo: str, start: bytes) -> Iterator[tuple[str, bool]]:
    """Yields branches and tags by the bytes of NAME/, and whether each still exists."""
    refs = store.refs(repo)
    both = (refs.newest(kind, start=_text(start)) for kind in (BRANCHES, TAGS))
    for name, entry in merge(*both, key=lambda one: f"{one[0]}/"):
        yield name, entry.commit is not None


def _text(start: bytes) -> str:
    """Returns a text that compares with names like ``start``: up to its first byte that no name
    has. No name is as long as the rest."""
    start = start[:START_BYTES_MAX]
    for at, byte in enumerate(start):
        if byte not in _NAME_BYTES:
            return (start[:at] + bytes((min(byte, 0x7F),))).decode()
    return start.decode()


def _is_prefix(text: str) -> bool:
    """Whether keys of a store may begin with ``text``."""
    try:
        check_prefix(text)
    except InvalidInput:
        return False
    return True


def _is_repo_name(name: str) -> bool:
    try:
        check_repo(name)
    except InvalidInput:
        return False
    return True
