"""How the next request of a client is read: as the first one was, and nothing else."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.hot_objects import (
    IF_MATCH,
    RANGE,
    REQUEST_ID,
    SIGNATURE,
    STAMP,
    RequestShape,
    learn_shape,
    parse_plain,
)
from lodefs.proxy.s3.signature import UNSIGNED_PAYLOAD, canonical_headers, claim_of

TARGET = b"/data/a%20b"
END = len(b"GET ") + len(TARGET)
TAG = b'"' + b"5e" * 32 + b'"'
STAMPS = [b"20261123T032232Z", b"20261123T235959Z"]
IDS = [b"4b6a4a6e-9e2d-4f2a-b6a5-2f3b8f5a9c11", b"00000000-0000-0000-0000-00000000000F"]


def head(
    *,
    wanted: bytes = b"0-4095",
    stamp: bytes = STAMPS[0],
    request_id: bytes = IDS[0],
    signature: bytes = b"0a" * 32,
    agent: bytes = b"SDK/1.0  100%",
    tag: bytes = TAG,
) -> bytes:
    """A signed GET."""
    signed = b"amz-sdk-invocation-id;host;if-match;range;user-agent;x-amz-date"
    lines = [
        b"GET %b HTTP/1.1" % TARGET,
        b"Host: node:7480",
        b"User-Agent: " + agent,
        b"Range: bytes=" + wanted,
        b"If-Match: " + tag,
        b"Amz-Sdk-Invocation-Id: " + request_id,
        b"X-Amz-Date: " + stamp,
        b"X-Amz-Content-Sha256: UNSIGNED-PAYLOAD",
        b"Authorization: AWS4-HMAC-SHA256 Credential=team/20261123/us-east-1/s3/aws4_request, "
        b"SignedHeaders=%b, Signature=%b" % (signed, signature),
    ]
    return b"\r\n".join([*lines, b"", b""])


def canonical(data: bytes) -> bytes:
    """Its canonical headers as signature.py makes them, header by header."""
    asked = parse_plain(data)
    assert asked is not None
    claim = claim_of(asked.headers["authorization"], asked.headers)
    made = canonical_headers(claim, asked.headers, UNSIGNED_PAYLOAD)
    assert made is not None
    return made


def learned(data: bytes) -> RequestShape:
    """The shape of a request."""
    asked = parse_plain(data)
    assert asked is not None
    claim = claim_of(asked.headers["authorization"], asked.headers)
    shape = learn_shape(data, END, "", claim, canonical(data))
    assert shape is not None
    return shape


def test_the_next_request() -> None:
    """What differs is read, and its canonical headers are those of reading it header by header."""
    shape = learned(head())
    for wanted in (b"0-0", b"1234567-7654321", b"5-", b"-262144"):
        data = head(wanted=wanted, stamp=STAMPS[1], request_id=IDS[1], signature=b"b1" * 32)
        values = shape.values_of(data, END)
        assert values is not None
        assert (values[RANGE], values[STAMP], values[REQUEST_ID]) == (wanted, STAMPS[1], IDS[1])
        assert (values[IF_MATCH], values[SIGNATURE]) == (TAG, b"b1" * 32)
        assert shape.canonical_headers(values) == canonical(data)


def test_other_shapes() -> None:
    """Another agent, another header, another order are another shape; a range of another unit, or a
    tag that is none, make no shape."""
    shape = learned(head())
    assert shape.values_of(head(agent=b"SDK/1.1"), END) is None
    assert shape.values_of(head() + b"x", END) is None
    assert shape.values_of(head().replace(b"X-Amz-Date", b"x-amz-date"), END) is None
    assert shape.values_of(head(request_id=b"4b6a4a6e\r\nX-Odd: 1\r\n" + b"0" * 16), END) is None
    assert shape.values_of(head(stamp=b"2026\r\nX-Odd: 1Z"), END) is None
    assert shape.values_of(head(stamp=b"20261124T000000Z"), END) is None  # of the next day
    for data in (head(tag=b"*"), head().replace(b"Range: bytes", b"Range: lines")):
        asked = parse_plain(data)
        assert asked is not None
        claim = claim_of(asked.headers["authorization"], asked.headers)
        assert learn_shape(data, END, "", claim, canonical(data)) is None


@settings(max_examples=400, deadline=None)
@given(
    st.integers(END, len(head()) - 1),
    st.binary(max_size=3) | st.sampled_from([b"\r\n", b"\r\nX: ", b"\n", b"\0", b" ", b"-", b"9"]),
    st.integers(0, 3),
)
def test_no_other_request_is_read(at: int, put: bytes, drop: int) -> None:
    """Whatever is put into a request: if it is still read, then as it would be header by header."""
    shape = learned(head())
    data = head()[:at] + put + head()[at + drop :]
    values = shape.values_of(data, END)
    if values is None or values[IF_MATCH] != TAG or b"\r" in values[RANGE]:
        return
    if not values[RANGE].replace(b"-", b"").isdigit():
        return
    try:
        expected = canonical(data)
    except S3Error:  # refused; and what is read has a signature, or a time, that nobody accepts
        is_hex = set(values[SIGNATURE]) <= set(b"0123456789abcdef")
        assert not (is_hex and re.fullmatch(rb"[0-9]{8}T[0-9]{6}Z", values[STAMP]))
    else:
        assert shape.canonical_headers(values) == expected
