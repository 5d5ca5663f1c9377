"""Commands whose options and arguments are the parameters of a function."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, wraps
from pathlib import Path
from typing import Any, get_origin

import click

from lodefs.chunkstore.errors import Corrupt, InvalidInput, NotFound
from lodefs.chunkstore.format.foreign.git_url import is_git_url, spec_of_url
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, Spec, Target, parse_spec, parse_target
from lodefs.cli import text
from lodefs.cli.parameters import Parameter, argument, option, parameters_of

__all__ = ["argument", "option"]
from lodefs.cli.parsed_type import ParsedType
from lodefs.settings.session import Session

_REVISION = re.compile(rb"v?\d[\w.-]*\Z|[0-9a-f]{6,64}\Z|main\Z|master\Z|HEAD\Z")  # v2, 1.0
_STEPS = re.compile(r"[~^]")  # they begin what leads from a revision to one before it
STORE, PROXY = "The store [LODEFS_STORE].", "The proxy [LODEFS_PROXY]."


def reject(given: Mapping[str, object], why: str) -> None:
    """Raises UsageError for an option that was given and does not apply. None, False and "" mean
    that it was not given."""
    for name, value in given.items():
        if value is not None and value is not False and value != "":
            raise click.UsageError(f"{name} {why}")


def spec_from(words: str) -> Spec:
    """Parses REPO[@REV][:PATH] of the command line; REPO may be the URL of a Git repository.
    Raises: InvalidInput, with a hint if the colon before PATH is missing, or the revision before
    ~N."""
    if is_git_url(words):
        return spec_of_url(words)
    try:
        return parse_spec(os.fsencode(words))
    except InvalidInput as error:
        repo, at, rev = words.partition("@")
        if at and "/" in rev and ":" not in words:
            error.add_note(f"a path follows a colon: {repo}@{rev.replace('/', ':', 1)}")
        if not at and (steps := _STEPS.search(repo)):
            name, back = words[: steps.start()], words[steps.start() :]
            error.add_note(f"{back[0]} follows a revision: {name}@{DEFAULT_BRANCH}{back}")
        raise


SPEC = ParsedType("REPO[@REV][:PATH]", Spec, spec_from)
TARGET = ParsedType("REPO[@REV]", Target, parse_target)  # no REV means the whole repository
_TYPES: dict[object, Any] = {Spec: SPEC, Target: TARGET, Path: click.Path(path_type=Path), int: int}


def no_path(spec: Spec) -> None:
    """Raises InvalidInput for a path, if the command takes whole revisions."""
    if spec.path:
        raise InvalidInput(f"{spec}: this command takes REPO[@REV], without a path")


def not_found_hint(spec: Spec) -> str:
    """Returns the hint for a path that may be meant as a revision (REPO:v2); "" for any other
    path."""
    if spec.rev != DEFAULT_BRANCH or not _REVISION.match(spec.path):
        return ""
    return f"a revision is written with @: {spec.repo}@{spec.path.decode()}"


def examples(*commands: str) -> str:
    """Returns the last part of a command's help, with examples to copy."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


JSON: Any = option("Write JSON for scripts.", "--json")


def command(
    *lines: str,
    name: str | None = None,
    group: click.Group | None = None,
    store: bool = False,
    proxy: bool = False,
    of: Callable[..., Any] | None = None,
    **attributes: Any,
) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a command (of ``group``) of a function. The command calls the function with the Session
    and, from the command line, with its other parameters and those of ``of``, a function of the
    Python API.

    ``lines``: examples. ``store``, ``proxy``: the command takes ``--store`` and ``--proxy``. All
    commands also accept them before the command's name, for aliases of a shell. ``attributes``: for
    click.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        own = list(parameters_of(function))
        names = {one.name for one in own}
        found = [one for one in parameters_of(of) if one.name not in names] if of else []
        built = _with_session(function)
        if proxy:
            built = click.option("--proxy", "proxy_url", metavar="URL", help=PROXY)(built)
        if store:
            built = click.option("--store", "store_url", metavar="URL", help=STORE)(built)
        for one in sorted([*found, *own], key=lambda one: not one.place.is_argument)[::-1]:
            built = _on_command_line(one)(built)
        make: Any = click.command if group is None else group.command
        return make(name, epilog=examples(*lines), **attributes)(built)  # type: ignore[no-any-return]

    return decorate


