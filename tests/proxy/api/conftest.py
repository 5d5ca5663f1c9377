"""Ids of tests that schemathesis makes."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each operation is a test with an id of its own. Since pytest 9.2 an id no longer has the
    operation, which schemathesis puts into the name alone."""
    label = getattr(item, "operation_label", None)
    if label is not None and not item.nodeid.endswith("]"):
        item._id = item.id.with_params(label)
