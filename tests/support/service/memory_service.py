"""MountService in memory, with faults, and targets without a kernel."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Denied,
    InUse,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.mount.helper.interface import ResolvedCommit
from lodefs.mount.kernel.mount_table import FS_TYPE, OVERLAY, Mount
from lodefs.mount.service.interface import Health, Holding, MountClaim, MountHandle, User
from tests.support.docker.memory_mounts import Gate, Repo
from tests.support.docker.memory_writer import MemoryWriter


@dataclass
class MemoryHeld:
    """A mount, what its users asked for, and the token that opened it."""

    wanted: MountClaim
    held: MountHandle
    token: str | None
    users: dict[User, MountClaim] = field(default_factory=dict)
    counts: Counter[User] = field(default_factory=Counter)

    def add(self, user: User, wanted: MountClaim) -> None:
        """One user more; one that is counted once more."""
        self.users[user] = wanted
        self.counts[user] += 1 if user.is_counted else 1 - self.counts[user]

    def drop(self, user: User) -> None:
        """Once less."""
        self.counts[user] -= 1
        if self.counts[user] <= 0:
            self.users.pop(user, None)
            del self.counts[user]


class MemoryService:
    """See MountService. Mounts are lines of ``MemoryTargets``, if there is one."""

    def __init__(self, repos: dict[str, Repo], root: Path) -> None:
        self.repos = repos
        self.root = root
        self.mounts: list[MemoryHeld] = []
        self.problem = ""
        self.failure: LodefsError | None = None  # of all calls
        self._gate: Gate | None = None
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[Gate]:
        """Acquires wait inside the block, until their time is over."""
        self._gate = Gate()
        try:
            yield self._gate
        finally:
            self._gate.open.set()
            self._gate = None

    def resolve(self, wanted: MountClaim, token: str | None, timeout_s: float) -> ResolvedCommit:
        """See MountService."""
        self.ping(timeout_s)
        source = wanted.source
        repo = self.repos.get(source.repo)
        if repo is None:
            raise NotFound(f"there is no repository {source.repo}")
        if repo.token and token != repo.token:
            raise Denied(f"{source.repo}: the token is wrong or missing")
        known = wanted.rev in repo.revisions.values()
        commit = wanted.rev if known else repo.revisions.get(wanted.rev)
        if commit is None:
            raise NotFound(f"{source.repo} has no revision {wanted.rev}")
        if source.path not in repo.directories:
            raise InvalidInput(f"{source.repo} has no directory {source.path.decode()!r}")
        return ResolvedCommit(commit, repo.files, repo.size_bytes)

    def acquire(
        self, user: User, wanted: MountClaim, token: str | None, timeout_s: float
    ) -> MountHandle:
        """See MountService."""
        if self._gate is not None:
            self._gate.reached.set()
            if not self._gate.open.wait(timeout_s):
                raise DeadlineExceeded(f"not done after {timeout_s:g} s")
        self.ping(timeout_s)
        with self._lock:
            for mount in self.mounts:
                wishes = [w for u, w in mount.users.items() if u.wishes_of == user.wishes_of]
                if any(wish != wanted for wish in wishes):
                    raise AlreadyExists(f"volume {user.volume} is in use with other options")
                if wishes:
                    return self._again(mount, user, wanted, token, timeout_s)
            found = self.resolve(wanted, token, timeout_s)
            mount = self._of(wanted, found, token)
            mount.add(user, wanted)
            return msgspec.structs.replace(mount.held, is_new=True)

    def adopt(
        self,
        user: User,
        wanted: MountClaim,
        token: str | None,
        place: str,
        found: ResolvedCommit,
        timeout_s: float,
    ) -> None:
        """See MountService. Nobody has mounted anything before."""
        raise NotFound(f"{place}: there is no mount")

    def release(self, user: User, timeout_s: float) -> None:
        """See MountService."""
        self.ping(timeout_s)
        with self._lock:
            for mount in self.mounts:
                mount.drop(user)

    def forget(self, driver: str, volume: str, older_s: float, timeout_s: float) -> int:
        """See MountService. All users count as young, but where none is young."""
        for mount in self.mounts:
            for user in list(mount.users):
                if user.is_counted and user.wishes_of[:2] == (driver, volume) and older_s < 0:
                    del mount.users[user], mount.counts[user]
        return sum(held.references for held in self.holdings(driver, volume, timeout_s))

    def holdings(self, driver: str, volume: str, timeout_s: float) -> list[Holding]:
        """See MountService."""
        found: dict[str, Holding] = {}
        for mount in self.mounts:
            for user, count in mount.counts.items():
                if user.driver != driver or volume not in ("", user.volume):
                    continue
                there = found.get(user.volume, Holding(user.volume))
                if user.keeps_data:
                    more: dict[str, object] = {"kept_commit": mount.held.commit}
                else:
                    more = {
                        "place": mount.held.place,
                        "references": there.references + count,
                    }
                found[user.volume] = msgspec.structs.replace(there, **more)
        return [found[name] for name in sorted(found)]

    def health(self, volume: str, timeout_s: float) -> Health:
        """See MountService."""
        self.ping(timeout_s)
        for mount in self.mounts:
            if any(user.wishes_of == ("", volume, False) for user in mount.users):
                return Health(mount.held, self.problem)
        raise NotFound(f"volume {volume} has no mount")

    def ping(self, timeout_s: float) -> None:
        """See MountService."""
        if self.failure is not None:
            raise self.failure

    def users(self) -> set[User]:
        """Who holds a mount."""
        return {user for mount in self.mounts for user in mount.users}

    def _again(
        self, mount: MemoryHeld, user: User, wanted: MountClaim, token: str | None, timeout_s: float
    ) -> MountHandle:
        if token is not None and token != mount.token:
            self.resolve(wanted, token, timeout_s)
            mount.token = token
        is_new = user not in mount.users
        mount.add(user, wanted)
        return msgspec.structs.replace(mount.held, is_new=is_new)

    def _of(self, wanted: MountClaim, found: ResolvedCommit, token: str | None) -> MemoryHeld:
        for mount in self.mounts:
            same = (mount.wanted.source, mount.held.commit, mount.token)
            if same == (wanted.source, found.commit, token):
                return mount
        place = str(self.root / f"m{len(self.mounts)}")
        held = MountHandle(place, found.commit, found.files, found.size_bytes)
        self.mounts.append(MemoryHeld(wanted, held, token))
        return self.mounts[-1]


class MemoryTargets:
    """See Targets: what is mounted where is a dictionary; directories are real ones."""

    def __init__(self, service: MemoryService) -> None:
        self.service = service
        self.bound: dict[str, tuple[str, bool]] = {}  # place and noexec, by target
        self.writers: set[str] = set()  # targets that take changes
        self.writer: MemoryWriter | None = None
        self.foreign: set[str] = set()
        self.others: dict[str, str] = {}  # devices of mounts that the service has no more
        self.unreadable = False
        self.is_blind = False  # to the mounts of the service

    def shown(self, target: str) -> Mount | None:
        """What is mounted there."""
        if target in self.foreign:
            return Mount(target, "tmpfs", b"none", "0:99")
        places = [mount.held.place for mount in self.service.mounts]
        place = self.bound[target][0] if target in self.bound else target
        if self.writer is not None and place in self.writer.mounted:
            return Mount(target, OVERLAY, b"lodefs:", f"0:{place}")
        if place in self.others:
            return Mount(target, FS_TYPE, b"", self.others[place])
        if place not in places or (self.is_blind and target == place):
            return None
        return Mount(target, FS_TYPE, b"", f"0:{places.index(place)}")

    def same_mount(self, place: str, target: str) -> bool:
        """Whether a target shows it."""
        return target in self.bound and self.bound[target][0] == place

    def make(self, target: str) -> None:
        """Its directory."""
        if os.path.islink(target):
            raise InvalidInput(f"target_path {target} is a symlink")
        Path(target).mkdir(exist_ok=True)

    def bind(self, place: str, target: str, *, noexec: bool, writes: bool = False) -> None:
        """Show it."""
        self.bound[target] = (place, noexec)
        self.restrict(target, noexec=noexec, writes=writes)

    def restrict(self, target: str, *, noexec: bool, writes: bool = False) -> None:
        """Take rights off it."""
        self.bound[target] = (self.bound[target][0], noexec)
        (self.writers.add if writes else self.writers.discard)(target)

    def unbind(self, target: str) -> None:
        """Take it off."""
        if target in self.foreign:
            raise InUse(f"{target}: something else is mounted here")
        self.bound.pop(target, None)

    def remove(self, target: str) -> None:
        """Its directory."""
        with suppress(OSError):
            Path(target).rmdir()

    def read_root(self, target: str) -> None:
        """As it can be read."""
        if self.unreadable:
            raise Unavailable(f"{target}: its root cannot be read")
