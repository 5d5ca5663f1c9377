"""Options with numbers."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from lodefs.app import cli


def float_options(command: click.Command, context: click.Context) -> Iterator[click.Parameter]:
    """Of a command and all below it."""
    yield from (one for one in command.params if isinstance(one.type, click.types.FloatParamType))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from float_options(below, context)


@pytest.mark.parametrize("words", ["nan", "inf", "-inf", "NaN", "1e999"])
def test_no_number_to_count_with(words: str) -> None:
    """No option of any command takes what is no number, or none that ends: a loop that waits for so
    many seconds would not wait at all, or for ever."""
    context = click.Context(cli)
    found = list(float_options(cli, context))
    assert len(found) > 8
    for one in found:
        with pytest.raises(click.BadParameter):
            one.type.convert(words, one, context)
