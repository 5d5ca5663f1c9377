"""fsspec's own tests of reading: all of Get, on commits. Its trees are written by transactions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fsspec.tests import abstract

from lodefs.fs import LodefsFileSystem
from tests.support.chunkstore.child_process import private_directory
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow


class CommittingFileSystem(LodefsFileSystem):
    """Each write is a commit."""

    def rm(self, path: Any, *_: Any, **__: Any) -> None:
        """The branch ends with its test."""


class TestGet(abstract.AbstractFixtures, abstract.AbstractGetTests):
    """All functions of fsspec's Get suite."""

    @pytest.fixture(scope="class")
    def fs(self, node: DatasetNode) -> Iterator[LodefsFileSystem]:
        """One for all tests."""
        with pytest.MonkeyPatch.context() as patch, private_directory() as home:
            patch.setenv("HOME", str(home))
            place = node.address, str(node.store)
            yield CommittingFileSystem(*place, autocommit=True, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        """Where the suite makes its trees."""
        return f"{REPO}@{uuid4().hex[:10]}x/tree"

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        """Where it copies to."""
        place = tmp_path / "local"
        place.mkdir()
        return os.fspath(place)

    def _bulk_operations_scenario_0(self, some_fs: Any, *places: Any) -> Any:
        return self._at_once(super()._bulk_operations_scenario_0, some_fs, *places)

    def _glob_edge_cases_files(self, some_fs: Any, *places: Any) -> Any:
        return self._at_once(super()._glob_edge_cases_files, some_fs, *places)

    def _dir_and_file_with_same_name_prefix(self, some_fs: Any, *places: Any) -> Any:
        return self._at_once(super()._dir_and_file_with_same_name_prefix, some_fs, *places)

    def _10_files_with_hashed_names(self, some_fs: Any, *places: Any) -> Any:
        return self._at_once(super()._10_files_with_hashed_names, some_fs, *places)

    def _at_once(self, make: Callable[..., Any], some_fs: Any, *places: Any) -> Any:
        """A tree by one commit, not by one for each file."""
        with some_fs.transaction:
            return make(some_fs, *places)
