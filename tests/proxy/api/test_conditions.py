"""Conditional requests, as RFC 9110 section 13 has them."""

from __future__ import annotations

import pytest

from lodefs.proxy.api.ranges import Outcome, evaluate, range_applies

ETAG = '"abc"'


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, Outcome.PROCEED),
        ({"If-None-Match": '"abc"'}, Outcome.NOT_MODIFIED),
        ({"If-None-Match": 'W/"abc"'}, Outcome.NOT_MODIFIED),
        ({"If-None-Match": '"x", "abc"'}, Outcome.NOT_MODIFIED),
        ({"If-None-Match": "*"}, Outcome.NOT_MODIFIED),
        ({"If-None-Match": '"x"'}, Outcome.PROCEED),
        ({"If-None-Match": "abc"}, Outcome.PROCEED),
        ({"If-None-Match": ""}, Outcome.PROCEED),
        ({"If-Match": '"abc"'}, Outcome.PROCEED),
        ({"If-Match": "*"}, Outcome.PROCEED),
        ({"If-Match": 'W/"abc"'}, Outcome.FAILED),
        ({"If-Match": '"x"'}, Outcome.FAILED),
        ({"If-Match": '"x"', "If-None-Match": '"abc"'}, Outcome.FAILED),
        ({"If-Match": '"abc"', "If-None-Match": '"abc"'}, Outcome.NOT_MODIFIED),
        ({"If-None-Match": '"a,b", "abc"'}, Outcome.NOT_MODIFIED),
    ],
)
def test_outcome(headers: dict[str, str], outcome: Outcome) -> None:
    """If-Match compares strongly and comes first, If-None-Match weakly."""
    assert evaluate(headers, ETAG) is outcome


@pytest.mark.parametrize(
    ("headers", "applies"),
    [
        ({}, True),
        ({"If-Range": '"abc"'}, True),
        ({"If-Range": 'W/"abc"'}, False),
        ({"If-Range": '"x"'}, False),
        ({"If-Range": "Sat, 29 Oct 1994 19:43:31 GMT"}, False),
    ],
)
def test_if_range(headers: dict[str, str], *, applies: bool) -> None:
    """Only the same strong tag lets the range count."""
    assert range_applies(headers, ETAG) is applies
