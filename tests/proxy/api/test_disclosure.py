"""What limited readers learn of an error: nothing of where the store, or a bucket, is."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Corrupt, LodefsError, SourceLost, SourceUnknown
from lodefs.proxy.api.disclosure import redacted


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SourceLost("s3://bucket/a is gone"), "an object of a bucket"),
        (SourceUnknown("source bucket: add lines"), "do not name the bucket"),
        (Corrupt("s3://bucket has wrong bytes"), "damaged"),
    ],
)
def test_errors_in_place(error: LodefsError, text: str) -> None:
    """The kind of the error stays, and says what it is about; names do not."""
    told = redacted(error, ["s3://bucket"])
    assert type(told) is type(error)
    assert text in str(told)
    assert "s3://bucket" not in str(told)
    assert "lines" not in str(told)
