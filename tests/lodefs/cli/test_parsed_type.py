"""Options with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest

from lodefs.app import cli
from lodefs.chunkstore.errors import InvalidInput
from lodefs.cli.parsed_type import ParsedType


def parameters(
    command: click.Command, context: click.Context, kind: type[click.ParamType[Any]]
) -> Iterator[click.Parameter]:
    """Those whose type is of ``kind``, of a command and all below it."""
    yield from (one for one in command.params if isinstance(one.type, kind))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from parameters(below, context, kind)


@pytest.mark.parametrize("words", ["nan", "inf", "-inf", "NaN", "1e999"])
def test_no_number_to_count_with(words: str) -> None:
    """No option of any command takes what is no number, or none that ends: a loop that waits for so
    many seconds would not wait at all, or for ever."""
    context = click.Context(cli)
    found = list(parameters(cli, context, click.types.FloatParamType))
    assert len(found) > 8
    for one in found:
        with pytest.raises(click.BadParameter):
            one.type.convert(words, one, context)


def test_a_wrong_value_names_its_option() -> None:
    """What an option of any command cannot read is told with the option and the words, since a
    command has several; an argument's words say themselves what they are."""
    context = click.Context(cli)
    found = list(parameters(cli, context, ParsedType))
    options = [one for one in found if isinstance(one, click.Option)]
    assert {"--pin", "--grace", "--rate", "--merge-packs-below"} <= {one.opts[0] for one in options}
    for one in found:
        with pytest.raises(InvalidInput) as caught:
            one.type.convert("//@:", one, context)
        assert str(caught.value).startswith(f"{one.opts[0]} //@:: ") == (one in options)
