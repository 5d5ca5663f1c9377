"""Bytes a second as a type of the command line's options."""

from __future__ import annotations

from typing import Any

import click

from lodefs.proxy.config import parse_size


class RateType(click.ParamType[int]):
    """A size in bytes, such as ``200MB``: how many of them a second, more than 0."""

    name = "BYTES"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        rate = parse_size(value)
        if rate <= 0:
            self.fail(f"{value} is no rate: more than 0", param, ctx)
        return rate


RATE = RateType()
