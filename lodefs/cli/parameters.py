"""Describes what a parameter of a function is on the command line: an option or an argument.

A function describes each parameter once: name, type, default, help. A command does so in the
default of the parameter, which click always passes. A function of the Python API, which has
defaults of its own, does so in the annotation. A command may take over the options of such a
function.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Unpack, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class OnCommandLine:
    """An option or an argument. An option without ``words`` is named like the parameter. ``more``:
    settings for click that do not follow from the type."""

    words: tuple[str, ...]
    is_argument: bool
    more: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that is on the command line. ``kind``: its type, without None."""

    name: str
    kind: Any
    is_optional: bool
    default: object
    place: OnCommandLine


def option(help_text: str, *words: str, **more: Any) -> Any:
    """Declares an option."""
    return OnCommandLine(words, is_argument=False, more={"help": help_text} | more)


def argument(metavar: str | None = None, **more: Any) -> Any:
    """Declares an argument."""
    return OnCommandLine((), is_argument=True, more={"metavar": metavar} | more)


def parameters_of(function: Callable[..., Any]) -> Iterator[Parameter]:
    """Yields the parameters that are on the command line, in their order."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
    defaults |= function.__kwdefaults__ or {}
    for name, hint in _hints(function).items():
        for one, kind in _options(name, hint):
            if (found := _parameter(one, kind, defaults.get(one))) is not None:
                yield found


def show_options(function: Any) -> None:
    """Makes ``inspect.signature``, and tools that show it, name the options of a function one by
    one with their types."""
    shown: list[inspect.Parameter] = []
    hints = _hints(function)
    for parameter in inspect.signature(function).parameters.values():
        of_it = hints.get(parameter.name, parameter.annotation)  # self has none
        for name, hint in _options(parameter.name, of_it):
            is_own = name == parameter.name
            kind = parameter.kind if is_own else inspect.Parameter.KEYWORD_ONLY
            default = parameter.default if is_own else _default(name, hint)
            plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            shown.append(inspect.Parameter(name, kind, default=default, annotation=plain))
    function.__signature__ = inspect.signature(function).replace(parameters=shown)


def _options(name: str, hint: Any) -> list[tuple[str, Any]]:
    """Returns a parameter itself; for ``**options: Unpack[Table]``, the keys of the table."""
    if get_origin(hint) is Unpack:
        return list(_hints(get_args(hint)[0]).items())
    return [(name, hint)]


def _default(name: str, hint: Any) -> object:
    """Returns the default of a key that is not given."""
    found = _parameter(name, hint, None)
    if found is None or found.default is not None:
        return found and found.default
    return () if found.place.more.get("multiple") else False if found.kind is bool else None


def _hints(of: Any) -> dict[str, Any]:
    """Returns the types of parameters or keys. A name that only type checkers import becomes Any;
    no option has such a type."""
    names = defaultdict(lambda: Any, vars(builtins) | vars(sys.modules[of.__module__]))
    return get_type_hints(of, localns=names, include_extras=True)


def _parameter(name: str, kind: Any, default: Any) -> Parameter | None:
    place = default
    if not isinstance(place, OnCommandLine) and get_origin(kind) is Annotated:
        kind, place = get_args(kind)[:2]
    if not isinstance(place, OnCommandLine):
        return None
    if default in (None, place):
        default = place.more.get("default")
    left = [one for one in get_args(kind) if one is not type(None)]
    is_optional = type(None) in get_args(kind)
    kind = left[0] if is_optional and len(left) == 1 else kind
    return Parameter(name, kind, is_optional, default, place)
