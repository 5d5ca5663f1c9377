"""Decodes JSON and MessagePack from outside into structures, with one error for all problems.

All decoders are made here, by one thread at a time. msgspec (0.22) inspects the fields of a class
when it is first decoded, and other threads see the result before it is complete: two threads that
decode a class for the first time may crash the process (SIGSEGV in mpack_decode).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar, overload

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")

_making = Lock()
os.register_at_fork(
    before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release
)
_json: dict[object, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[object, msgspec.msgpack.Decoder[Any]] = {}


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: object) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: object) -> msgspec.json.Decoder[Any]:
    """Returns a decoder of JSON into that type. It raises msgspec's errors; from_json translates
    them."""
    found = _json.get(kind)
    if found is None:
        with _making:
            found = _json[kind] = msgspec.json.Decoder(kind)
    return found


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: object) -> msgspec.msgpack.Decoder[Any]:
    """Does what json_decoder does, for MessagePack."""
    found = _msgpack.get(kind)
    if found is None:
        with _making:
            found = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return found


def from_json(data: Buffer | str | msgspec.Raw, kind: type[T]) -> T:
    """Decodes a JSON text. Raises: InvalidInput, which says what is wrong and where."""
    with _translated():
        return json_decoder(kind).decode(data)


def from_msgpack(data: Buffer, kind: type[T]) -> T:
    """Decodes MessagePack. Raises: InvalidInput, which says what is wrong and where."""
    with _translated():
        return msgpack_decoder(kind).decode(data)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RecursionError:  # even in parts that the structure does not know and skips
        raise InvalidInput("it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInput(str(error)) from error
