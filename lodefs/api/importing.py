"""``lodefs.import_in_place`` commits the objects of a bucket without a copy of the large ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, Unpack
from urllib.parse import quote, unquote

from lodefs.api.parts.executors import EXECUTORS
from lodefs.api.pushing import ReaderOptions, opened_for, push_options
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.cli.parameters import option
from lodefs.cli.parsed_type import SIZE
from lodefs.settings.session import spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings
    from lodefs.chunkstore.push.in_place import InPlace
    from lodefs.chunkstore.push.limits import AllowRemovals
    from lodefs.chunkstore.push.session import CommitResult

COPY_BELOW_BYTES = 1 << 20
COPY_BELOW_BYTES_MIN = 64 << 10  # a pack names up to 1,024 objects
_NOT_NAME = re.compile(r"[^A-Za-z0-9]+")


class ImportOptions(ReaderOptions, total=False):
    """Options for what is imported."""

    exclude: Annotated[
        Iterable[str | bytes],
        option("Leave out objects that match, as in .gitignore.", multiple=True, metavar="PATTERN"),
    ]
    skip_unreadable: Annotated[
        bool, option("Leave out objects that cannot be read or be the path of a file.")
    ]


def import_in_place(
    url: str,
    repo: str | Spec,
    *,
    source: Annotated[
        str | None, option("The table [sources.NAME] of the settings [by URL].", metavar="NAME")
    ] = None,
    copy_below: Annotated[
        int, option("Store the bytes of smaller objects [1MiB].", type=SIZE)
    ] = COPY_BELOW_BYTES,
    allow_removals: Annotated[
        bool | AllowRemovals,
        option(
            "Commit even if that removes more than half of the files of the branch, or of PATH.",
            is_flag=True,
        ),
    ] = False,
    executor: Annotated[
        str | Executor | None,
        option(f"Read with {EXECUTORS}"),
    ] = None,
    **options: Unpack[ImportOptions],
) -> CommitResult:
    """Commits the objects below ``s3://BUCKET/PREFIX`` to ``REPO[@BRANCH][:PATH]`` as ``push``
    does, but the bytes of objects of at least ``copy_below`` bytes stay where they are.

    ``source``: the name of a source in the settings whose URL is the beginning of ``url``; by
    default the one with the longest such URL. Readers read these objects from the source that their
    own settings give that name, and so do the workers of an ``executor``. The rest: as for
    ``push``.

    Raises: InvalidInput if the settings name no such source; what ``push`` raises.
    """
    from lodefs.chunkstore.push.changes.change import PutDirectory
    from lodefs.chunkstore.push.changes.commit_changes import commit_changes
    from lodefs.chunkstore.push.push import push

    spec = spec_of(repo)
    if executor is not None:
        if spec.path:
            raise InvalidInput(f"{spec}: an import with an executor takes REPO[@BRANCH] alone")
        from lodefs.api.parts.push_plans import push_with

        there = {"in_place": True, "copy_below": copy_below, "source_name": source}
        return push_with(executor, url, spec, allow_removals, {**options, **there})
    with opened_for(options) as settings:
        root, in_place = left_in_place(url, settings.config.sources, source, copy_below)
        core = push_options(settings, options, allow_removals=allow_removals)
        core = replace(core, in_place=in_place)
        progress = options.get("progress")
        if not spec.path:
            return push(settings.store, root, spec.repo, spec.rev, core, progress)
        changes = [PutDirectory(spec.path, root)]
        return commit_changes(settings.store, spec.repo, spec.rev, changes, core, progress=progress)


def left_in_place(
    url: str, sources: Mapping[str, SourceSettings], name: str | None, copy_below: int
) -> tuple[str, InPlace]:
    """Returns the URL that an import reads, and what it leaves there. Raises: InvalidInput."""
    from lodefs.chunkstore.push.in_place import InPlace

    if copy_below < COPY_BELOW_BYTES_MIN:
        raise InvalidInput(f"copy_below must be at least {COPY_BELOW_BYTES_MIN} bytes (64KiB)")
    place = place_of(url, sources, name)
    in_place = InPlace(place.source, place.prefix, copy_below)
    return readable_url(url, sources[place.source]), in_place


class SourcePlace(NamedTuple):
    """A source, and how the keys that it has below a URL begin."""

    source: str
    prefix: str


def place_of(url: str, sources: Mapping[str, SourceSettings], name: str | None) -> SourcePlace:
    """Returns where a URL lies in a source: the one that is named, or the one with the longest
    URL. Raises: InvalidInput, with the lines to add to the settings."""
    from lodefs.chunkstore.objects.in_place.source_settings import lines_for

    wanted = url.rstrip("/")
    if not url.startswith("s3://") or "?" in url:
        raise InvalidInput(
            f"{url.partition('?')[0]}: only s3://BUCKET/PREFIX is imported in place, with "
            "endpoint_url and region in the settings of its source, since nothing else says for "
            "sure that an object has not changed; `lodefs push` takes a copy from other URLs"
        )
    if name is not None and name not in sources:
        raise InvalidInput(
            f"the settings name no source {name}: add {lines_for(name, wanted)} to lodefs.toml, "
            "here and on all readers"
        )
    bases = {one: sources[one].url.rstrip("/") for one in (sources if name is None else [name])}
    fitting = [one for one, base in bases.items() if f"{wanted}/".startswith(f"{base}/")]
    if not fitting:
        if name is not None:
            raise InvalidInput(f"{url} is not below {bases[name]}, the URL of the source {name}")
        new = _NOT_NAME.sub("-", wanted.removeprefix("s3://")).strip("-")[:100] or "NAME"
        raise InvalidInput(
            f"the settings name no source with {url}: add {lines_for(new, wanted)} to lodefs.toml, "
            "here and on all readers"
        )
    found = max(fitting, key=lambda one: len(bases[one]))
    prefix = unquote(wanted[len(bases[found]) :]).strip("/")
    return SourcePlace(found, prefix and f"{prefix}/")


def readable_url(url: str, settings: SourceSettings) -> str:
    """Returns the URL that a push reads with the endpoint, region and credentials of a source."""
    given = {
        "endpoint_url": settings.endpoint_url,
        "region": settings.region,
        "profile": settings.profile,
    }
    query = "&".join(f"{key}={quote(one, safe='')}" for key, one in given.items() if one)
    return url.rstrip("/") + (f"?{query}" if query else "")
