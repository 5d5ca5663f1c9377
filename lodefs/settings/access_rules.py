"""Access rules from the settings, with the groups of this machine: who may read ([access]), and
whose jobs may commit with the node's credentials ([writers])."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.protocol.access import AccessRules, CurrentRules, rules_of
from lodefs.chunkstore.system.sockets import Peer
from lodefs.settings.session import Session


def current_rules(session: Session, say: Callable[[str], None]) -> CurrentRules:
    """Access rules for a service: groups that are missing when it starts may appear later."""
    return CurrentRules(session.config.access, gid_of, say=say)


def access_rules(session: Session, say: Callable[[str], None] = lambda _line: None) -> AccessRules:
    return rules_of(session.config.access, gid_of, say=say)


def check_writer(session: Session, uid: int, repo: str) -> None:
    """Checks that a job of a user may commit to a repository: the user may read it, and is in a
    group that [writers] names for it. Raises: NotFound, Denied."""
    user = user_of(uid)
    access_rules(session).check(user, repo)
    rules = rules_of(session.config.writers, gid_of)
    if not rules.covers(repo) or not rules.may_read(user, repo):
        raise Denied(
            f"{repo}: you may read it, but jobs of yours may not commit to it (:rw); an "
            "administrator allows it to groups, by [writers] in the settings of the nodes"
        )


def user_of(uid: int) -> Peer:
    """Returns a user with all groups from the machine's tables; no groups without an account."""
    try:
        user = pwd.getpwuid(uid)
        return Peer(uid, frozenset(os.getgrouplist(user.pw_name, user.pw_gid)))
    except KeyError:
        return Peer(uid, frozenset())


def gid_of(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None
