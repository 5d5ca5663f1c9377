"""The table of open files against a model of the kernel that demands one mode per inode."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lodefs.chunkstore.errors import Corrupt
from lodefs.mount.shm.open_files import CACHED, Opened, OpenFileTable
from tests.support.mount.mounts import in_child

INOS = [2, 1 << 62 | 2, 0x0200000000000002]
VIEWS = 3


class KilledError(Exception):
    """Stands for SIGKILL in the middle of a change of the table."""


class Mortal:
    """A column of the table; a store beyond ``left`` never happens."""

    left: int | None = None

    def __init__(self, column: memoryview) -> None:
        self._column = column

    def __getitem__(self, index: object) -> object:
        return self._column[index]  # type: ignore[call-overload]

    def __setitem__(self, index: int, value: int) -> None:
        if Mortal.left is not None:
            if not Mortal.left:
                raise KilledError
            Mortal.left -= 1
        self._column[index] = value


def mortal(handles: OpenFileTable) -> OpenFileTable:
    """The same table; its process may be killed between two stores."""
    for name in ("_head", "_inos", "_requests", "_backings"):
        setattr(handles, name, Mortal(getattr(handles, name)))
    return handles


@dataclass
class Request:
    """An OPEN that is not answered. ``offer``: the backing file that a worker is about to name."""

    ino: int
    offer: int | None = None


@dataclass
class Kernel:
    """What the kernel knows: open files by inode, and backing files that have an id."""

    open: dict[int, list[Opened]] = field(default_factory=dict)
    backings: set[int] = field(default_factory=set)
    ids: int = 0

    def backing_open(self) -> int:
        self.ids += 1
        self.backings.add(self.ids)
        return self.ids

    def opened(self, ino: int, opened: Opened) -> None:
        """fuse_file_io_open of fs/fuse/iomode.c: EIO where these do not hold."""
        files = self.open.setdefault(ino, [])
        assert all(file.backing == opened.backing for file in files)
        if opened.backing != CACHED:
            assert opened.backing in self.backings
        files.append(opened)


class Opening(RuleBasedStateMachine):
    """Files are opened and closed through any worker, and workers are killed."""

    rows_max = 64
    exact = True

    def __init__(self) -> None:
        super().__init__()
        Mortal.left = None
        table = OpenFileTable.create(rows_max=self.rows_max)
        self.fd = table.fd
        self.views = [
            table,
            *(OpenFileTable(self.fd, rows_max=self.rows_max) for _ in range(VIEWS - 1)),
        ]
        self.views = [mortal(view) for view in self.views]
        self.kernel = Kernel()
        self.opens: dict[int, Request] = {}
        self.releases: list[int] = []
        self.unique = 0
        self.kills = 0

    def teardown(self) -> None:
        Mortal.left = None
        while self.opens:
            self.finish(self.views[0], next(iter(self.opens)), offers=False)
        for files in self.kernel.open.values():
            self.releases += [file.handle for file in files]
        while self.releases:
            self.release(self.views[0], self.releases.pop())
        if self.exact:
            assert self.views[0].count() == 0
            assert len(self.kernel.backings) <= self.kills
        os.close(self.fd)

    def finish(self, view: OpenFileTable, request: int, *, offers: bool) -> None:
        """A worker goes on with an OPEN until it is answered, as passthrough.Opens does."""
        asked = self.opens[request]
        opened = view.enter(asked.ino, request) if asked.offer is None else None
        if opened is None:
            if asked.offer is None:
                asked.offer = self.kernel.backing_open() if offers else CACHED
            opened = view.enter(asked.ino, request, asked.offer)
            assert opened is not None
        if asked.offer is not None and asked.offer != opened.backing:
            self.kernel.backings.discard(asked.offer)
        del self.opens[request]
        self.kernel.opened(asked.ino, opened)

    def release(self, view: OpenFileTable, handle: int) -> None:
        backing = view.leave(handle)
        if backing != CACHED:
            self.kernel.backings.remove(backing)

    @rule(ino=st.sampled_from(INOS))
    def ask_to_open(self, ino: int) -> None:
        self.unique += 2
        self.opens[self.unique] = Request(ino)

    @precondition(lambda self: self.opens)
    @rule(data=st.data(), view=st.integers(0, VIEWS - 1), offers=st.booleans())
    def look(self, data: st.DataObject, view: int, offers: bool) -> None:
        """A worker finds that nobody has the file open, and gets a backing file or none."""
        request = self.opens[number := data.draw(st.sampled_from(sorted(self.opens)))]
        if request.offer is None:
            opened = self.views[view].enter(request.ino, number)
            if opened is None:
                request.offer = self.kernel.backing_open() if offers else CACHED
            else:
                del self.opens[number]
                self.kernel.opened(request.ino, opened)

    @precondition(lambda self: self.opens)
    @rule(data=st.data(), view=st.integers(0, VIEWS - 1), offers=st.booleans())
    def answer(self, data: st.DataObject, view: int, offers: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.opens)))
        self.finish(self.views[view], number, offers=offers)

    @precondition(lambda self: self.opens)
    @rule(
        data=st.data(),
        view=st.integers(0, VIEWS - 1),
        offers=st.booleans(),
        stores=st.integers(0, 5),
    )
    def die_while_opening(self, data: st.DataObject, view: int, offers: bool, stores: int) -> None:
        """The worker is killed before it answers; the OPEN is sent again, and has no offer."""
        number = data.draw(st.sampled_from(sorted(self.opens)))
        request = self.opens[number]
        Mortal.left = stores
        try:
            if request.offer is None and self.views[view].enter(request.ino, number) is None:
                request.offer = self.kernel.backing_open() if offers else CACHED
            if request.offer is not None:
                self.views[view].enter(request.ino, number, request.offer)
        except KilledError:
            pass
        Mortal.left = None
        self.kills += 1
        request.offer = None

    @precondition(lambda self: any(self.kernel.open.values()))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """The kernel has forgotten a file's mode before it sends RELEASE."""
        ino = data.draw(st.sampled_from(sorted(k for k, v in self.kernel.open.items() if v)))
        self.releases.append(self.kernel.open[ino].pop().handle)

    @precondition(lambda self: self.releases)
    @rule(data=st.data(), view=st.integers(0, VIEWS - 1), twice=st.booleans())
    def count_release(self, data: st.DataObject, view: int, twice: bool) -> None:
        """Once, or again after a worker was killed before it could answer."""
        handle = self.releases.pop(data.draw(st.integers(0, len(self.releases) - 1)))
        self.release(self.views[view], handle)
        if twice:
            assert self.views[(view + 1) % VIEWS].leave(handle) == CACHED

    @precondition(lambda self: self.releases)
    @rule(data=st.data(), view=st.integers(0, VIEWS - 1), stores=st.integers(0, 3))
    def die_while_releasing(self, data: st.DataObject, view: int, stores: int) -> None:
        Mortal.left = stores
        with suppress(KilledError):
            self.views[view].leave(data.draw(st.sampled_from(self.releases)))
        Mortal.left = None
        self.kills += 1

    @invariant()
    def nothing_open_is_forgotten(self) -> None:
        """Whatever is open keeps its mode, and all views agree."""
        for ino, files in self.kernel.open.items():
            if not files:
                continue
            for view in self.views:
                found = view.backing(ino)
                assert found == files[0].backing or (
                    found is None and view.is_overflown and files[0].backing == CACHED
                )
        through = {i for i, files in self.kernel.open.items() if files and files[0].backing}
        assert through <= self.views[0].passed_through()


