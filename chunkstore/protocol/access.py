"""Decides which local users may read which repositories: rules of shell patterns and groups.

The table [access] of the settings has the rules: ``"medical/*" = ["cardiology", "1200"]``. The
longest pattern that covers a repository decides, so that exceptions from a wide pattern are
possible. Everybody may read a repository without a pattern. The group ``"*"`` is everybody, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.system.sockets import Peer

EVERYBODY = "*"

GidOf = Callable[[str], int | None]
"""Returns the number of a group, or None if there is no such group."""


class AccessRule(NamedTuple):
    """A pattern of names, in which '*' also matches '/', and the groups that may read matching
    repositories; None: everybody."""

    pattern: str
    gids: frozenset[int] | None

    def covers(self, repo: str) -> bool:
        """Whether it is of a repository. One that nodes import from Git may have several names,
        since its server knows it with and without .git, and perhaps in any case."""
        if repo.startswith(f"{git.TREE_BELOW}/"):
            return fnmatchcase(_git_name(repo), _git_name(self.pattern))
        return fnmatchcase(repo, self.pattern)


class AccessRules(NamedTuple):
    """All rules of a node. They do not apply to the users ``free_uids``."""

    rules: tuple[AccessRule, ...] = ()
    free_uids: frozenset[int] = frozenset({0})

    def __bool__(self) -> bool:
        """Whether any rule forbids anything."""
        return any(rule.gids is not None for rule in self.rules)

    def covers(self, repo: str) -> bool:
        """Whether any of them is of a repository."""
        return any(rule.covers(repo) for rule in self.rules)

    def groups_of(self, repo: str) -> frozenset[int] | None:
        """Returns the groups that may read a repository; None: everybody."""
        found = [rule for rule in self.rules if rule.covers(repo)]
        return max(found, key=lambda rule: len(rule.pattern)).gids if found else None

    def may_read(self, peer: Peer, repo: str) -> bool:
        """Whether a user with these groups may read a repository."""
        if peer.uid in self.free_uids:
            return True
        groups = self.groups_of(repo)
        return groups is None or bool(groups & peer.gids)

    def check(self, peer: Peer, repo: str) -> None:
        """Raises: NotFound, as for a repository that does not exist."""
        if not self.may_read(peer, repo):
            raise hidden(repo)

    def kind_of(self, peer: Peer) -> frozenset[int] | None:
        """Returns a key: users with equal keys may read the same. None: they may read
        everything."""
        if peer.uid in self.free_uids:
            return None
        known: frozenset[int] = frozenset().union(*(rule.gids or () for rule in self.rules))
        return known & peer.gids


NO_RULES = AccessRules()


def _git_name(name: str) -> str:
    return name.lower().removesuffix(".git")


def hidden(repo: str) -> NotFound:
    """Returns the same error for a repository that a user may not read and for a missing one."""
    return NotFound(f"there is no repository {repo} that you may read")


def parse_rules(table: object) -> dict[str, tuple[str, ...]]:
    """Returns groups by pattern, from the settings. Raises: InvalidInput."""
    form = 'must be a list of groups, such as "medical/*" = ["cardiology"]'
    if not isinstance(table, Mapping):
        raise InvalidInput("must be a table of patterns and groups")
    found = {}
    for pattern, groups in table.items():
        if not isinstance(groups, list | tuple) or not all(
            isinstance(group, str) and group for group in groups
        ):
            raise InvalidInput(f"{pattern!r} {form}")
        if not pattern or "\0" in pattern:
            raise InvalidInput("a pattern of repositories is empty")
        found[str(pattern)] = tuple(groups)
    return found


def rules_of(
    table: Mapping[str, Sequence[str]],
    gid_of: GidOf,
    *,
    free_uids: Collection[int] = (0,),
    say: Callable[[str], None] = lambda _line: None,
) -> AccessRules:
    """Returns the rules with numbers of groups. ``say`` gets a line for each missing group, which
    lets nobody in."""
    rules = []
    for pattern, groups in table.items():
        gids = set()
        for group in groups:
            gid = int(group) if group.isdecimal() else gid_of(group)
            if gid is not None:
                gids.add(gid)
            elif group != EVERYBODY:
                say(f"[access] {pattern!r}: there is no group {group}; it lets nobody in")
        rules.append(AccessRule(pattern, None if EVERYBODY in groups else frozenset(gids)))
    return AccessRules(tuple(rules), frozenset(free_uids))


LOOK_AGAIN_S = 10.0


class CurrentRules:
    """The current rules of ``table``. Missing groups are looked up again from time to time, as long
    as somebody asks for the rules; others keep their numbers until the service restarts.

    ``start`` runs a function in the background, since a directory of users may be slow to answer.
    """

    def __init__(
        self,
        table: Mapping[str, Sequence[str]],
        gid_of: GidOf,
        *,
        free_uids: Collection[int] = (0,),
        say: Callable[[str], None] = lambda _line: None,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._table, self._gid_of, self._free_uids = table, gid_of, free_uids
        self._gids: dict[str, int] = {}
        self._say, self._clock, self._start = say, clock, start or _in_thread
        self._unknown: list[str] = []
        self._is_looking = False
        self._next_s = clock() + LOOK_AGAIN_S
        self._now = self._made()
        for line in self._unknown:
            say(line)

    def __call__(self) -> AccessRules:
        """Returns the rules as far as they are known. Never waits."""
        if self._unknown and not self._is_looking and self._clock() >= self._next_s:
            self._is_looking = True
            self._next_s = self._clock() + LOOK_AGAIN_S
            try:
                self._start(self._look)
            except RuntimeError:  # the system cannot start a thread now
                self._is_looking = False
        return self._now

    def _look(self) -> None:
        try:
            before = self._unknown
            found = self._made()
            if found != self._now:
                self._say("[access]: a group that was missing exists now")
                self._now = found
            for line in self._unknown:
                if line not in before:
                    self._say(line)
        finally:
            self._is_looking = False

    def _made(self) -> AccessRules:
        unknown: list[str] = []
        found = rules_of(self._table, self._gid, free_uids=self._free_uids, say=unknown.append)
        self._unknown = unknown
        return found

    def _gid(self, group: str) -> int | None:
        gid = self._gids.get(group)
        if gid is None:
            gid = self._gid_of(group)
            if gid is not None:
                self._gids[group] = gid
        return gid


def _in_thread(call: Callable[[], None]) -> None:
    threading.Thread(target=call, name="lodefs-groups", daemon=True).start()
