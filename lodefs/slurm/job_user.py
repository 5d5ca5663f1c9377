"""The user of a job, for whom another one, such as SlurmUser, asks the proxy.

The proxy knows only who asks, so the rules of access of this machine's settings are applied here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lodefs.chunkstore.nodeapi.access import AccessRules
from lodefs.chunkstore.system.sockets import Peer
from lodefs.settings.access_rules import access_rules, user_of
from lodefs.settings.datasets import Dataset
from lodefs.settings.session import Session

_NOBODY = Peer(0xFFFFFFFE, frozenset())  # 2**32 - 1 is no user


class JobUser:
    """By ``rules``, a user who is in the groups that ``user_of`` finds for ``uid``; None: it is not
    known who, so what rules limit is not theirs."""

    def __init__(
        self, rules: AccessRules, uid: int | None, user_of: Callable[[int], Peer] = user_of
    ) -> None:
        self._rules = rules
        self._user = _NOBODY if uid is None or not rules else user_of(uid)

    def check(self, datasets: Sequence[Dataset]) -> None:
        """Raises: NotFound, as for a repository that does not exist."""
        for dataset in datasets:
            self._rules.check(self._user, dataset.spec.repo)

    def readable(self, datasets: Sequence[Dataset]) -> list[Dataset]:
        """Those that the user may read."""
        return [one for one in datasets if self._rules.may_read(self._user, one.spec.repo)]


def job_user(session: Session, uid: int | None) -> JobUser:
    """A user by the settings' rules."""
    return JobUser(access_rules(session), uid)
