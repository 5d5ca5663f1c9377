"""fsspec's own tests of reading and writing, inside a transaction: all of Get, Put, Copy, Pipe and
Open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from fsspec.tests import abstract

from lodefs.fs import LodefsFileSystem
from tests.support.chunkstore.child_process import private_directory
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow


class Fixtures(abstract.AbstractFixtures):
    """A file system in a transaction on an empty branch."""

    @pytest.fixture(scope="class")
    def fs(self, node: DatasetNode) -> Iterator[LodefsFileSystem]:
        """In a transaction, which is discarded."""
        with pytest.MonkeyPatch.context() as patch, private_directory() as home:
            patch.setenv("HOME", str(home))
            fs = LodefsFileSystem(node.address, str(node.store), skip_instance_cache=True)
            fs.start_transaction()
            try:
                yield fs
            finally:
                fs.transaction.complete(commit=False)

    @pytest.fixture
    def fs_path(self) -> str:
        """Where the suite makes its trees."""
        return f"{REPO}@new/{uuid4().hex}"

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        """Where it copies to."""
        place = tmp_path / "local"
        place.mkdir()
        return os.fspath(place)


class TestGet(Fixtures, abstract.AbstractGetTests):
    """All functions."""


class TestPut(Fixtures, abstract.AbstractPutTests):
    """All functions."""


class TestCopy(Fixtures, abstract.AbstractCopyTests):
    """All functions."""


class TestPipe(Fixtures, abstract.AbstractPipeTests):
    """All functions."""


class TestOpen(Fixtures, abstract.AbstractOpenTests):
    """All functions."""
