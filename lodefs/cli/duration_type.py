"""DURATION as a type of the command line's options."""

from __future__ import annotations

from typing import Any

import click

from lodefs.chunkstore.system.durations import parse_duration


class DurationType(click.ParamType[int]):
    """DURATION, in seconds."""

    name = "DURATION"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> int:
        return value if isinstance(value, int) else parse_duration(value)


DURATION = DurationType()
