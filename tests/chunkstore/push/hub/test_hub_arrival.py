"""Files of the hub arrive on a branch: in which order, how far, and what is refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import Corrupt, InvalidInput, Unavailable
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.format.foreign.hub import Tag
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.push.hub import hub_arrival
from lodefs.chunkstore.push.hub.growing_branch import growing_branch
from lodefs.chunkstore.push.hub.hub_arrival import Arrival, Earlier
from lodefs.chunkstore.push.hub.hub_listing import HubCommit, HubFile, store_listing
from lodefs.chunkstore.push.remote.remote_files import Piece
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.hub_server import etag_of
from tests.support.chunkstore.memory_objects import MemoryObjects

PIECE_BYTES = 64 << 10
OF_HUB = HubCommit("model", "org/name", "0123456789" * 4)
LARGE = Random(7).randbytes(5 * PIECE_BYTES + 1)
OTHER = Random(8).randbytes(3 * PIECE_BYTES)
FILES = {"a/large": LARGE, "a/other": OTHER, "empty": b"", "z": b"small"}


class Hub:
    """Implements Ranges. ``reads`` are the paths and offsets that it was asked for; from the read
    numbered ``away_at`` on it does not answer."""

    def __init__(self, files: Mapping[str, bytes], away_at: int = 1 << 30) -> None:
        self.files = dict(files)
        self.reads: list[tuple[str, int]] = []
        self.away_at = away_at

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        self.reads.append((path.decode(), offset))
        if len(self.reads) > self.away_at:
            raise Unavailable("the hub is away")
        data = self.files[path.decode()]
        return Piece(data[offset : offset + size_bytes], len(data), "")


class World:
    """A store with the listing of FILES."""

    def __init__(self, folder: Path, files: Mapping[str, bytes] = FILES) -> None:
        self.store = create_store(MemoryObjects())
        self.options = PushOptions("", "", 0, folder / "index", workers=0)
        listed = [HubFile(path, Tag(etag_of(data), len(data))) for path, data in files.items()]
        self.listing = store_listing(self.store, OF_HUB, "r", listed, self.options)

    def arrive(
        self,
        remote: Hub,
        *wanted: bytes,
        clock_s: Iterable[float] = (),
        earlier: Earlier | None = None,
    ) -> CommitId:
        """Lets the files arrive; ``wanted`` is waited for from the first moment on."""
        waiting, times = [wanted], iter(clock_s)
        with growing_branch(self.store, "r", "coming", self.options) as branch:
            arrival = Arrival(
                branch,
                self.store.commit("r", self.listing).root,
                remote,
                earlier=() if earlier is None else (earlier,),
                wanted=lambda: waiting.pop() if waiting else (),
                clock_s=lambda: next(times, 1e9),
            )
            return arrival.run()

    def contents(self, rev: str = "coming") -> dict[str, bytes]:
        """What has come until now."""
        commit = self.store.resolve("r", rev)
        found = in_commit(self.store, "r", commit.hex())
        return {path.decode(): one.content for path, one in found.items() if one.content}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_arrival, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(hub_arrival, "REQUESTS_MAX", 1)  # so that they come in one order


def test_whole(tmp_path: Path) -> None:
    """The branch has all files in the end, and each byte of them was asked for once, in order."""
    world, remote = World(tmp_path), Hub(FILES)
    commit = world.arrive(remote)
    found = in_commit(world.store, "r", commit.hex())
    assert {path.decode(): one.content for path, one in found.items() if path != b"a"} == FILES
    offsets = [n * PIECE_BYTES for n in range(6)]
    assert remote.reads[:6] == [("a/large", offset) for offset in offsets]
    assert len(remote.reads) == len(set(remote.reads)) == 10
    assert verify(world.store, None, data=True, progress=Progress()).problems == []


def test_wanted_files_are_first(tmp_path: Path) -> None:
    """Files that somebody waits for take turns before the rest; names that are not listed, or are
    whole, cost nothing."""
    world, remote = World(tmp_path), Hub(FILES)
    world.arrive(remote, b"a/other", b"z", b"none", b"a", b"empty")
    assert {path for path, _ in remote.reads[:2]} == {"a/other", "z"}
    assert [path for path, _ in remote.reads[:4]].count("a/other") == 3
    assert len(remote.reads) == 10


def test_beginnings_can_be_read(tmp_path: Path) -> None:
    """While somebody waits, what has come is committed every second; the hub that goes away leaves
    the beginning of a file, and the next one goes on from there."""
    world = World(tmp_path)
    with pytest.raises(Unavailable):
        world.arrive(Hub(FILES, away_at=3), b"a/large", clock_s=map(float, range(100)))
    assert world.contents() == {"a/large": LARGE[: 3 * PIECE_BYTES]}
    assert len([*world.store.refs("r").history("branches", "coming")]) >= 3
    remote = Hub(FILES)
    world.arrive(remote)
    assert remote.reads[0] == ("a/large", 3 * PIECE_BYTES)
    assert len(remote.reads) == 10 - 3
    assert world.contents() == {path: data for path, data in FILES.items() if data}
    assert verify(world.store, None, data=True, progress=Progress()).problems == []


@pytest.mark.parametrize("sent", [OTHER, LARGE[:-1], LARGE + b"x", LARGE[:-1] + b"?"])
def test_a_hub_that_lies(tmp_path: Path, sent: bytes) -> None:
    """A file with another size or content than listed never is whole, and its beginning is not
    kept, so that it can be read anew."""
    world = World(tmp_path)
    with pytest.raises(Corrupt, match="a/large"):
        world.arrive(Hub({**FILES, "a/large": sent}), b"a/large", clock_s=map(float, range(100)))
    assert "a/large" not in world.contents()
    world.arrive(Hub(FILES))
    assert world.contents()["a/large"] == LARGE


def test_a_slow_file_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are committed while one file hangs, also one that is wanted only then."""
    monkeypatch.setattr(hub_arrival, "REQUESTS_MAX", 8)
    monkeypatch.setattr(hub_arrival, "WAKE_S", 0.01)
    world, release = World(tmp_path), threading.Event()

    class Slow(Hub):
        def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
            if path == b"a/large":
                assert release.wait(60)
            return super().read(path, offset, size_bytes)

    with growing_branch(world.store, "r", "coming", world.options) as branch:
        times = count(0.0, 0.1)

        def wanted() -> Iterable[bytes]:
            head = world.store.refs("r").latest("branches", "coming")
            if head is not None and set(world.contents()) == {"a/other", "z"}:
                release.set()
            return (b"a/large",)

        listing = world.store.commit("r", world.listing).root
        arrival = Arrival(branch, listing, Slow(FILES), wanted=wanted, clock_s=lambda: next(times))
        arrival.run()
    assert release.is_set()
    assert world.contents()["a/large"] == LARGE


