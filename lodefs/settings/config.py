"""Settings of the command line: TOML files and the environment make one Config.

Only this module reads the environment. Later sources win, key by key: /etc/lodefs/lodefs.toml,
~/.config/lodefs/lodefs.toml (or, instead of both, the file that LODEFS_CONFIG names), then
LODEFS_STORE and LODEFS_PROXY, then the command's own options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings, parse_sources
from lodefs.chunkstore.protocol.access import parse_rules
from lodefs.settings import toml_file

SYSTEM_FILE = Path("/etc/lodefs/lodefs.toml")
USER_FILE = Path("lodefs/lodefs.toml")  # under $XDG_CONFIG_HOME or ~/.config


class S3Config(msgspec.Struct, frozen=True):
    """The table [s3]. Credentials are not settings: they come from AWS's own chain."""

    endpoint_url: str | None = None
    region: str | None = None
    transfer_timeout_s: float | None = None


class Config(msgspec.Struct, frozen=True):
    """All settings. None means not set."""

    store: str | None = None
    proxy: str | None = None
    s3: S3Config = S3Config()
    access: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # groups by pattern
    writers: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)  # the same
    sources: Mapping[str, SourceSettings] = msgspec.field(default_factory=dict)  # by name
    serve: Mapping[str, object] = msgspec.field(
        default_factory=dict
    )  # fields of proxy.config.Config


_TABLES = ("s3", "serve")
_S3_PREFIX = "s3_"  # the proxy's settings in [serve.s3] have this prefix
# set elsewhere
_NOT_SERVED = ("store", "access", "sources", "endpoint_url", "region", "transfer_timeout_s")


def load(environment: Mapping[str, str], *, system_file: Path = SYSTEM_FILE) -> Config:
    """Returns the settings for this machine, user and environment. Raises: InvalidInput with every
    mistake in a file and its line; NotFound and Denied if the file of LODEFS_CONFIG cannot be
    read."""
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
    """Returns the path of the user's own settings."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(home(environment), ".config")
    return Path(base) / USER_FILE


def home(environment: Mapping[str, str]) -> str:
    """Returns the user's home directory; "/" for a user without one."""
    return environment.get("HOME") or "/"


def parse(text: str, path: str = "lodefs.toml", base: Config | None = None) -> Config:
    """``base`` with the settings from the text of a file. Raises: InvalidInput, with all
    mistakes."""
    values, mistakes = _read(toml_file.parse_document(text, path))
    if mistakes:
        raise toml_file.error_for(text, path, mistakes)
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
        text = toml_file.read_text(path)
    except NotFound:
        if not required:
            return config
        raise NotFound(f"{path}: no such file; LODEFS_CONFIG names it") from None
    return parse(text, str(path), config)


def _read(document: Mapping[str, object]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Returns the valid settings by dotted key, and (key, what is wrong) for each other setting."""
    found, mistakes = toml_file.read_values(document, _TOP_READERS)
    for table in _TABLES:
        inner = found.pop(table, None)
        if inner is not None:
            readers = _serve_readers() if table == "serve" else _S3_READERS
            more, wrong = toml_file.read_values(inner, readers, f"{table}.")
            found |= more
            mistakes += wrong
    inner = found.pop("serve.s3", None)
    if inner is not None:
        more, wrong = toml_file.read_values(inner, _serve_readers(_S3_PREFIX), "serve.s3.")
        found |= {key.replace("serve.s3.", f"serve.{_S3_PREFIX}"): more[key] for key in more}
        mistakes += wrong
    return found, mistakes


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidInput("must be a table")
    return value


_TOP_READERS: dict[str, toml_file.Reader] = {
    "store": toml_file.text,
    "proxy": toml_file.text,
    "access": parse_rules,
    "writers": parse_rules,
    "sources": parse_sources,
    **dict.fromkeys(_TABLES, _table),
}
_S3_READERS: dict[str, toml_file.Reader] = {
    "endpoint_url": toml_file.text,
    "region": toml_file.text,
    "transfer_timeout_s": toml_file.seconds(1, 3600),
}


def _serve_readers(prefix: str = "") -> dict[str, toml_file.Reader]:
    """Readers of the proxy's settings; with a prefix, of the settings that have it, by the rest of
    their names. The proxy also parses texts, for options; in a file a value has its own type."""
    from lodefs.proxy.config import (
        Config as ProxyConfig,  # imported here: most commands do not need it
    )

    def reader(parse: toml_file.Reader, types: tuple[type, ...]) -> toml_file.Reader:
        def read(value: object) -> object:
            parse(value if type(value) in types else _NO_VALUE)
            return value

        return read

    found = {
        one.name.removeprefix(prefix): reader(one.metadata["parse"], one.metadata["types"])
        for one in fields(ProxyConfig)
        if one.name not in _NOT_SERVED and one.name.startswith(prefix or _S3_PREFIX) == bool(prefix)
    }
    return found if prefix else {**found, "s3": _table}


_NO_VALUE = object()  # no setting accepts it: its parser raises, and says what it expects
