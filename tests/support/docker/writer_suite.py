"""The contract of VolumeWriter as tests: every one passes them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from lodefs.chunkstore.errors import InUse, NotFound
from lodefs.mount.helper.interface import Source
from lodefs.mount.volumes.changes import Closed, VolumeWriter, WritableVolume
from lodefs.mount.volumes.options import DISCARD, NEVER, ON_LAST

BRANCH = "run-42"


@dataclass
class WriterGiven:
    """A writer, and a repository with a branch ``main`` and no other one."""

    writer: VolumeWriter
    repo: str

    def volume(self, commits: str = ON_LAST, repo: str = "") -> WritableVolume:
        """A volume that writes to BRANCH, as it is created."""
        source = Source(repo=repo or self.repo)
        volume = WritableVolume(name="a", source=source, branch=BRANCH, commits=commits)
        return msgspec.structs.replace(volume, commit=self.writer.branch(volume))

    def hold(self, volume: WritableVolume) -> WritableVolume:
        """The volume at its base, which the mount service has mounted for a container."""
        commit = self.writer.base(volume).commit
        return msgspec.structs.replace(volume, commit=commit)

    def change(self, place: str, name: str) -> None:
        """A container writes a file."""
        raise NotImplementedError

    def messages(self) -> list[str]:
        """Of the commits of BRANCH since it was made, the first first."""
        raise NotImplementedError

    def copy_of(self, place: str) -> None:
        """A container shows the mount, whatever becomes of it here, until ``end_copy``."""
        raise NotImplementedError

    def end_copy(self, place: str) -> None:
        """It has ended."""
        raise NotImplementedError


class WriterSuite:
    """Subclasses give ``given``."""

    def test_a_branch_is_made_once(self, given: WriterGiven) -> None:
        """It begins at main; a repository that is not there is told."""
        volume = given.volume()
        main = msgspec.structs.replace(volume, branch="main")
        assert volume.commit == given.writer.branch(main) == given.writer.branch(volume)
        with pytest.raises(NotFound):
            given.volume(repo="no/such")

    def test_changes_become_one_commit(self, given: WriterGiven) -> None:
        """However often it is mounted, and closed; the next mount begins at the commit."""
        volume = given.hold(given.volume())
        place = given.writer.mount(volume, None)
        assert given.writer.mount(volume, None) == place == given.writer.place(volume)
        given.change(place, "new")
        done = given.writer.close(volume, "the message")
        assert not done.kept
        assert given.writer.close(volume, "another message") == Closed("", kept=False)
        assert given.messages() == ["the message"]
        assert given.writer.base(volume).commit == done.commit != volume.commit

    def test_nothing_changed_is_no_commit(self, given: WriterGiven) -> None:
        """What was mounted and not written to leaves nothing."""
        volume = given.hold(given.volume())
        given.writer.mount(volume, None)
        assert given.writer.close(volume, "a message") == Closed("", kept=False)
        assert given.messages() == []

    def test_changes_are_kept_until_a_message_comes(self, given: WriterGiven) -> None:
        """Kept, mounted again, committed with what came then."""
        volume = given.volume(NEVER)
        for name in ("first", "second"):
            volume = given.hold(volume)
            given.change(given.writer.mount(volume, None), name)
            assert given.writer.close(volume, "") == Closed("", kept=True)
            assert given.writer.base(volume).commit == volume.commit
        assert given.writer.close(volume, "both").commit
        assert given.messages() == ["both"]

    def test_changes_are_given_up(self, given: WriterGiven) -> None:
        """With DISCARD nothing is left of them; the next mount begins at the branch."""
        volume = given.hold(given.volume(DISCARD))
        given.change(given.writer.mount(volume, None), "new")
        assert given.writer.close(volume, "") == Closed("", kept=False)
        assert given.writer.base(volume).commit == volume.commit
        assert given.messages() == []

    def test_what_a_container_has_is_not_committed(self, given: WriterGiven) -> None:
        """Whoever says that it is unused: it may still be written to."""
        volume = given.hold(given.volume())
        place = given.writer.mount(volume, None)
        given.change(place, "new")
        given.copy_of(place)
        for act in (lambda: given.writer.close(volume, "early"), lambda: self._again(given)):
            with pytest.raises(InUse):
                act()
        assert given.messages() == []
        given.end_copy(place)
        assert given.writer.close(volume, "late").commit
        assert given.messages() == ["late"]

    def _again(self, given: WriterGiven) -> None:
        given.writer.mount(given.volume(), None)


__all__ = ["BRANCH", "WriterGiven", "WriterSuite"]