def test_equal_files_of_an_earlier_commit(tmp_path: Path) -> None:
    """They are taken from it, and not asked for."""
    world = World(tmp_path)
    commit = world.arrive(Hub(FILES))
    roots = [world.store.commit("r", one).root for one in (world.listing, commit)]
    files = {**FILES, "z": b"SMALL", "a/new": b"new"}
    listed = [HubFile(path, Tag(etag_of(data), len(data))) for path, data in files.items()]
    other = OF_HUB._replace(sha="f" * 40)
    world.listing = store_listing(world.store, other, "r", listed, world.options)
    head = world.store.refs("r").latest("branches", "coming")
    assert head is not None
    world.store.refs("r").advance("branches", "coming", None, expected_sequence=head.sequence)
    remote = Hub(files)
    world.arrive(remote, earlier=Earlier(*roots))
    assert sorted(remote.reads) == [("a/new", 0), ("z", 0)]
    assert world.contents() == {path: data for path, data in files.items() if data}


def test_tags() -> None:
    """Tags keep their form, also those that were stored without a size."""
    sha256 = hashlib.sha256(b"").hexdigest()
    assert hub.encode_tag(Tag(sha256, 0)) == f"{sha256} 0".encode()
    assert hub.decode_tag(f"{sha256} 12".encode()) == Tag(sha256, 12)
    assert hub.decode_tag(b"a" * 40) == Tag("a" * 40, -1)
    for target in (b"../x", b"a" * 40 + b" -1", b"a" * 40 + b" 01", b"a" * 41, b""):
        assert hub.decode_tag(target) is None
    for etag, size in (("x", 1), (sha256, -1), (sha256, 1 << 70), (sha256, "1x"), (None, 1)):
        with pytest.raises(InvalidInput):
            hub.checked_tag(etag, size)
