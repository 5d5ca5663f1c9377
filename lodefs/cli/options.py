"""Options and arguments that several commands have, as decorators."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import click

from lodefs.chunkstore.format.names import Spec, parse_spec
from lodefs.settings.session import Session

F = TypeVar("F", bound=Callable[..., Any])
STORE, PROXY = "The store [LODEFS_STORE].", "The proxy [LODEFS_PROXY]."


def session_command(*, store: bool = False, proxy: bool = False) -> Callable[[F], F]:
    """Passes the Session first, and lets ``--store`` and ``--proxy`` stand after a command that
    uses them. Before the command they are for whichever comes, as in an alias of a shell."""

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
            session.said = {"--store": store_url, "--proxy": proxy_url}
            session.use(store=store_url, proxy=proxy_url)
            return function(session, *args, **more)

        command: Any = with_session
        if proxy:
            command = click.option("--proxy", "proxy_url", metavar="URL", help=PROXY)(command)
        if store:
            command = click.option("--store", "store_url", metavar="URL", help=STORE)(command)
        return command  # type: ignore[no-any-return]

    return decorate


def refuse(given: Mapping[str, object], why: str) -> None:
    """UsageError where an option was given that would do nothing. None and False: not given."""
    for name, value in given.items():
        if value is not None and value is not False and value != "":
            raise click.UsageError(f"{name} {why}")


class SpecType(click.ParamType[Spec]):
    """REPO[@REV][:PATH]."""

    name = "REPO[@REV][:PATH]"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> Spec:
        return value if isinstance(value, Spec) else parse_spec(os.fsencode(value))


SPEC = SpecType()


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


def output_error(error: OSError) -> OSError:
    """The same error, of standard output (a full disk behind a redirection)."""
    return OSError(error.errno, error.strerror, "standard output")  # of the same subclass
