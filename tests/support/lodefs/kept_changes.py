"""Changes of a writable mount that is not mounted, on a store in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lodefs
from lodefs.api.writing.writable_changes import commit
from lodefs.chunkstore.repo.store import create_store
from lodefs.mount.options import MountOptions
from lodefs.mount.writable import upper_place
from lodefs.mount.writable.upper_place import Record
from tests.support.chunkstore.directories import in_commit, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.lodefs.command_line import MemorySession

FILES = {"a": b"a", "d/x": b"x", "d/y": b"y"}


class KeptChanges:
    """Changes of a writable mount that is not mounted now, of the repository r at its first
    commit."""

    def __init__(self, folder: Path, objects: FaultyObjects) -> None:
        environment = {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")}
        environment["LODEFS_STORE"] = "s3://memory"
        self.session = MemorySession(environment, objects)
        self.objects = objects
        self.folder = folder
        create_store(objects)
        write_files(folder / "source", FILES)
        lodefs.push(folder / "source", "r", session=self.session, workers=0)
        self.base = self.head()
        self.directory = folder / "mount"
        self.directory.mkdir()
        state = upper_place.state_directory(environment)
        self.place = upper_place.default_place(state, str(self.directory))
        self.begin("main")

    def begin(self, branch: str, rev: str = "main") -> None:
        """A place without changes."""
        self.place.directory.mkdir(parents=True, exist_ok=True)
        options = MountOptions(repo="r", rev=rev, mountpoint=str(self.directory), proxy="unix:/no")
        self.place.write(Record(options=options, branch=branch, commit=self.base))
        self.upper.mkdir(exist_ok=True)

    @property
    def record(self) -> Record:
        found = self.place.read()
        assert found is not None
        return found

    @property
    def upper(self) -> Path:
        return self.place.upper(self.record.generation)

    def head(self, branch: str = "main") -> str:
        return self.session.store.resolve("r", branch).hex()

    def files(self, rev: str = "main") -> dict[str, bytes]:
        seen = in_commit(self.session.store, "r", self.head(rev))
        return {os.fsdecode(path): one.content for path, one in seen.items() if one.content}

    def write(self, **files: bytes) -> None:
        write_files(self.upper, files)

    def others(self, path: str, content: bytes) -> str:
        """Somebody else's commit."""
        put = lodefs.changes.Put(path, content)
        return lodefs.commit_changes("r", [put], session=self.session, workers=0).commit

    def commit(self, **more: Any) -> str:
        return commit(self.directory, session=self.session, workers=0, **more).commit

    def assert_kept(self, generation: int = 0) -> None:
        """The changes are there, for another attempt."""
        assert self.record.generation == generation
        assert os.listdir(self.upper)
