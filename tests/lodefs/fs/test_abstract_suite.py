"""fsspec's own tests of reading: all of Get. Its trees are made in a directory and pushed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fsspec.tests import abstract

from lodefs.fs import LodefsFileSystem
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow


class PushingFileSystem(LodefsFileSystem):
    """Writes into a directory, and pushes it to a branch that only it has."""

    node: DatasetNode
    source: Path

    @property
    def root(self) -> str:
        """The URL of the branch."""
        return f"lodefs://{REPO}@{self.source.name}"

    def _done(self, path: str, act: Callable[[Path], object]) -> None:
        act(self.source / self._strip_protocol(path).partition("/")[2].partition("/")[2])
        self.node.push(self.source, self.source.name)
        self.invalidate_cache()

    def mkdir(self, path: str, *_: Any, **__: Any) -> None:
        self._done(path, lambda place: place.mkdir(parents=True))

    def makedirs(self, path: str, *_: Any, **__: Any) -> None:
        self._done(path, lambda place: place.mkdir(parents=True))

    def touch(self, path: str, *_: Any, **__: Any) -> None:
        self._done(path, lambda place: (place.parent.mkdir(exist_ok=True), place.touch()))

    def pipe_file(self, path: str, value: bytes, *_: Any, **__: Any) -> None:
        self._done(
            path, lambda place: (place.parent.mkdir(exist_ok=True), place.write_bytes(value))
        )

    def rm(self, path: Any, *_: Any, **__: Any) -> None:
        """The branch ends with its test."""


class TestGet(abstract.AbstractFixtures, abstract.AbstractGetTests):
    """All functions of fsspec's Get suite."""

    @pytest.fixture
    def fs(self, node: DatasetNode, tmp_path: Path) -> PushingFileSystem:
        """With an empty branch of its own."""
        fs = PushingFileSystem(proxy=node.address, skip_instance_cache=True)
        fs.node, fs.source = node, tmp_path / f"b{uuid4().hex[:10]}"
        fs.source.mkdir()
        (fs.source / "tree").mkdir()
        node.push(fs.source, fs.source.name)
        return fs

    @pytest.fixture
    def fs_path(self, fs: PushingFileSystem) -> str:
        """Where the suite makes its trees."""
        return f"{fs.root}/tree"

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        """Where it copies to."""
        place = tmp_path / "local"
        place.mkdir()
        return os.fspath(place)
