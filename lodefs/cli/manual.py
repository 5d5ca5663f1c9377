"""The manual page of a program, made from its ``--help`` texts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import click

_ABOUT = "versioned datasets on S3, read as files"


class GroupedCommands(click.Group):
    """A program with many commands. ``groups``: the groups of its help, with names of commands."""

    groups: Mapping[str, Collection[str]]


def page_lines(program: GroupedCommands, version: str) -> Iterator[str]:
    """Yields the page in roff, with the groups of the help and the help of each command."""
    ctx = click.Context(program, info_name="lodefs")
    yield f'.TH LODEFS 1 "" "lodefs {version}"'
    yield from [".SH NAME", f"lodefs \\- {_ABOUT}"]
    yield from [".SH SYNOPSIS", ".B lodefs", "[OPTIONS] COMMAND [ARGS]..."]
    yield ".SH DESCRIPTION"
    yield from _paragraphs(program.help or "")
    yield from _paragraphs(program.epilog or "")
    yield ".SH OPTIONS"
    yield from _options(program, ctx)
    yield from [".PP", "Every command takes", ".BR \\-\\-help ."]
    for group, commands in program.groups.items():
        yield f".SH {_roff(group.upper())}"
        for name in commands:
            command = program.get_command(ctx, name)
            assert command is not None
            yield from _command(command, click.Context(command, info_name=name, parent=ctx))
    yield from [".SH SEE ALSO", "The pages below docs/ of lodefs, and", ".BR mount (8)"]


def _command(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yields a command and, if it is a group, the commands below it."""
    yield f".SS {_roff(ctx.command_path)} {_roff(' '.join(command.collect_usage_pieces(ctx)))}"
    yield from _paragraphs(command.help or "")
    yield from _options(command, ctx)
    yield from _paragraphs(command.epilog or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from _command(below, click.Context(below, info_name=name, parent=ctx))


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and record[1] and "--help" not in param.opts:
            words, line = record
            yield from [".TP", f"\\fB{_roff(words)}\\fR", _roff(line)]


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of a help text. Lines after ``\\b`` keep their line breaks."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n").replace("\f", "")):
        lines = [line.strip() if "\b" not in paragraph else line for line in paragraph.splitlines()]
        if lines and lines[0].strip() == "\b":
            yield from [".PP", ".nf", *map(_roff, lines[1:]), ".fi"]
        elif any(lines):
            yield from [".PP", *map(_roff, lines)]


def _roff(line: str) -> str:
    """Returns a line of text in which roff sees no commands."""
    line = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{line}" if line.startswith(".") else line
