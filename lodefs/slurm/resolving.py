"""Revisions of datasets, fixed at a job's submission."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from lodefs.api.mounting import options_of
from lodefs.mount.lifecycle import mount_target
from lodefs.settings.datasets import Dataset
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session
from lodefs.slurm.job_user import JobUser

PROXY_UNUSED_TIMEOUT_S = 5.0  # of a proxy that is started for it: submissions come in bursts


def fixed(
    session: Session, datasets: Sequence[Dataset], user: JobUser | None = None
) -> list[Dataset]:
    """The same with commits for revisions. A path must be a directory of its commit. Starts a proxy
    where this host has none. ``user``: for whom, where that is not who runs this.

    Raises: NotFound, InvalidInput, Denied, Unavailable.
    """
    if user is not None:
        user.check(datasets)
    return [_fixed(session, dataset) for dataset in datasets]


def _fixed(session: Session, dataset: Dataset) -> Dataset:
    requested = MountFile(spec=dataset.spec, directory=os.sep)
    options = options_of(session, requested, proxy_unused_timeout_s=PROXY_UNUSED_TIMEOUT_S)
    commit = mount_target.resolve(options).snapshot.commit
    spec = msgspec.structs.replace(dataset.spec, rev=commit)
    return msgspec.structs.replace(dataset, spec=spec)
