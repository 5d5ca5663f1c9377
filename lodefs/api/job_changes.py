"""Directories of one command that take changes: mounted before it, committed or kept after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from lodefs.api import writable
from lodefs.api.writable_changes import branch_of, commit_and_unmount
from lodefs.chunkstore.errors import InUse, LodefsError
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.cli.progress_bars import show_progress
from lodefs.mount.writable import writable_mount
from lodefs.mount.writable.upper_place import UpperPlace
from lodefs.settings.datasets import Dataset
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session

CommitWhen = Literal["on-success", "always", "never"]


class Ended(NamedTuple):
    """What became of the changes on a directory. ``result``: of their commit; ``kept``: where they
    lie still, and ``error`` why, if they were to be committed. Without any nothing was changed."""

    directory: str
    branch: str = ""
    result: ChangesResult | None = None
    kept: UpperPlace | None = None
    error: Exception | None = None


class JobChanges(msgspec.Struct, kw_only=True):
    """``places``: where, as absolute paths without symlinks, and what. ``branch``, ``message``: of
    the commits; "" is the branch that is mounted. ``upper``: where the changes lie, of one."""

    session: Session
    when: CommitWhen = "on-success"
    branch: str | None = None
    message: str = ""
    upper: str | None = None
    read_timeout_s: float | None = None
    log_path: str = ""
    places: Sequence[tuple[str, Dataset]] = ()

    def mount(self, ends_with: int) -> None:
        """Mount them all, or none, in this process's mount namespace. ``ends_with`` as of
        ``mount_writable``, and errors; also of a store that takes no commit, unless none is to be
        made."""
        if self.when != "never":
            self.session.store.ensure_writable()
        made: list[str] = []
        try:
            for directory, dataset in self.places:
                self._clear(directory)
                self._mount(directory, dataset, ends_with)
                made.append(directory)
        except BaseException:
            for directory in made:
                with suppress(LodefsError):
                    writable.unmount_writable(self.session, directory, discard=True)
            raise

    def end(self, code: int) -> Iterator[Ended]:
        """Commit their changes, or keep them, after the command has ended with an exit code."""
        for directory, _ in self.places:
            if not writable.is_writable(self.session, directory):  # the command has unmounted it
                continue
            place = writable.place_of(self.session, directory)
            try:
                yield self._ended(directory, place, commits=is_to_commit(self.when, code))
            except (LodefsError, OSError) as error:
                yield Ended(directory, kept=place, error=error)

    def _clear(self, directory: str) -> None:
        """Nothing is left of an earlier mount. InvalidInput where it left changes; InUse."""
        if not writable.is_writable(self.session, directory):
            return
        place = writable.place_of(self.session, directory)
        if writable_mount.mounted_on(writable_mount.recorded(place)) is not None:
            raise InUse(f"{directory} is a writable mount; `lodefs unmount {directory}` first")
        writable.unmount_writable(self.session, directory)

    def _mount(self, directory: str, dataset: Dataset, ends_with: int) -> None:
        wanted = MountFile(
            spec=dataset.spec, directory=directory, read_timeout_s=self.read_timeout_s
        )
        made = writable.mount_writable(
            self.session,
            wanted,
            upper=self.upper,
            log_path=self.log_path,
            fork=True,
            ends_with=ends_with,
        )
        if self.when == "never":
            return
        try:
            branch_of(self.session, made.record, self.branch)
        except LodefsError:
            writable.unmount_writable(self.session, directory, discard=True)
            raise

    def _ended(self, directory: str, place: UpperPlace, *, commits: bool) -> Ended:
        """Raises: as ``commit``."""
        branch = self.branch or writable_mount.recorded(place).branch
        done = writable.unmount_writable(self.session, directory, keep=True)
        if not done.kept or not commits:
            return Ended(directory, branch, kept=place if done.kept else None)
        with show_progress() as progress:
            result, _ = commit_and_unmount(
                directory,
                branch=self.branch,
                message=self.message,
                session=self.session,
                progress=progress,
            )
        return Ended(directory, branch, result)


def is_to_commit(when: CommitWhen, code: int) -> bool:
    """Whether changes are to be committed, after a command that ended with an exit code. Pure."""
    return when == "always" or (when == "on-success" and code == 0)
