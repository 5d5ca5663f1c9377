"""A real node for tests that read from it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.support.lodefs.dataset_node import DatasetNode, dataset_node

# tests/lodefs/test_api.py fails if it is missing
collect_ignore_glob = [] if find_spec("fsspec") else ["test_*"]


@pytest.fixture(scope="module")
def node() -> Iterator[DatasetNode]:
    """A node with a dataset, for the tests of a module."""
    with dataset_node() as node:
        yield node
