"""Writable directories for one command: mounted before it, committed or kept after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from lodefs.api.writing import writable
from lodefs.api.writing.writable_changes import branch_of, commit_and_unmount
from lodefs.chunkstore.errors import InUse, InvalidInput, LodefsError
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.cli.progress_bars import show_progress
from lodefs.mount.writable import writable_mount
from lodefs.mount.writable.upper_place import UpperPlace
from lodefs.settings.datasets import ON_SUCCESS, CommitWhen, Dataset
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session


class Ended(NamedTuple):
    """The outcome of the changes on a directory: they were committed (``result``), or are ``kept``
    in a place, with the ``error`` of a failed commit. With none of these nothing was changed."""

    directory: str
    branch: str = ""
    result: ChangesResult | None = None
    kept: UpperPlace | None = None
    error: Exception | None = None


class JobChanges(msgspec.Struct, kw_only=True):
    """``places``: absolute paths without symlinks, and what to mount there. ``branch``,
    ``message``: for the commits; without a branch, the one that the dataset names, or the mounted
    one. ``upper``: where the changes of a single place lie."""

    session: Session
    when: CommitWhen = ON_SUCCESS
    branch: str | None = None
    message: str = ""
    upper: str | None = None
    read_timeout_s: float | None = None
    log_path: str = ""
    places: Sequence[tuple[str, Dataset]] = ()

    def mount(self, ends_with: int) -> None:
        """Mounts all of them, or none, in this process's mount namespace. ``ends_with`` and errors:
        as for ``mount_writable``. Also raises the errors of a store that takes no commits, unless
        no commit is to be made."""
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
        """Commits the changes, or keeps them, after the command has ended with an exit code."""
        for directory, dataset in self.places:
            if not writable.is_writable(self.session, directory):  # the command has unmounted it
                continue
            place = writable.place_of(self.session, directory)
            try:
                branch = self.branch or dataset.branch or None
                commits = is_to_commit(self.when, code)
                yield self._ended(directory, place, branch, commits=commits)
            except (LodefsError, OSError) as error:
                yield Ended(directory, kept=place, error=error)

    def _clear(self, directory: str) -> None:
        """Removes an earlier mount. Raises: InvalidInput if it left changes; InUse."""
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
        if made.is_resumed:  # --upper has them, and nothing in the state directory says so
            writable.unmount_writable(self.session, directory, keep=True)
            raise InvalidInput(
                f"{made.place.directory} has changes to {directory} that are in no commit: "
                f"`lodefs unmount {directory}` with --commit or --discard ends them"
            )
        if self.when == "never":
            return
        try:
            branch_of(self.session, made.record, self.branch or dataset.branch or None)
        except LodefsError:
            writable.unmount_writable(self.session, directory, discard=True)
            raise

    def _ended(
        self, directory: str, place: UpperPlace, branch: str | None, *, commits: bool
    ) -> Ended:
        """Raises what ``commit`` raises."""
        goes_to = branch or writable_mount.recorded(place).branch
        done = writable.unmount_writable(self.session, directory, keep=True)
        if not done.kept or not commits:
            return Ended(directory, goes_to, kept=place if done.kept else None)
        with show_progress() as progress:
            result, _ = commit_and_unmount(
                directory,
                branch=branch,
                message=self.message,
                session=self.session,
                progress=progress,
            )
        return Ended(directory, goes_to, result)


def is_to_commit(when: CommitWhen, code: int) -> bool:
    """Whether to commit changes, given the exit code of the command. Pure."""
    return when == "always" or (when == "on-success" and code == 0)