class Overflowing(Opening):
    """The same with hardly any rows: modes never conflict, though rows are not given back."""

    rows_max = 3
    exact = False


TestOpening = Opening.TestCase
TestOverflowing = Overflowing.TestCase
TestOpening.settings = TestOverflowing.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None
)
pytestmark = pytest.mark.slow


def test_first_mode_stays_until_the_last_close() -> None:
    """Who opens an open file gets its mode and its backing file, whatever it offers."""
    handles = OpenFileTable.create(rows_max=8)
    first = handles.enter(2, 10, CACHED)
    second = handles.enter(2, 12, 77)
    assert first is not None and second is not None
    assert (first.backing, second.backing) == (CACHED, CACHED)
    assert handles.leave(first.handle) == CACHED
    assert handles.enter(2, 14, 78) == Opened(handles.enter(2, 14).handle, CACHED)  # type: ignore[union-attr]
    for opened in (second, handles.enter(2, 14)):
        assert opened is not None
        handles.leave(opened.handle)
    assert handles.backing(2) is None
    third = handles.enter(2, 16, 79)
    fourth = handles.enter(2, 18)
    assert third is not None and fourth is not None
    assert (third.backing, fourth.backing) == (79, 79)
    assert handles.passed_through() == {2}
    assert (handles.leave(third.handle), handles.leave(fourth.handle)) == (CACHED, 79)
    assert handles.count() == 0
    os.close(handles.fd)


def test_nobody_has_it_open() -> None:
    """Without an offer, a file that nobody has open is left alone."""
    handles = OpenFileTable.create(rows_max=8)
    assert handles.enter(2, 10) is None
    assert handles.count() == 0
    os.close(handles.fd)


