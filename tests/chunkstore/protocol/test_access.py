"""Rules of who may read which repository."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.protocol import access
from lodefs.chunkstore.protocol.access import AccessRules, parse_rules
from lodefs.chunkstore.system.sockets import Peer

TABLE = {
    "medical/*": ("cardiology", "1200"),
    "medical/public/*": ("*",),
    "closed": (),
    "other/*": ("nosuch",),
    "git/h/Org/secret": ("cardiology",),
    "git/h/org/more.git": ("cardiology",),
}
GIDS = {"cardiology": 1100}


def made(said: list[str] | None = None) -> AccessRules:
    say = (said if said is not None else []).append
    return access.rules_of(TABLE, GIDS.get, say=say)


@pytest.mark.parametrize(
    ("repo", "gids", "may"),
    [
        ("vision/cats", (), True),
        ("medical/scans", (), False),
        ("medical/scans", (1100,), True),
        ("medical/a/b", (5, 1200), True),
        ("medical", (), True),
        ("medical/public/x", (), True),
        ("closed", (1100, 1200), False),
        ("other/x", (1100,), False),
        ("git/h/Org/secret", (1100,), True),
        ("git/h/Org/secret", (), False),
        ("git/h/Org/secret.git", (), False),  # its Git server knows it by all these names
        ("git/h/org/SECRET.git", (), False),
        ("git/h/org/more", (), False),
        ("git/h/org/secrets", (), True),
        ("Closed", (), True),
    ],
)
def test_the_longest_pattern_decides(repo: str, gids: tuple[int, ...], may: bool) -> None:
    """Without a rule everybody reads; with one, its groups; root always does."""
    peer = Peer(5001, frozenset(gids))
    assert made().may_read(peer, repo) is may
    assert made().may_read(Peer(0, frozenset()), repo)
    if not may:
        with pytest.raises(NotFound, match=f"no repository {repo} that you may read"):
            made().check(peer, repo)


def test_groups_that_there_are_not() -> None:
    """They are named, and let nobody in."""
    said: list[str] = []
    made(said)
    assert said == ["[access] 'other/*': there is no group nosuch; it lets nobody in"]


def test_kinds_of_users() -> None:
    """Users with the same of the groups that rules name are of one kind."""
    rules = made()
    kinds = [rules.kind_of(Peer(uid, frozenset(gids))) for uid, gids in
             ((5001, {7, 1100}), (5002, {8, 1100}), (5003, {7}), (0, {7}))]  # fmt: skip
    assert kinds[0] == kinds[1] == {1100}
    assert kinds[2] == set()
    assert kinds[3] is None
    assert not AccessRules()
    assert rules


@pytest.mark.parametrize(
    "table", [7, {"a": "group"}, {"a": [7]}, {"": ["g"]}, {"a": [""]}, {"a\0": ["g"]}]
)
def test_rules_that_are_none(table: object) -> None:
    """A table that is malformed is InvalidInput."""
    with pytest.raises(InvalidInput):
        parse_rules(table)
