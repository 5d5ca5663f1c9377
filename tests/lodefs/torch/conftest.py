"""A real node for tests that read from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.lodefs.dataset_node import DatasetNode, dataset_node


@pytest.fixture(scope="module")
def node() -> Iterator[DatasetNode]:
    """A node with a dataset, for the tests of a module."""
    with dataset_node() as node:
        yield node
