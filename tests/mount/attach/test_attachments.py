"""Who holds a mount in a namespace of their own, and when they hold it no more."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from lodefs.chunkstore.errors import InvalidInput, NoSpace, NotFound, Unavailable
from lodefs.mount.helper.interface import Source
from tests.support.docker.memory_mounts import MemoryMounts, Repo
from tests.support.docker.rig import NEW
from tests.support.service.attach_rig import AttachRig
from tests.support.service.service_rig import WAIT_S


def test_users_share_a_mount(rig: AttachRig, memory: MemoryMounts) -> None:
    """200 times by three users at once, it is one mount, and each holds it once."""
    places = []

    def attach(number: int) -> None:
        places.append(rig.attach(5001 + number % 3).place)

    threads = [Thread(target=attach, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(places) == 200
    assert set(places) == set(memory.mounts)
    assert rig.holders() == [5001, 5002, 5003]


def test_held_while_it_is_shown(rig: AttachRig, memory: MemoryMounts) -> None:
    """Who shows a mount in a namespace holds it, over a kill of the service too; when the last
    namespace is gone it is nobody's, and ends whoever kept a descriptor."""
    place = rig.attach(5001).place
    rig.later()
    rig.again()
    rig.attachments.sweep()
    rig.later()
    assert rig.holders() == [5001]
    rig.show(place)
    rig.later()
    assert rig.holders() == []
    rig.service.idle()
    assert memory.mounts == {}
    assert memory.aborted == [place]


def test_held_while_it_is_handed_out(rig: AttachRig) -> None:
    """Between the answer and the mount nobody shows it: an open connection holds it, and a moment
    after that."""
    got = rig.attachments.attach(5001, Source(repo="vision/cats"), "main", WAIT_S)
    rig.later()
    assert rig.holders() == [5001]
    rig.attachments.closed(got.user)
    rig.attachments.sweep()
    assert rig.holders() == [5001]
    rig.later()
    assert rig.holders() == []


def test_nobody_holds_for_another(rig: AttachRig) -> None:
    """A mount that only other users show is not held, but root's is: its jobs change users."""
    place = rig.attach(5001).place
    rig.attach(0)
    rig.show(place, 5002)
    rig.later()
    assert rig.holders() == [0]


def test_a_branch_is_what_it_is_now(rig: AttachRig, memory: MemoryMounts) -> None:
    """A user that holds a branch gets its new commit when it asks again, and keeps both."""
    first = rig.attach(5001)
    memory.repos["vision/cats"] = Repo({"main": NEW, "old": first.commit})
    second = rig.attach(5001)
    assert (second.commit, second.place != first.place) == (NEW, True)
    assert rig.attach(5001, rev=first.commit).place == first.place
    assert rig.holders() == [5001, 5001]


def test_a_user_has_so_many(tmp_path: Path) -> None:
    """Mounts of one user are bounded, with those that nobody uses any more but were made for it;
    other users do not notice, and what it has can be had again."""
    many = frozenset(b"d%d" % n for n in range(9))
    memory = MemoryMounts({"vision/cats": Repo({"main": NEW}, directories=many)})
    rig = AttachRig(tmp_path, memory, references_max=3)
    held = [rig.attach(5001, b"d%d" % n) for n in range(3)]
    rig.show(held[0].place)
    rig.later()
    assert len(rig.holders()) == 2
    with pytest.raises(NoSpace, match="user 5001 already has 3 mounts"):
        rig.attach(5001, b"d4")
    rig.attach(5001, b"d2/./")
    rig.attach(5002, b"d4")
    rig.service.idle()
    rig.attach(5001, b"d5")
    rig.service.end()


def test_names_are_checked(rig: AttachRig, memory: MemoryMounts) -> None:
    """What is no name is refused before anybody is asked."""
    ask = rig.attachments.attach
    for repo, rev, path in (
        ("../etc", "main", b""),
        ("", "main", b""),
        ("vision/cats", "a/../b", b""),
        ("vision/cats", "", b""),
        ("vision/cats", "main", b"../../x"),
        ("vision/cats", "main", b"a\0b"),
        ("vision/cats", "main", b"x/" * 4000),
    ):
        with pytest.raises(InvalidInput):
            ask(5001, Source(repo=repo, path=path), rev, WAIT_S)
    assert memory.calls["resolve"] == 0
    with pytest.raises(NotFound):
        ask(5001, Source(repo="no/such"), "main", WAIT_S)
    assert rig.holders() == []


def test_what_cannot_be_seen_is_held(rig: AttachRig, memory: MemoryMounts) -> None:
    """Where the kernel does not tell, nobody is released."""
    rig.attach(5001)
    memory.shown.clear()
    memory.fail("showing", Unavailable("no sight"))
    with pytest.raises(Unavailable, match="no sight"):
        rig.later()
    assert rig.holders() == [5001]
    rig.later()
    assert rig.holders() == []
