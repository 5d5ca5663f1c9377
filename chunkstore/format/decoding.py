"""JSON and MessagePack from outside as structures: whatever is wrong with it is one error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.types import Buffer

T = TypeVar("T")


def from_json(data: Buffer | str | msgspec.Raw, kind: type[T]) -> T:
    """Decodes a JSON text. Raises: InvalidInput, which says what is wrong and where."""
    with _translated():
        return msgspec.json.decode(data, type=kind)


def from_msgpack(data: Buffer, kind: type[T]) -> T:
    """Decodes MessagePack. Raises: InvalidInput, which says what is wrong and where."""
    with _translated():
        return msgspec.msgpack.decode(data, type=kind)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except RecursionError:  # also of parts that the structure does not know, and skips
        raise InvalidInput("it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInput(str(error)) from error
