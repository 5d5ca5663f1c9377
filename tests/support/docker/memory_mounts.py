"""NodeMounts in memory, with faults: mounts that are dead, stuck, slow or used, as a test says."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lodefs.chunkstore.errors import (
    DeadlineExceeded,
    Denied,
    InUse,
    InvalidInput,
    NotFound,
    Unavailable,
)
from lodefs.mount.helper.interface import MountStatus, ResolvedCommit, Source, Traffic

T = TypeVar("T")


@dataclass
class Repo:
    """Branches and tags with their commits, and the directories of every commit.

    ``token``: what a source's token file has to hold; "": the repository is open to all.
    """

    revisions: dict[str, str]
    directories: frozenset[bytes] = frozenset({b""})
    files: int = 3
    size_bytes: int = 3000
    token: str = ""


@dataclass
class Made:
    """A mount."""

    source: Source
    commit: str
    alive: bool = True
    supervised: bool = True
    traffic: Traffic | None = field(default_factory=Traffic)


class Gate:
    """A method that is stuck until it is let go, or its time is over."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()


class MemoryMounts:
    """NodeMounts without a kernel. Faults come from ``hold``, ``fail`` and ``fail_after``."""

    def __init__(self, repos: Mapping[str, Repo]) -> None:
        self.repos = dict(repos)
        self.mounts: dict[str, Made] = {}
        self.pins: dict[tuple[str, str, bytes], int] = {}  # repository, commit, path
        self.renewed: list[tuple[str, str]] = []  # place, token
        self.calls: Counter[str] = Counter()
        self.shown: dict[str, frozenset[int]] = {}  # whose namespaces show what
        self.are_all_shown = False
        self.is_blind = False  # to other namespaces
        self.aborted: list[str] = []
        self._lock = threading.Lock()
        self._gates: dict[str, Gate] = {}
        self._before: dict[str, list[BaseException]] = defaultdict(list)
        self._after: dict[str, list[BaseException]] = defaultdict(list)

    # what a test does to it

    @contextmanager
    def hold(self, method: str) -> Iterator[Gate]:
        """Calls of a method wait inside the block; ``reached`` says that one does."""
        gate = self._gates[method] = Gate()
        try:
            yield gate
        finally:
            gate.open.set()
            self._gates.pop(method, None)

    def fail(self, method: str, error: BaseException, times: int = 1) -> None:
        """The next calls raise instead of acting."""
        self._before[method] += [error] * times

    def fail_after(self, method: str, error: BaseException) -> None:
        """The next call acts, and raises then."""
        self._after[method].append(error)

    def kill(self, place: str, *, wholly: bool = True) -> None:
        """End a mount's processes, or its supervisor only."""
        made = self.mounts[place]
        made.alive, made.supervised = not wholly, False

    # NodeMounts

    def resolve(self, source: Source, rev: str, timeout_s: float) -> ResolvedCommit:
        """The commit that a revision is now."""
        return self._call("resolve", timeout_s, lambda: self._resolve(source, rev))

    def mount(self, source: Source, commit: str, place: str, timeout_s: float) -> None:
        """Mount a commit on a directory."""
        self._call("mount", timeout_s, lambda: self._mount(source, commit, place))

    def unmount(self, place: str, timeout_s: float, *, abort: bool = False) -> None:
        """Take a mount away."""
        self._call("unmount", timeout_s, lambda: self.mounts.pop(place, None))
        if abort:
            self.aborted.append(place)

    def list_mounts(
        self, timeout_s: float, is_wanted: Callable[[str], bool] = lambda _place: True
    ) -> list[MountStatus]:
        """All mounts."""
        found = self._call("standing", timeout_s, self._standing)
        return [one for one in found if is_wanted(one.place)]

    def look(self, place: str, timeout_s: float) -> MountStatus | None:
        """One mount."""

        def act() -> MountStatus | None:
            return next((one for one in self._standing() if one.place == place), None)

        return self._call("look", timeout_s, act)

    def renew(self, source: Source, place: str, timeout_s: float) -> None:
        """Another token."""

        def act() -> None:
            self._resolve(source, self._made(place).commit)
            self.renewed.append((place, _token(source)))

        self._call("renew", timeout_s, act)

    def revive(self, place: str, timeout_s: float) -> None:
        """A supervisor for a mount without one."""
        self._call("revive", timeout_s, lambda: self._revive(place))

    def traffic(self, place: str, timeout_s: float) -> Traffic | None:
        """What was read through a mount."""
        return self._call("traffic", timeout_s, lambda: self._made(place).traffic)

    def showing(self, places: Collection[str]) -> Mapping[str, frozenset[int]]:
        """Whose other namespaces show mounts."""

        def act() -> dict[str, frozenset[int]]:
            if self.is_blind:
                raise Unavailable("not all processes can be seen")
            if self.are_all_shown:
                return dict.fromkeys(places, frozenset({0}))
            return {place: self.shown[place] for place in places if self.shown.get(place)}

        return self._call("showing", 0.0, act)

    def pin(self, source: Source, commit: str, pin_s: int, timeout_s: float) -> None:
        """Keep a commit's data in the cache."""

        def act() -> None:
            self._resolve(source, commit)
            self.pins[source.repo, commit, source.path] = pin_s

        self._call("pin", timeout_s, act)

    def unpin(self, source: Source, commit: str, timeout_s: float) -> None:
        """Let it go, and what is below it."""

        def act() -> None:
            for repo, pinned, path in list(self.pins):
                top = source.path
                below = not top or path == top or path.startswith(top + b"/")
                if (repo, pinned) == (source.repo, commit) and below:
                    del self.pins[repo, pinned, path]

        self._call("unpin", timeout_s, act)

    def _call(self, method: str, timeout_s: float, act: Callable[[], T]) -> T:
        self.calls[method] += 1
        gate = self._gates.get(method)
        if gate is not None:
            gate.reached.set()
            if not gate.open.wait(timeout_s):
                raise DeadlineExceeded(f"{method} is not done after {timeout_s:g} s")
        if self._before[method]:
            raise self._before[method].pop(0)
        with self._lock:
            result = act()
        if self._after[method]:
            raise self._after[method].pop(0)
        return result

    def _resolve(self, source: Source, rev: str) -> ResolvedCommit:
        repo = self.repos.get(source.repo)
        if repo is None:
            raise NotFound(f"there is no repository {source.repo}")
        if repo.token and _token(source) != repo.token:
            raise Denied(f"{source.repo}: the token is wrong or missing")
        commit = rev if rev in repo.revisions.values() else repo.revisions.get(rev)
        if commit is None:
            raise NotFound(f"{source.repo} has no revision {rev}")
        if source.path not in repo.directories:
            raise InvalidInput(f"{source.repo}@{rev} has no directory {source.path.decode()!r}")
        return ResolvedCommit(commit, repo.files, repo.size_bytes)

    def _mount(self, source: Source, commit: str, place: str) -> None:
        there = self.mounts.get(place)
        if there is not None and there.alive:
            raise InUse(f"{place} is a living mount")
        path = Path(place)
        if path.is_symlink() or not path.is_dir() or any(path.iterdir()):
            raise InvalidInput(f"{place} is no empty directory")
        self._resolve(source, commit)
        self.mounts[place] = Made(source, commit)

    def _standing(self) -> list[MountStatus]:
        return [
            MountStatus(place, m.source.repo, m.commit, m.source.path, m.alive, m.supervised)
            for place, m in self.mounts.items()
        ]

    def _revive(self, place: str) -> None:
        made = self._made(place)
        if not made.alive:
            raise NotFound(f"nobody answers for the mount on {place}")
        made.supervised = True

    def _made(self, place: str) -> Made:
        if place not in self.mounts:
            raise NotFound(f"nothing is mounted on {place}")
        return self.mounts[place]


def _token(source: Source) -> str:
    if not source.token_file:
        return ""
    try:
        return Path(source.token_file).read_text().strip()
    except OSError as error:
        raise InvalidInput(f"token_file {source.token_file}: {error.strerror}") from error
