"""Continuation tokens: where a listing goes on, and in which commit. Opaque to clients."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.format.names import digest_of
from lodefs.proxy.s3.errors import S3Error

_CHECK_BYTES = 6
_TOKEN_CHARS_MAX = 8192


class ListingToken(msgspec.Struct, array_like=True, frozen=True):
    """``start``: the least key of the next page. It lies in ``commit`` of REPO@REV; these are "" if
    it lies between repositories."""

    bucket: str
    repo: str
    rev: str
    commit: str
    start: bytes


def encode_token(token: ListingToken) -> str:
    """A token as clients have it. Not percent-encoded, whatever they do with it."""
    body = msgspec.msgpack.encode(token)
    return urlsafe_b64encode(digest_of(body)[:_CHECK_BYTES] + body).decode().rstrip("=")


def decode_token(text: str) -> ListingToken:
    """Raises: S3Error if it is none that ``encode_token`` made."""
    try:
        if len(text) > _TOKEN_CHARS_MAX:
            raise InvalidInput("too long")
        data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        check, body = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
        if digest_of(body)[:_CHECK_BYTES] != check:
            raise InvalidInput("another digest")
        return from_msgpack(body, ListingToken)
    except (InvalidInput, Base64Error, ValueError):
        raise wrong_token() from None


def wrong_token(why: str = "the continuation token provided is incorrect") -> S3Error:
    """The refusal of a token."""
    return S3Error("InvalidArgument", why, more=(("ArgumentName", "continuation-token"),))
