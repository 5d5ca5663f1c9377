"""``lodefs man``."""

from __future__ import annotations

import shutil
import subprocess
import sys

import click

from lodefs.cli import options as cli
from lodefs.cli.manual import GroupedCommands, page_lines
from lodefs.commands.version import number
from lodefs.settings.session import Session


@cli.command("lodefs man", "lodefs man > ~/.local/share/man/man1/lodefs.1")
def man(session: Session) -> None:  # noqa: ARG001
    """Show the manual page, with all commands and their options. If standard output is not a
    terminal, write it in the format of man(1)."""
    program = click.get_current_context().find_root().command
    assert isinstance(program, GroupedCommands)
    page = "\n".join(page_lines(program, number()))
    if sys.stdout.isatty() and (viewer := shutil.which("man")):
        subprocess.run([viewer, "-l", "-"], input=f"{page}\n", text=True, check=False)
    else:
        cli.write_line(page)
