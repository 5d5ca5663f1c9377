"""Types of the command line's options whose values a function parses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.durations import parse_duration

T = TypeVar("T")


class ParsedType(click.ParamType[T]):
    """What ``parse`` makes of the words for an option; it raises InvalidInput. ``name``: what help
    texts call the value; ``kind``: its class, since a default is a value already."""

    def __init__(self, name: str, kind: type[T], parse: Callable[[str], T]) -> None:
        self.name = name
        self._kind = kind
        self._parse = parse

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> T:
        if isinstance(value, self._kind):
            return value
        try:
            return self._parse(value)
        except InvalidInput as error:
            if isinstance(param, click.Option):  # an argument's words say themselves what they are
                raise InvalidInput(f"{param.opts[0]} {value}: {error}") from error
            raise


class UntouchedPath(click.Path):
    """As click's, which asks the file system of each path whether it is there: what is mounted may
    never answer."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> Any:
        return self.coerce_path_result(value)


class FiniteRange(click.FloatRange):
    """As click's, which no comparison keeps from taking "nan", nor "inf" without an upper end."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a number to count with", param, ctx)
        return found


def _size(words: str) -> int:
    from lodefs.proxy.config import parse_size

    return parse_size(words)


def _rate(words: str) -> int:
    from lodefs.proxy.config import parse_size

    rate = parse_size(words)
    if rate <= 0:
        raise InvalidInput(f"{words} is no rate: more than 0")
    return rate


DURATION = ParsedType("DURATION", int, parse_duration)  # in seconds
SIZE = ParsedType("SIZE", int, _size)  # in bytes, such as 4MiB
RATE = ParsedType("BYTES", int, _rate)  # a size such as 200MB: how many bytes a second