def test_handles_that_never_were() -> None:
    """A RELEASE of something unknown changes nothing."""
    handles = OpenFileTable.create(rows_max=8)
    opened = handles.enter(2, 10, CACHED)
    assert opened is not None
    for handle in (0, 1, opened.handle + 1, opened.handle ^ 1 << 30, (1 << 64) - 1):
        assert handles.leave(handle) == CACHED
    assert handles.count() == 1
    os.close(handles.fd)


def test_a_full_table_costs_passthrough_and_nothing_else() -> None:
    """Beyond the last row files are opened without one, new files in cached mode only."""
    handles = OpenFileTable.create(rows_max=2)
    one, two = handles.enter(2, 10, 7), handles.enter(4, 12, 8)
    assert one is not None and two is not None
    assert handles.enter(2, 14, 9) == Opened(0, 7)
    assert handles.enter(6, 16, 9) == Opened(0, CACHED)
    assert handles.is_overflown
    assert handles.leave(one.handle) == CACHED  # somebody without a row has it open
    assert handles.leave(two.handle) == 8
    assert handles.backing(2) == 7
    assert handles.enter(6, 18, 9).backing == CACHED  # type: ignore[union-attr]
    os.close(handles.fd)


def test_a_damaged_file_is_not_opened_again_before_its_last_close() -> None:
    """Its rows and its backing file are given back as ever; cached files are never damaged."""
    handles = OpenFileTable.create(rows_max=8)
    one, two, other = handles.enter(2, 10, 7), handles.enter(2, 12), handles.enter(4, 14, CACHED)
    assert one is not None and two is not None and other is not None
    handles.spoil(2)
    handles.spoil(4)
    for request in (10, 16):
        with pytest.raises(Corrupt, match=r"inode 2 .* cut; close it everywhere"):
            handles.enter(2, request, 8)
    assert (handles.backing(2), handles.passed_through()) == (7, {2})
    assert handles.enter(4, 18) is not None
    assert (handles.leave(one.handle), handles.leave(two.handle)) == (CACHED, 7)
    assert handles.enter(2, 16, 9) == Opened(handles.enter(2, 16).handle, 9)  # type: ignore[union-attr]
    os.close(handles.fd)


def test_rows_are_used_again() -> None:
    """Files that are opened and closed all the time need no more rows."""
    handles = OpenFileTable.create(rows_max=2)
    for request in range(2, 2000, 2):
        opened = handles.enter(request << 8 | 2, request, request)
        assert opened is not None
        assert handles.leave(opened.handle) == request
    assert not handles.is_overflown
    os.close(handles.fd)


def test_the_first_refusal_counts() -> None:
    """An errno is noted once, for all processes."""
    handles = OpenFileTable.create(rows_max=2)
    other = OpenFileTable(handles.fd, rows_max=2)
    assert (handles.refused, handles.granted) == (0, False)
    assert handles.refuse(1)
    assert not other.refuse(40)
    assert other.refused == 1
    other.grant()
    assert handles.granted
    os.close(handles.fd)


def test_one_of_all_has_its_turn() -> None:
    """What one process does in a period, the others leave alone; a clock that went back is no
    reason to wait."""
    handles = OpenFileTable.create(rows_max=2)
    assert [handles.turn(now_s, 5) for now_s in (100, 104.9, 105, 106, 50, 51)] == [
        True, False, True, False, True, False
    ]  # fmt: skip
    os.close(handles.fd)


def test_as_many_rows_as_a_handle_can_name() -> None:
    """More rows than fit into a handle's number are refused."""
    for rows_max in (0, 1 << 19):
        with pytest.raises(ValueError, match="rows_max"):
            OpenFileTable.create(rows_max=rows_max)


def test_processes_share_it_and_a_killed_one_gives_the_lock_up() -> None:
    """Children see each other's rows; one that is killed inside holds nobody up."""
    script = """
import os, signal
from lodefs.mount.shm.open_files import OpenFileTable
handles = OpenFileTable.create(rows_max=64)
def child(main):
    pid = os.fork()
    if not pid:
        main()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def die_inside():
    with handles._locked():
        os.kill(os.getpid(), signal.SIGKILL)
print(child(lambda: handles.enter(2, 10, 7)), child(die_inside))
print(handles.enter(2, 12).backing, handles.count())
def many(n):
    for request in range(n, n + 4000, 8):
        opened = handles.enter(4 + request % 3, request, 0)
        handles.leave(opened.handle)
pids = []
for n in (2, 4, 6, 8):
    pid = os.fork()
    if not pid:
        many(n)
        os._exit(0)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], handles.count())
"""
    assert in_child(script).splitlines() == ["0 -9", "7 2", "[0, 0, 0, 0] 2"]
