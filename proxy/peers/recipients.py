"""The nodes that ask an owner for its packs: the chunks that it sent them, and their parents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT

PACKS_MAX = 4096
SOURCES_MAX = 64  # for one pack
SOURCE_S = 600.0  # how long a source is recent
READERS_MAX = 64 * 1024  # of all packs together
ALL = range(PACK_CHUNKS_LIMIT)  # the default for chunks: all that a pack may have

# A reader has one parent for each stripe of a pack, and at most so many children in all of them.
# With as many children as stripes, each node would send what it receives, but the readers would
# form a chain; with one more, none is further from the owner than log(N, 5 / 4).
STRIPES = 4
CHILDREN = STRIPES + 1


def parent_of(position: int, stripe: int) -> int | None:
    """Returns the position of the reader that the one at ``position`` asks for a stripe of a pack:
    it announced the pack earlier. None is the owner."""
    return None if position == 0 else (STRIPES * (position - 1) + stripe) // CHILDREN


@dataclass(slots=True)
class PackRecipients:
    """The recipients of one pack: those that were sent a part of it recently, and all that said
    that they will read it, in the order in which they said so, with the parents of each."""

    sources: OrderedDict[str, Recipient] = field(default_factory=OrderedDict)
    readers: list[str] = field(default_factory=list)
    parents: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    joined_s: float = 0.0  # when the last reader said so


@dataclass(slots=True)
class Recipients:
    """The peers that were sent chunks of packs, or will read them, by pack. For one thread.

    Peers that got a part of a pack become its sources, so that an owner sends it to a few and
    refers the others to them: filling N nodes takes O(log N) rounds, not O(N). Peers that say that
    they will read a pack are told at once which of them they ask. Bounded: the least recently used
    packs, the oldest sources of a pack, and readers of long ago are dropped.
    """

    packs_max: int = PACKS_MAX
    sources_max: int = SOURCES_MAX
    readers_max: int = READERS_MAX
    _packs: OrderedDict[bytes, PackRecipients] = field(default_factory=OrderedDict)
    _readers: int = 0

    def parents(
        self, pack: bytes, address: str, now_s: float, usable: Callable[[str], bool]
    ) -> Sequence[str | None]:
        """Returns the parents of a reader of the pack, one for each stripe; None is this node. They
        are usable, and said earlier than the reader that they will read the pack."""
        found = self._of(pack)
        if now_s - found.joined_s > SOURCE_S:
            self._forget(found)
        if address not in found.parents:
            self._add(found, address)
            found.joined_s = now_s
        return [self._usable(found, address, n, usable) for n in range(STRIPES)]

    def _add(self, found: PackRecipients, address: str) -> None:
        while self._readers >= self.readers_max:
            is_alone = len(self._packs) == 1
            self._forget(found if is_alone else self._packs.popitem(last=False)[1])
        places = [parent_of(len(found.readers), stripe) for stripe in range(STRIPES)]
        found.parents[address] = tuple(None if n is None else found.readers[n] for n in places)
        found.readers.append(address)
        self._readers += 1

    def _forget(self, found: PackRecipients) -> None:
        self._readers -= len(found.readers)
        found.readers, found.parents = [], {}

    def _usable(
        self, found: PackRecipients, address: str, stripe: int, usable: Callable[[str], bool]
    ) -> str | None:
        """Returns the next node above this one that is usable."""
        parent = found.parents[address][stripe]
        while parent is not None and not usable(parent):
            parent = found.parents[parent][stripe]
        return parent

    def sent(self, pack: bytes, address: str, now_s: float, chunks: range = ALL) -> None:
        """Notes that these chunks of the pack were sent, or are being sent, to this peer."""
        sources = self._of(pack).sources
        source = sources.get(address)
        if source is None:
            if len(sources) >= self.sources_max:
                sources.popitem(last=False)
            source = sources[address] = Recipient(0, now_s)
        source.chunks |= _bits(chunks)
        source.sent_s = now_s

    def others(
        self, pack: bytes, asking: str, count: int, now_s: float, chunks: range = ALL
    ) -> list[str]:
        """Returns at most ``count`` peers that were sent all these chunks, without ``asking``
        itself. Each call begins with other peers, so that all of them are asked equally often."""
        if pack not in self._packs:
            return []
        sources = self._packs[pack].sources
        bits = _bits(chunks)
        found: list[str] = []
        for address in list(sources):
            source = sources[address]
            if now_s - source.sent_s > SOURCE_S:
                del sources[address]
            elif address != asking and source.chunks & bits == bits:
                found.append(address)
                if len(found) == count:
                    break
        for address in found:
            sources.move_to_end(address)
        return found

    def _of(self, pack: bytes) -> PackRecipients:
        """Returns the recipients of a pack, which is now the one used last."""
        found = self._packs.get(pack)
        if found is None:
            found = self._packs[pack] = PackRecipients()
            if len(self._packs) > self.packs_max:
                self._forget(self._packs.popitem(last=False)[1])
        self._packs.move_to_end(pack)
        return found


@dataclass(slots=True)
class Recipient:
    """One peer's part of one pack: ``chunks`` has a bit for each."""

    chunks: int
    sent_s: float


def _bits(chunks: range) -> int:
    return ((1 << len(chunks)) - 1) << chunks.start
