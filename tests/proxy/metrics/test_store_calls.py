"""What calls to the store are counted as."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import LodefsError, NotFound, Unavailable
from lodefs.chunkstore.objects.s3.errors import NoSuchKey
from lodefs.proxy.metrics.store_calls import outcome_of


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, "ok"), (Unavailable, "Unavailable"), (NotFound, "NotFound"), (NoSuchKey, "NotFound")],
)
def test_outcomes_are_classes_that_alerts_know(
    error: type[LodefsError] | None, outcome: str
) -> None:
    """A key that is not there is no error of the store, whatever its client calls that: the alert
    LodefsStoreErrors leaves out NotFound by name."""
    assert outcome_of(error) == outcome
