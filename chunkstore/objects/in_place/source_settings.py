"""The settings of sources: where the objects of virtual packs are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import check_source

_SCHEME = "s3://"
_COPIED = ("gs:", "az:", "abfs:", "abfss:", "http:", "https:", "hdfs:", "hf:")


class SourceSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a source's objects are: ``url`` is s3://BUCKET/PREFIX. ``profile`` names credentials in
    AWS's files. None stands for AWS's own settings and environment."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None


def parse_sources(value: object) -> Mapping[str, SourceSettings]:
    """Returns sources from a table of tables, by name. Raises: InvalidInput."""
    if not isinstance(value, Mapping):
        raise InvalidInput('must be tables such as [sources.archive], with url = "s3://..."')
    return {str(name): _source(str(name), one) for name, one in value.items()}


def lines_for(name: str, url: str = "s3://BUCKET/PREFIX") -> str:
    """Returns the lines that name a source in a file of settings, for messages."""
    return f'[sources.{name}] and below it url = "{url}"'


def _source(name: str, value: object) -> SourceSettings:
    check_source(name)
    if isinstance(value, SourceSettings):
        return value
    texts = value if isinstance(value, Mapping) else {"": value}
    names = SourceSettings.__struct_fields__
    if "url" not in texts or not all(k in names and isinstance(v, str) for k, v in texts.items()):
        raise InvalidInput(
            f"[sources.{name}] must have texts: url, and optionally {', '.join(names[1:])}"
        )
    found = SourceSettings(**texts)
    _check_url(name, found)
    return found


def _check_url(name: str, found: SourceSettings) -> None:
    """Raises: InvalidInput for a place that cannot be read in place."""
    if found.url.startswith(_SCHEME) and "?" not in found.url:
        return
    url = _shown(found.url)
    if found.url.startswith(_COPIED):
        raise InvalidInput(
            f"[sources.{name}]: {url} cannot be read in place, since nothing there says for sure "
            "that an object has not changed: `lodefs push URL` takes a copy"
        )
    raise InvalidInput(
        f"[sources.{name}]: {url} must be s3://BUCKET/PREFIX; endpoint_url and region are settings "
        "beside it"
    )


def _shown(url: str) -> str:
    """Returns the beginning of a URL, which has no secret."""
    scheme, mark, _ = url.partition("://")
    return f"{scheme}://..." if mark else "url"


def as_table(sources: Mapping[str, SourceSettings]) -> dict[str, dict[str, Any]]:
    """Returns what ``parse_sources`` reads."""
    return {name: msgspec.to_builtins(one) for name, one in sources.items()}
