"""Fixes the revisions of datasets at a job's submission, for a user whom the proxy does not see.

The proxy knows only the asking process, such as one of SlurmUser. So the access rules of this
machine's settings are applied here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from lodefs.api.mounting import options_of
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import ID_HEX_CHARS_MIN
from lodefs.chunkstore.protocol.access import AccessRules
from lodefs.chunkstore.system.sockets import Peer
from lodefs.mount.process import mount_target
from lodefs.settings.access_rules import access_rules, check_writer, user_of
from lodefs.settings.datasets import Dataset
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session

_NOBODY = Peer(0xFFFFFFFE, frozenset())  # 2**32 - 1 is no user


class JobUser:
    """A user under ``rules``, who is in the groups that ``user_of`` finds for ``uid``. None: the
    user is unknown, and may not read repositories that rules limit."""

    def __init__(
        self, rules: AccessRules, uid: int | None, user_of: Callable[[int], Peer] = user_of
    ) -> None:
        self._rules = rules
        self.uid = _NOBODY.uid if uid is None else uid
        self._user = _NOBODY if uid is None or not rules else user_of(uid)

    def check(self, datasets: Sequence[Dataset]) -> None:
        """Raises: NotFound, as for a repository that does not exist."""
        for dataset in datasets:
            self._rules.check(self._user, dataset.spec.repo)

    def readable(self, datasets: Sequence[Dataset]) -> list[Dataset]:
        """Returns the datasets that the user may read."""
        return [one for one in datasets if self._rules.may_read(self._user, one.spec.repo)]


def job_user(session: Session, uid: int | None) -> JobUser:
    return JobUser(access_rules(session), uid)


PROXY_UNUSED_TIMEOUT_S = 5.0  # of a proxy that is started for it: submissions come in bursts


def fixed(
    session: Session, datasets: Sequence[Dataset], user: JobUser | None = None
) -> list[Dataset]:
    """Returns the datasets with commits for revisions. A path must be a directory of its commit.
    Starts a proxy if this host has none. ``user``: the user who asks, if another one runs this.
    Raises: NotFound, InvalidInput, Denied, Unavailable."""
    if user is not None:
        user.check(datasets)
    for dataset in datasets:
        if dataset.is_writable and session.config.writers:  # else the node has the rules alone
            uid = os.getuid() if user is None else user.uid
            check_writer(session, uid, dataset.spec.repo)
    return [_fixed(session, dataset) for dataset in datasets]


def _fixed(session: Session, dataset: Dataset) -> Dataset:
    requested = MountFile(spec=dataset.spec, directory=os.sep)
    options = options_of(session, requested, proxy_unused_timeout_s=PROXY_UNUSED_TIMEOUT_S)
    commit = mount_target.resolve(options).snapshot.commit
    spec = msgspec.structs.replace(dataset.spec, rev=commit)
    branch = branch_for(dataset, commit) if dataset.is_writable else ""
    return msgspec.structs.replace(dataset, spec=spec, branch=branch)


def branch_for(dataset: Dataset, commit: str) -> str:
    """Returns the branch for the changes to a dataset whose revision is that commit: the one it
    names, or its revision. Pure. The node, which asks the store, refuses tags. Raises: InvalidInput
    if the revision is a commit."""
    rev = dataset.spec.rev
    is_commit = len(rev) >= ID_HEX_CHARS_MIN and commit.startswith(rev)
    if not dataset.branch and (is_commit or "~" in rev):
        raise InvalidInput(
            f"{dataset}: a commit takes no changes; name the branch to which they go, by :rw=BRANCH"
        )
    return dataset.branch or rev
