"""Options and arguments that several commands have, as decorators."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import click

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import (
    DEFAULT_BRANCH,
    Spec,
    Target,
    parse_spec,
    parse_target,
)
from lodefs.cli import text
from lodefs.cli.parsed_type import ParsedType
from lodefs.settings.session import Session

F = TypeVar("F", bound=Callable[..., Any])
_REVISION = re.compile(rb"v?\d[\w.-]*\Z|[0-9a-f]{6,64}\Z|main\Z|master\Z|HEAD\Z")  # v2, 1.0
STORE, PROXY = "The store [LODEFS_STORE].", "The proxy [LODEFS_PROXY]."


def session_command(*, store: bool = False, proxy: bool = False) -> Callable[[F], F]:
    """Passes the Session first, and accepts ``--store`` and ``--proxy`` after a command that uses
    them. Before the command they are accepted for any, as in an alias of a shell."""

    def decorate(function: F) -> F:
        @click.pass_obj
        @wraps(function)
        def with_session(
            session: Session,
            /,
            *args: Any,
            store_url: str | None = None,
            proxy_url: str | None = None,
            **more: Any,
        ) -> Any:
            session.command_options = {"--store": store_url, "--proxy": proxy_url}
            session.apply_options(store=store_url, proxy=proxy_url)
            try:
                return function(session, *args, **more)
            except NotFound as error:
                spec = more.get("spec")
                if isinstance(spec, Spec) and (hint := not_found_hint(spec)):
                    error.add_note(hint)
                raise

        command: Any = with_session
        if proxy:
            command = click.option("--proxy", "proxy_url", metavar="URL", help=PROXY)(command)
        if store:
            command = click.option("--store", "store_url", metavar="URL", help=STORE)(command)
        return command  # type: ignore[no-any-return]

    return decorate


def reject(given: Mapping[str, object], why: str) -> None:
    """Raises UsageError for an option that was given and would do nothing. None, False and ""
    mean that it was not given."""
    for name, value in given.items():
        if value is not None and value is not False and value != "":
            raise click.UsageError(f"{name} {why}")


def spec_from(words: str) -> Spec:
    """REPO[@REV][:PATH] of the command line. Raises: InvalidInput, with a hint if the colon before
    PATH is missing."""
    try:
        return parse_spec(os.fsencode(words))
    except InvalidInput as error:
        repo, at, rev = words.partition("@")
        if at and "/" in rev and ":" not in words:
            error.add_note(f"a path follows a colon: {repo}@{rev.replace('/', ':', 1)}")
        raise


SPEC = ParsedType("REPO[@REV][:PATH]", Spec, spec_from)
TARGET = ParsedType("REPO[@REV]", Target, parse_target)  # without REV: all of the repository


def not_found_hint(spec: Spec) -> str:
    """The hint for a path that may be meant as a revision (REPO:v2); "" for any other."""
    if spec.rev != DEFAULT_BRANCH or not _REVISION.match(spec.path):
        return ""
    return f"a revision is written with @: {spec.repo}@{spec.path.decode()}"


def examples(*commands: str) -> str:
    """The last part of a command's help: commands to copy."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def json_option(function: F) -> F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON for scripts.")(function)


def write_json(value: object) -> None:
    """One JSON value on one line of standard output."""
    import json  # here: most commands write lines

    write_line(json.dumps(value))


def write_line(line: str) -> None:
    """One line on standard output; not flushed, since a listing may have a million."""
    try:
        sys.stdout.write(line + "\n")
    except OSError as error:
        raise output_error(error) from None


def warn(line: str) -> None:
    """One line on standard error that the command goes on after."""
    click.echo(f"lodefs: warning: {text.escaped(line)}", err=True)


def output_error(error: OSError) -> OSError:
    """The same error, of standard output (a full disk behind a redirection)."""
    return OSError(error.errno, error.strerror, "standard output")  # of the same subclass
