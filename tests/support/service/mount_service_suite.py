"""The contract of MountService as tests: every implementation passes them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from lodefs.chunkstore.errors import AlreadyExists, Denied, InvalidInput, NotFound
from lodefs.mount.service.interface import DOCKER, MountClaim, MountService, Source, User

TIMEOUT_S = 60.0


@dataclass
class ServiceGiven:
    """What an implementation is tried with.

    ``wanted`` is of a repository with a branch ``main``, a directory ``directory`` and a file
    ``file``; ``secret`` is of one that is opened by ``token`` alone.
    """

    service: MountService
    wanted: MountClaim
    directory: bytes
    file: bytes
    secret: MountClaim
    token: str


class MountServiceSuite:
    """Subclasses have a fixture ``given`` that makes a ServiceGiven."""

    def test_users_of_a_snapshot_share_a_mount(self, given: ServiceGiven) -> None:
        """Volumes of one snapshot are one mount; of another directory of it another one."""
        service, wanted = given.service, given.wanted
        first = service.acquire(User("v1", "/t1"), wanted, None, TIMEOUT_S)
        second = service.acquire(User("v2", "/t2"), wanted, None, TIMEOUT_S)
        part = with_source(wanted, path=given.directory)
        other = service.acquire(User("v3", "/t3"), part, None, TIMEOUT_S)
        assert first == second
        assert first.files > 0
        assert other.place != first.place
        assert other.commit == first.commit

    def test_a_commit_is_the_branch_that_it_was(self, given: ServiceGiven) -> None:
        """Who names the commit shares the mount of who named the branch."""
        service = given.service
        first = service.acquire(User("v1", "/t1"), given.wanted, None, TIMEOUT_S)
        named = msgspec.structs.replace(given.wanted, rev=first.commit)
        assert service.acquire(User("v2", "/t2"), named, None, TIMEOUT_S) == first

    def test_again_is_the_same(self, given: ServiceGiven) -> None:
        """A user that asks again has what it has, and is told so; at another target it is another
        user."""
        service, user = given.service, User("v1", "/t1")
        first = service.acquire(user, given.wanted, None, TIMEOUT_S)
        again = service.acquire(user, given.wanted, None, TIMEOUT_S)
        other = service.acquire(User("v1", "/t2"), given.wanted, None, TIMEOUT_S)
        assert [held.is_new for held in (first, again, other)] == [True, False, True]
        assert {held.place for held in (first, again, other)} == {first.place}

    def test_a_volume_does_not_change(self, given: ServiceGiven) -> None:
        """A volume with other wishes is AlreadyExists, until it is released at all targets."""
        service, user = given.service, User("v1", "/t1")
        first = service.acquire(user, given.wanted, None, TIMEOUT_S)
        part = with_source(given.wanted, path=given.directory)
        for target in ("/t1", "/t2"):
            with pytest.raises(AlreadyExists, match="v1"):
                service.acquire(User("v1", target), part, None, TIMEOUT_S)
        service.release(user, TIMEOUT_S)
        assert service.acquire(user, part, None, TIMEOUT_S).place != first.place

    def test_release_may_be_repeated(self, given: ServiceGiven) -> None:
        """Who has nothing may release it."""
        service, user = given.service, User("v1", "/t1")
        service.release(user, TIMEOUT_S)
        service.acquire(user, given.wanted, None, TIMEOUT_S)
        service.release(user, TIMEOUT_S)
        service.release(user, TIMEOUT_S)
        with pytest.raises(NotFound):
            service.health("v1", TIMEOUT_S)

    def test_what_does_not_exist_is_named(self, given: ServiceGiven) -> None:
        """A repository, revision or directory that is not there is an error that names it, and
        nobody holds anything then."""
        service, wanted = given.service, given.wanted
        for bad, name in (
            (with_source(wanted, repo="no/such-repo"), "no/such-repo"),
            (msgspec.structs.replace(wanted, rev="no-such-branch"), "no-such-branch"),
            (with_source(wanted, path=b"no-such-directory"), "no-such-directory"),
            (with_source(wanted, path=given.file), given.file.decode()),
        ):
            with pytest.raises((NotFound, InvalidInput), match=name):
                service.acquire(User("v1", "/t1"), bad, None, TIMEOUT_S)
            with pytest.raises((NotFound, InvalidInput), match=name):
                service.resolve(bad, None, TIMEOUT_S)
        with pytest.raises(NotFound):
            service.health("v1", TIMEOUT_S)

    def test_tokens(self, given: ServiceGiven) -> None:
        """The right token opens; a wrong one, or none, is Denied, also beside a mount that the
        right one has opened. The token is never told."""
        service, secret = given.service, given.secret
        service.acquire(User("v1", "/t1"), secret, given.token, TIMEOUT_S)
        for wrong in (None, "wrong-token"):
            with pytest.raises(Denied) as denied:
                service.acquire(User("v2", "/t2"), secret, wrong, TIMEOUT_S)
            assert "wrong-token" not in str(denied.value)
        with pytest.raises(Denied):
            service.acquire(User("v1", "/t1"), secret, "wrong-token", TIMEOUT_S)
        assert service.health("v1", TIMEOUT_S).problem == ""

    def test_mounts_of_dockerd_count(self, given: ServiceGiven) -> None:
        """One mount ID holds a mount as often as it was acquired, beside others of its volume."""
        service = given.service
        one, two = User("v", "id1", driver=DOCKER), User("v", "id2", driver=DOCKER)
        place = service.acquire(one, given.wanted, None, TIMEOUT_S).place
        for user in (one, two):
            service.acquire(user, given.wanted, None, TIMEOUT_S)
        assert service.forget(DOCKER, "v", 60.0, TIMEOUT_S) == 3
        for user, left in ((one, 2), (one, 1), (one, 1), (two, 0)):
            service.release(user, TIMEOUT_S)
            held = service.holdings(DOCKER, "v", TIMEOUT_S)
            assert sum(holding.references for holding in held) == left
            assert {holding.place for holding in held} <= {place}

    def test_volumes_of_drivers_are_others(self, given: ServiceGiven) -> None:
        """Of one name, they ask for what they like, share a mount, and are listed apart."""
        service = given.service
        volume = User("same", "/t1")
        held = service.acquire(volume, given.wanted, None, TIMEOUT_S)
        for number in range(70):
            user = User(f"d{number:03}", "id", driver=DOCKER)
            assert service.acquire(user, given.wanted, None, TIMEOUT_S).place == held.place
        part = with_source(given.wanted, path=given.directory)
        other = service.acquire(User("same", "id", driver=DOCKER), part, None, TIMEOUT_S)
        assert other.place != held.place
        listed = service.holdings(DOCKER, "", TIMEOUT_S)
        assert [one.volume for one in listed] == [f"d{number:03}" for number in range(70)] + [
            "same"
        ]
        assert {one.place for one in listed} == {held.place, other.place}
        service.release(volume, TIMEOUT_S)
        assert len(service.holdings(DOCKER, "", TIMEOUT_S)) == 71

    def test_data_can_be_kept_without_a_mount(self, given: ServiceGiven) -> None:
        """A user without a target holds its data; its volume's mounts are no matter of it."""
        service, keeper = given.service, User("v", "", driver=DOCKER)
        pinned = msgspec.structs.replace(given.wanted, pin_s=0)
        commit = service.acquire(keeper, pinned, None, TIMEOUT_S).commit
        [held] = service.holdings(DOCKER, "v", TIMEOUT_S)
        assert (held.kept_commit, held.place, held.references) == (commit, "", 0)
        service.acquire(User("v", "id", driver=DOCKER), given.wanted, None, TIMEOUT_S)
        [held] = service.holdings(DOCKER, "v", TIMEOUT_S)
        assert (held.kept_commit, held.references) == (commit, 1)
        service.release(keeper, TIMEOUT_S)
        [held] = service.holdings(DOCKER, "v", TIMEOUT_S)
        assert (held.kept_commit, held.references) == ("", 1)

    def test_nothing_to_adopt(self, given: ServiceGiven) -> None:
        """Where nothing is mounted there is nothing to take over."""
        service, user = given.service, User("v", "id", driver=DOCKER)
        found = service.resolve(given.wanted, None, TIMEOUT_S)
        with pytest.raises(NotFound, match="/nowhere"):
            service.adopt(user, given.wanted, None, "/nowhere", found, TIMEOUT_S)
        assert service.holdings(DOCKER, "", TIMEOUT_S) == []

    def test_health(self, given: ServiceGiven) -> None:
        """A mount that works has no problem, and says what it is of."""
        service = given.service
        held = service.acquire(User("v1", "/t1"), given.wanted, None, TIMEOUT_S)
        health = service.health("v1", TIMEOUT_S)
        assert health.held == msgspec.structs.replace(held, is_new=False)
        assert health.problem == ""
        service.ping(TIMEOUT_S)


def with_source(wanted: MountClaim, **changes: object) -> MountClaim:
    """The same of another source."""
    source: Source = msgspec.structs.replace(wanted.source, **changes)
    return msgspec.structs.replace(wanted, source=source)
