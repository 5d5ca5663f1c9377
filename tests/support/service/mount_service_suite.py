"""The contract of MountService as tests: every implementation passes them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from lodefs.chunkstore.errors import AlreadyExists, Denied, InvalidInput, NotFound
from lodefs.mount.service.interface import MountService, Source, User, Wanted

TIMEOUT_S = 60.0


@dataclass
class ServiceGiven:
    """What an implementation is tried with.

    ``wanted`` is of a repository with a branch ``main``, a directory ``directory`` and a file
    ``file``; ``secret`` is of one that is opened by ``token`` alone.
    """

    service: MountService
    wanted: Wanted
    directory: bytes
    file: bytes
    secret: Wanted
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

    def test_health(self, given: ServiceGiven) -> None:
        """A mount that works has no problem, and says what it is of."""
        service = given.service
        held = service.acquire(User("v1", "/t1"), given.wanted, None, TIMEOUT_S)
        health = service.health("v1", TIMEOUT_S)
        assert health.held == msgspec.structs.replace(held, is_new=False)
        assert health.problem == ""
        service.ping(TIMEOUT_S)


def with_source(wanted: Wanted, **changes: object) -> Wanted:
    """The same of another source."""
    source: Source = msgspec.structs.replace(wanted.source, **changes)
    return msgspec.structs.replace(wanted, source=source)
