"""Settings of the command line: TOML files and the environment become one Config.

Only this module reads the environment. Later sources win, key by key: /etc/lodefs/lodefs.toml,
~/.config/lodefs/lodefs.toml (or, instead of both, the file that LODEFS_CONFIG names), then
LODEFS_STORE and LODEFS_PROXY, then the command's own options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from chunkstore.errors import InvalidInput, NotFound
from lodefs import settingsfile

SYSTEM_FILE = Path("/etc/lodefs/lodefs.toml")
USER_FILE = Path("lodefs/lodefs.toml")  # under $XDG_CONFIG_HOME or ~/.config


class S3Config(msgspec.Struct, frozen=True):
    """The table [s3]. Credentials are not settings: they come from AWS's own chain."""

    endpoint_url: str | None = None
    region: str | None = None
    transfer_timeout_s: float | None = None


class Config(msgspec.Struct, frozen=True):
    """All settings. None: not set."""

    store: str | None = None
    proxy: str | None = None
    s3: S3Config = S3Config()
    serve: Mapping[str, object] = msgspec.field(
        default_factory=dict
    )  # fields of proxy.config.Config


_TOP = ("store", "proxy")
_TABLES = ("s3", "serve")
_NOT_SERVED = ("store", "endpoint_url", "region", "transfer_timeout_s")  # said elsewhere


def load(environment: Mapping[str, str], *, system_file: Path = SYSTEM_FILE) -> Config:
    """The settings of this machine, user and environment.

    InvalidInput names every mistake of a file with its line; NotFound and Denied name a file
    that LODEFS_CONFIG asks for and that cannot be read.
    """
    config = Config()
    named = environment.get("LODEFS_CONFIG")
    if named:
        config = _merged(config, Path(named), required=True)
    else:
        for path in (system_file, user_file(environment)):
            config = _merged(config, path, required=False)
    return msgspec.structs.replace(
        config,
        store=environment.get("LODEFS_STORE") or config.store,
        proxy=environment.get("LODEFS_PROXY") or config.proxy,
    )


def user_file(environment: Mapping[str, str]) -> Path:
    """Where the user's own settings lie."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(home(environment), ".config")
    return Path(base) / USER_FILE


def home(environment: Mapping[str, str]) -> str:
    """The user's home directory; "/" for a user without one."""
    return environment.get("HOME") or "/"


def parse(text: str, path: str = "lodefs.toml", base: Config | None = None) -> Config:
    """``base`` with the settings of one file's text; InvalidInput names all mistakes together."""
    values, mistakes = _read(settingsfile.document(text, path))
    if mistakes:
        raise settingsfile.complaint(text, path, mistakes)
    config = base or Config()
    top = {key: value for key, value in values.items() if "." not in key}
    s3, serve = (
        {k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{table}.")}
        for table in _TABLES
    )
    return msgspec.structs.replace(
        config,
        **top,
        s3=msgspec.structs.replace(config.s3, **s3),
        serve={**config.serve, **serve},
    )


def _merged(config: Config, path: Path, *, required: bool) -> Config:
    try:
        text = settingsfile.read_text(path)
    except NotFound:
        if not required:
            return config
        raise NotFound(f"{path}: no such file; LODEFS_CONFIG names it") from None
    return parse(text, str(path), config)


def _read(document: Mapping[str, object]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The valid settings by dotted key, and (key, what is wrong) for the others."""
    values: dict[str, Any] = {}
    mistakes: list[tuple[str, str]] = []
    for key, value in document.items():
        if key in _TABLES and isinstance(value, dict):
            checks = _serve_checks() if key == "serve" else _S3_CHECKS
            settings = {f"{key}.{name}": (inner, checks.get(name)) for name, inner in value.items()}
        elif key in _TABLES:
            settings = {key: (value, _no_table)}
        else:
            settings = {key: (value, _text if key in _TOP else None)}
        for dotted, (inner, check) in settings.items():
            wrong = check(inner) if check else "there is no such setting"
            if wrong:
                mistakes.append((dotted, wrong))
            else:
                values[dotted] = inner
    return values, mistakes


Check = Callable[[object], str]  # what is wrong with a value; "" where nothing is


def _text(value: object) -> str:
    return "" if isinstance(value, str) and value else "must be a text that is not empty"


def _seconds(value: object) -> str:
    good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return "" if good else "must be a number of seconds above 0"


def _no_table(value: object) -> str:  # noqa: ARG001
    return "must be a table"


_S3_CHECKS: dict[str, Check] = {
    "endpoint_url": _text,
    "region": _text,
    "transfer_timeout_s": _seconds,
}


def _serve_checks() -> dict[str, Check]:
    """The proxy knows best what its settings may be."""
    from proxy.config import Config as ProxyConfig  # here: most commands need no proxy's settings

    def check(parse: Callable[[object], object]) -> Check:
        def wrong(value: object) -> str:
            try:
                parse(value)
            except InvalidInput as error:
                return str(error)
            return ""

        return wrong

    return {
        one.name: check(one.metadata["parse"])
        for one in fields(ProxyConfig)
        if one.name not in _NOT_SERVED
    }
