"""Which local users may read which repositories: rules of shell patterns and groups.

The settings' table [access] has them: ``"medical/*" = ["cardiology", "1200"]``. Of the patterns
that cover a repository the longest decides, so that an exception can be made from a wide one; a
repository that none covers is everybody's. ``"*"`` among groups is everybody, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.system.sockets import Peer

EVERYBODY = "*"

GidOf = Callable[[str], int | None]
"""The number of a group, None where there is none of that name."""


class AccessRule(NamedTuple):
    """A pattern of names, '*' also covers '/', and the groups that may read what it covers; None:
    everybody."""

    pattern: str
    gids: frozenset[int] | None


class AccessRules(NamedTuple):
    """All rules of a node. ``free_uids``: users for whom they do not count."""

    rules: tuple[AccessRule, ...] = ()
    free_uids: frozenset[int] = frozenset({0})

    def __bool__(self) -> bool:
        """Whether anything is forbidden to anybody."""
        return any(rule.gids is not None for rule in self.rules)

    def groups_of(self, repo: str) -> frozenset[int] | None:
        """The groups that may read a repository; None: everybody may."""
        found = [rule for rule in self.rules if fnmatchcase(repo, rule.pattern)]
        return max(found, key=lambda rule: len(rule.pattern)).gids if found else None

    def may_read(self, peer: Peer, repo: str) -> bool:
        """Whether a user with these groups may read a repository."""
        if peer.uid in self.free_uids:
            return True
        groups = self.groups_of(repo)
        return groups is None or bool(groups & peer.gids)

    def check(self, peer: Peer, repo: str) -> None:
        """Raises: NotFound, as for one that does not exist."""
        if not self.may_read(peer, repo):
            raise hidden(repo)

    def kind_of(self, peer: Peer) -> frozenset[int] | None:
        """Users of one kind may read the same; None: those who may read everything."""
        if peer.uid in self.free_uids:
            return None
        known: frozenset[int] = frozenset().union(*(rule.gids or () for rule in self.rules))
        return known & peer.gids


NO_RULES = AccessRules()


def hidden(repo: str) -> NotFound:
    """What is said of a repository that a user may not read, and of one that there is not."""
    return NotFound(f"there is no repository {repo} that you may read")


def parse_rules(table: object) -> dict[str, tuple[str, ...]]:
    """Groups by pattern, from the settings. InvalidInput."""
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
    """The rules with numbers of groups. ``say`` hears of groups that there are not: they let nobody
    in."""
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
    """The rules of ``table``. Groups that there were not are looked up again now and then, as long
    as somebody asks for the rules; others keep their numbers until the service's next start.

    ``start`` has a call made beside the caller, since a directory of users may be slow to answer.
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
        """The rules as they are known now; never waits."""
        if self._unknown and not self._is_looking and self._clock() >= self._next_s:
            self._is_looking = True
            self._next_s = self._clock() + LOOK_AGAIN_S
            try:
                self._start(self._look)
            except RuntimeError:  # the system has no room for a thread now
                self._is_looking = False
        return self._now

    def _look(self) -> None:
        try:
            before = self._unknown
            found = self._made()
            if found != self._now:
                self._say("[access]: a group that was missing is there now")
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
