"""Types of command line options whose values a function parses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.durations import parse_duration
from lodefs.chunkstore.system.task_share import TaskShare, parse_task_share

T = TypeVar("T")


class ParsedType(click.ParamType[T]):
    """A value that ``parse`` makes of a word; it raises InvalidInput. ``name``: the value's name in
    help texts; ``kind``: its class, since a default is already a value."""

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
            if isinstance(param, click.Option):  # the name of an option says which value is wrong
                raise InvalidInput(f"{param.opts[0]} {value}: {error}") from error
            raise


class UntouchedPath(click.Path):
    """Like click's Path, which asks the file system about each path. Here it must not: a mount may
    never answer."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> Any:
        return self.coerce_path_result(value)


class FiniteRange(click.FloatRange):
    """Like click's FloatRange, which accepts "nan", and "inf" if there is no upper end."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number", param, ctx)
        return found


def _size(words: str) -> int:
    from lodefs.proxy.config import parse_size

    return parse_size(words)


def _rate(words: str) -> int:
    from lodefs.proxy.config import parse_size

    rate = parse_size(words)
    if rate <= 0:
        raise InvalidInput(f"{words} is not a rate: it must exceed 0")
    return rate


DURATION = ParsedType("DURATION", int, parse_duration)  # in seconds
SIZE = ParsedType("SIZE", int, _size)  # in bytes, such as 4MiB
RATE = ParsedType("BYTES", int, _rate)  # in bytes a second, such as 200MB
TASK_SHARE = ParsedType("K/N", TaskShare, parse_task_share)
