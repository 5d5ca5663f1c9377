"""Every line with ``lodefs`` that a page or a help text shows is one that lodefs takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from lodefs.app import COMMANDS, cli
from lodefs.chunkstore.errors import InvalidInput
from tests.docs.pages import ROOT, commands_in, commands_of, documents, mentions_of

PAGES = documents()
NO_COMMANDS = {  # contexts of BLAKE3 and of signatures, and what stands for any command
    *("tree 10", "content 10", "peer request 2"),
    *("COMMAND --help", "help COMMAND"),
}


def mistake_in(words: Sequence[str]) -> str:
    """What the parser has against the words after ``lodefs``; "" if nothing. Nothing is run."""
    if words[:1] == ["help"]:
        words = words[1:]
    command: click.Command = cli
    ctx = click.Context(cli, info_name="lodefs")
    try:
        while True:
            values, left, _ = command.make_parser(ctx).parse_args(list(words))
            if not isinstance(command, click.Group):
                break
            if not left:
                return ""
            name, found, words = command.resolve_command(ctx, left)
            assert found is not None
            command, ctx = found, click.Context(found, info_name=name, parent=ctx)
        if left and not command.allow_extra_args:
            return f"too many words: {left}"
        return _bad_value(ctx, command, values)
    except click.UsageError as error:
        return error.format_message()


def _bad_value(ctx: click.Context, command: click.Command, values: dict[str, object]) -> str:
    """The first value that is none of its option's type; names in capitals stand for any."""
    for param in command.params:
        given = values.get(param.name or "")
        is_checked = isinstance(param, click.Option) and not isinstance(param.type, click.Path)
        if is_checked and isinstance(given, str) and not (given.isupper() or "…" in given):
            try:
                param.type_cast_value(ctx, given)
            except (click.BadParameter, InvalidInput) as error:
                return f"{param.name}: {error}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page(page: Path) -> None:
    """The commands and options of a page's blocks and sentences exist, and the values of options
    are of their types. A sentence may mention an option without its value."""
    text = page.read_text()
    found = [(line, mistake_in(line)) for line in commands_of(text)]
    for line in mentions_of(text):
        mistake = "" if " ".join(line) in NO_COMMANDS else mistake_in(line)
        found.append((line, "" if mistake.endswith("requires an argument.") else mistake))
    assert [one for one in found if one[1]] == []


def helps(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """The help of a command, and of those below it."""
    yield command.get_help(ctx)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from helps(found, click.Context(found, info_name=name, parent=ctx))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_text(name: str) -> None:
    """So do those of the examples of a help text."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    ctx = click.Context(command, info_name=name, parent=click.Context(cli, info_name="lodefs"))
    seen = 0
    for text in helps(command, ctx):
        examples = text.partition("Examples:\n")[2]
        for line in commands_in(examples):
            seen += 1
            assert (line, mistake_in(line)) == (line, "")
    assert seen


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("lodefs push ./cats vision/cats --chek", "No such option"),
        ("lodefs pussh ./cats vision/cats", "No such command"),
        ("lodefs tag a b c d e", "too many words"),
        ("lodefs warm r --pin 7x", "pin"),
        ("lodefs repair index --fast", "No such option"),
        ("lodefs log r -n", "requires an argument"),
        ("17 3 * * * lodefs gc --all", "No such option"),
        ("x=$(lodefs ls --jsn | cat)", "No such option"),
    ],
)
def test_mistakes_are_found(line: str, mistake: str) -> None:
    """A command, an option or a value that there is not is a mistake, wherever it stands."""
    (words,) = commands_in(line)
    assert mistake in mistake_in(words)


def test_what_is_no_command() -> None:
    """``lodefs`` as an argument of another program, and in a comment, is no command of lodefs."""
    script = (
        "apt remove lodefs # lodefs nothing\ndocker plugin set lodefs A=b\nusermod -aG lodefs U\n"
    )
    assert list(commands_in(script)) == []