def _with_session(function: Callable[..., None]) -> Any:
    @click.pass_obj
    @wraps(function)
    def with_session(
        session: Session,
        /,
        *,
        store_url: str | None = None,
        proxy_url: str | None = None,
        **more: Any,
    ) -> None:
        session.command_options = {"--store": store_url, "--proxy": proxy_url}
        session.apply_options(store=store_url, proxy=proxy_url)
        session.on_renamed = cache(warn_of_name)
        try:
            function(session, **more)
        except NotFound as error:
            spec = more.get("spec")
            if isinstance(spec, Spec) and (hint := not_found_hint(spec)):
                error.add_note(hint)
            raise
        except Corrupt as error:
            for spec in more.values():
                if isinstance(spec, Spec | Target) and spec.repo not in str(error):
                    error.add_note(f"the error concerns {spec}")
            raise

    return with_session


def _on_command_line(one: Parameter) -> Callable[[Any], Any]:
    """Returns the decorator of click for a parameter. The parameter's type decides the option's
    type."""
    more = dict(one.place.more)
    is_several = get_origin(one.kind) is tuple
    if one.kind in _TYPES and "callback" not in more:  # a callback parses
        more = {"type": _TYPES[one.kind]} | more
    elif choices := more.pop("choices", None):
        more["type"] = click.Choice(choices)
    if between := more.pop("between", None):
        more["type"] = click.IntRange(*between)
    if one.place.is_argument:
        if is_several:
            more = {"nargs": -1} | more
        elif one.is_optional or one.default is not None:
            more = {"required": False} | more
        if one.default is not None:
            more["default"] = one.default
        if str(more.get("metavar")).lstrip("[").startswith("REPO"):
            more["shell_complete"] = _spec_items
        return click.argument(one.name, **more)
    words = one.place.words or (f"--{one.name.replace('_', '-')}",)
    if is_several:
        more = {"multiple": True} | more
    elif one.kind is bool and not any("/" in word for word in words):
        more = {"is_flag": True} | more
    if one.default not in (None, False, ()) or (one.kind is bool and one.is_optional):
        more = {"default": one.default} | more
    return click.option(*words, one.name, **more)


def _spec_items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from lodefs.cli.completion import spec_items  # for shells alone

    return spec_items(ctx, param, incomplete)


def source_items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completions for SRC... before REPO."""
    from lodefs.cli import completion

    return completion.source_items(ctx, param, incomplete)


def revision_items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completions for REV or BRANCH after REPO."""
    from lodefs.cli import completion

    return completion.revision_items(ctx, param, incomplete)


def fields(value: object, *names: str) -> dict[str, object]:
    """Returns the named attributes of a result, for ``--json``."""
    return {name: plain(getattr(value, name)) for name in names}


def plain(value: object) -> object:
    """Returns a value as JSON: ids in hex, kinds by their names."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def write_json(value: object) -> None:
    """Writes one JSON value as one line to standard output."""
    import json  # here: most commands write lines

    write_line(json.dumps(value))


def write_line(line: str) -> None:
    """Writes one line to standard output, without flushing: a listing may have a million lines."""
    try:
        sys.stdout.write(line + "\n")
    except OSError as error:
        raise output_error(error) from None


def warn(line: str) -> None:
    """Writes one line to standard error; the command goes on after it."""
    click.echo(f"lodefs: warning: {text.escaped(line)}", err=True)


def warn_of_name(to: str) -> None:
    """Warns that a repository was named by its old name, which leads to ``to`` for a time."""
    warn(f"the repository is now called {to}, and its old name will expire: use the new one")


def output_error(error: OSError) -> OSError:
    """Returns the same error with standard output as its file (a full disk behind a
    redirection)."""
    return OSError(error.errno, error.strerror, "standard output")  # Python picks the same subclass
