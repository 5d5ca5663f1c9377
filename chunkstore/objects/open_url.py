"""Opens an object store by its URL: the composition root of stores and their wrappers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.clouds.azure import open_azure
from lodefs.chunkstore.objects.clouds.gcs import open_gcs
from lodefs.chunkstore.objects.clouds.http_objects import CloudApi, HttpObjects
from lodefs.chunkstore.objects.directory import TEMPORARY, DirectoryObjects
from lodefs.chunkstore.objects.in_place.source_objects import S3SourceObjects, Sources
from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks
from lodefs.chunkstore.objects.interface import ObjectStore, ServerCopy
from lodefs.chunkstore.objects.limiting import Limited
from lodefs.chunkstore.objects.mirrored import Mirrored
from lodefs.chunkstore.objects.observing import Observation, Observed
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.objects.retrying import Retrying
from lodefs.chunkstore.objects.s3 import boto
from lodefs.chunkstore.objects.s3.boto import S3Options
from lodefs.chunkstore.objects.s3.bucket import PatientBucket, S3Bucket
from lodefs.chunkstore.objects.s3.store import S3Objects
from lodefs.chunkstore.objects.schemes import FORMS, SETTINGS, scheme_of
from lodefs.chunkstore.system.retry_policy import RetryPolicy

_FORMS = f"use {FORMS}, file:///PATH, or a path"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")  # RGW takes more names than AWS
_PREFIX = re.compile(r"[\w!.*'()/=+@,&$:;-]+\Z")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
PREFIX_BYTES_MAX = 100
# For a store with mirrors: a reader waits a minute for all of them together
MIRROR_ATTEMPTS_MAX = 2
MIRROR_TIME_S_MAX = 5.0
MIRROR_THROTTLED_S_MAX = 1.0
MIRROR_CONNECT_TIMEOUT_S = 3.0
MIRROR_READ_TIMEOUT_S = 10.0
MIRROR_RATE_BYTES_S_MIN = 512 * 1024  # then 8 MiB, the largest read, leave the mirror 4 of 30 s
# Found in a directory without a store: a dead `init` or a new file system leaves them
_HARMLESS = (TEMPORARY, keys.PROBES.rstrip("/"), "lost+found")
_NAMED_MAX = 4  # files that an error lists


@dataclass(frozen=True, slots=True)
class StoreOptions(S3Options):
    """The options for reaching a store. The fields of S3Options matter only for S3."""

    attempts_max: int = 5  # for one call
    retry_time_s_max: float = 180.0  # for one call, until its last attempt begins
    first_time_s_max: float | None = None  # the same, before the store has ever answered
    throttled_s_max: float = 180.0  # the same, while the store throttles
    calls_max: int = 32  # concurrent calls
    wait_s_max: float = 120.0  # how long a call waits for its turn
    observe: Callable[[Observation], None] | None = None  # called for every call
    on_retry: Callable[[Unavailable], None] | None = None  # called before each retry
    sources: Mapping[str, SourceSettings] = field(default_factory=dict)  # of virtual packs, by name


def open_objects(url: str, options: StoreOptions | None = None) -> ObjectStore:
    """Opens the store at ``url``, with retries, limits and, if ``observe`` is set, observation.

    ``url`` is ``s3://bucket/prefix`` (``?endpoint_url=...&region=...`` overrides the options),
    ``gs://bucket/prefix``, ``az://container/prefix`` (``?account=...`` overrides the environment),
    ``file:///path``, or a path, in which '?' has no special meaning. It does not connect yet.
    Raises: InvalidInput.
    """
    options = options or StoreOptions()
    open_source = _SOURCES.get(scheme_of(url), _open_directory)
    _, patient = _patient(open_source(url, options), options)
    seen = Observed(patient, options.observe) if options.observe else patient
    return PackLocations(VirtualPacks(seen, open_sources(options.sources, options)))


def endpoint_of(url: str, options: StoreOptions) -> str:
    """Returns the URL of the server of a store. Raises: InvalidInput."""
    if scheme_of(url) == "s3":
        return boto.endpoint_of(_s3_place(url, options).options)
    return _cloud_api(url)[0].endpoint


def open_sources(sources: Mapping[str, SourceSettings], options: StoreOptions) -> Sources:
    """Opens nothing yet; a source is reached with the times and limits of ``options``, but with
    endpoint, region and credentials of its own."""
    own = replace(options, endpoint_url=None, region=None, credentials=None)

    def open_source(settings: SourceSettings) -> S3SourceObjects:
        there = replace(
            own,
            endpoint_url=settings.endpoint_url,
            region=settings.region,
            profile=settings.profile,
        )
        return S3SourceObjects(*open_bucket(settings.url, there))

    return Sources(sources, open_source)


def open_bucket(url: str, options: StoreOptions | None = None) -> tuple[PatientBucket, str]:
    """Opens the bucket of ``s3://BUCKET[/PREFIX][?endpoint_url=...&region=...]`` to read what
    others keep there. Returns it and the prefix, without slashes around it. It does not connect
    yet. Requests say that their sender pays if AWS_REQUEST_PAYER is "requester". Raises:
    InvalidInput, also for a prefix that has a part that is empty, '.' or '..'."""
    name, prefix, options = _s3_parts(url, options or StoreOptions())
    if any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        raise InvalidInput(
            f"{prefix!r} is no prefix of files: it has a part that is empty, '.' or '..'"
        )
    pays = os.environ.get("AWS_REQUEST_PAYER") == "requester"
    bucket = S3Bucket(name, "", replace(options, requester_pays=pays))
    return PatientBucket(bucket, *_patient(bucket, options), options.observe), prefix


def open_server_copy(
    source_url: str, destination_url: str, options: StoreOptions
) -> ServerCopy | None:
    """Opens server-side copies between two stores; returns None unless both are on S3, at one
    endpoint and in one region. (Their credentials are the same, since a process has one set.)
    Raises: InvalidInput."""
    if not scheme_of(source_url) == scheme_of(destination_url) == "s3":
        return None
    source = _s3_place(source_url, options)
    there = _s3_place(destination_url, options)
    if source.endpoint != there.endpoint:
        return None
    return _S3ServerCopy(source.bucket, source.prefix, there)


def open_mirrored(url: str, mirrors: Sequence[str], options: StoreOptions) -> Mirrored:
    """Opens the store at ``url``, and others with copies of it, as one. It gives up each of them
    sooner than a store without mirrors. Raises: InvalidInput."""
    soon = replace(
        options,
        attempts_max=MIRROR_ATTEMPTS_MAX,
        retry_time_s_max=MIRROR_TIME_S_MAX,
        throttled_s_max=MIRROR_THROTTLED_S_MAX,
        connect_timeout_s=MIRROR_CONNECT_TIMEOUT_S,
        read_timeout_s=MIRROR_READ_TIMEOUT_S,
        rate_bytes_s_min=MIRROR_RATE_BYTES_S_MIN,
    )
    return Mirrored([open_objects(one, soon) for one in (url, *mirrors)])


def check_empty(url: str) -> None:
    """Raises: InvalidInput if a new store at ``url`` would lie among other files of a directory."""
    if scheme_of(url):
        return
    path = _directory_of(url)
    try:
        there = sorted(os.listdir(path))
    except OSError:
        return  # it does not exist yet, or creating the store raises the error
    others = [name for name in there if name not in _HARMLESS]
    if others and keys.STORE not in there:
        named = ", ".join(others[:_NAMED_MAX]) + (", ..." if len(others) > _NAMED_MAX else "")
        raise InvalidInput(
            f"{path} is not empty (it has {named}): a store needs a new or empty directory"
        )


def _directory_of(url: str) -> str:
    if url.startswith("file:"):
        return _path_of(url)
    if not url or "\0" in url:
        raise InvalidInput(f"{url!r} is not a store: {_FORMS}")
    if _SCHEME.match(url):
        scheme = url.partition(":")[0]
        raise InvalidInput(f"{scheme}: is not a kind of store that lodefs knows; {_FORMS}")
    return os.path.expanduser(url)


class _S3ServerCopy:
    """Copies from a prefix on S3 to another one at the same endpoint, which the same credentials
    reach, with retries."""

    def __init__(self, bucket: str, prefix: str, there: _S3Place) -> None:
        """The first copy opens ``there``."""
        self._bucket = bucket
        self._prefix = prefix
        self._place = there
        self._opened: tuple[S3Objects, Limited, Retrying] | None = None
        self._lock = Lock()  # lets one thread open it

    def copy(self, key: str, if_match: str) -> str:
        with self._lock:
            if self._opened is None:
                opened = self._place.open()
                self._opened = opened, *_patient(opened, self._place.options)
            there, limited, patient = self._opened
        return patient.repeat(
            lambda: limited.limited(
                lambda: there.copy_from(self._bucket, self._prefix, key, if_match)
            )
        )

    def close(self) -> None:
        if self._opened is not None:
            self._opened[0].close()


def _patient(source: ObjectStore, options: StoreOptions) -> tuple[Limited, Retrying]:
    """Wraps ``source`` in limits, and these in retries: a call that pauses before its retry must
    not block the calls of others."""
    limited = Limited(source, options.calls_max, options.wait_s_max)
    policy = RetryPolicy(
        options.attempts_max,
        options.retry_time_s_max,
        first_time_s_max=options.first_time_s_max,
        throttled_s_max=options.throttled_s_max,
    )
    return limited, Retrying(limited, policy, on_retry=options.on_retry)


class _S3Place(NamedTuple):
    """The parts of a URL."""

    bucket: str
    prefix: str
    options: StoreOptions

    @property
    def endpoint(self) -> tuple[str | None, str | None]:
        """The destination of requests. Two places of one process are the same if these are
        equal."""
        url = self.options.endpoint_url
        return url and url.rstrip("/"), self.options.region

    def open(self) -> S3Objects:
        """Opens the store. Raises: InvalidInput, as S3Objects does."""
        return S3Objects(*self)


def _s3_place(url: str, options: StoreOptions) -> _S3Place:
    place = _s3_parts(url, options)
    return place._replace(prefix=_checked_prefix(place.prefix))


def _open_s3(url: str, options: StoreOptions) -> ObjectStore:
    return _s3_place(url, options).open()


def _open_cloud(url: str, options: StoreOptions) -> ObjectStore:
    return HttpObjects(*_cloud_api(url), options)


def _cloud_api(url: str) -> tuple[CloudApi, str]:
    """Returns the interface to the bucket of a gs:// or az:// URL, and the prefix. Raises:
    InvalidInput."""
    place = _bucket_parts(url)
    prefix = _checked_prefix(place.prefix)
    if scheme_of(url) == "gs":
        return open_gcs(place.bucket), prefix
    return open_azure(place.bucket, place.settings.get("account")), prefix


def _open_directory(url: str, _options: StoreOptions) -> ObjectStore:
    return DirectoryObjects(_directory_of(url))


_SOURCES = {"s3": _open_s3, "gs": _open_cloud, "az": _open_cloud}


def _s3_parts(url: str, options: StoreOptions) -> _S3Place:
    """Returns the parts of a URL, whose prefix may be any. Raises: InvalidInput."""
    if not url.startswith("s3://"):
        raise InvalidInput("the URL of a store on S3 begins with s3://, as s3://bucket/prefix does")
    place = _bucket_parts(url)
    if not _BUCKET.match(place.bucket):  # it may be a secret, so the message does not quote it
        raise InvalidInput(
            "the URL's bucket is not a valid name: one has 3 to 63 letters, digits, '-' and '.', "
            "a letter or digit first; use s3://bucket/prefix"
        )
    endpoint_url = place.settings.get("endpoint_url", options.endpoint_url)
    region = place.settings.get("region", options.region)
    _check_endpoint(endpoint_url)
    profile = place.settings.get("profile", options.profile)
    own = replace(options, endpoint_url=endpoint_url, region=region, profile=profile)
    return _S3Place(place.bucket, place.prefix, own)


class _BucketParts(NamedTuple):
    """The parts of a URL of a store on a server. The name of the bucket is unchecked."""

    bucket: str
    prefix: str
    settings: dict[str, str]


def _bucket_parts(url: str) -> _BucketParts:
    """Returns the parts of a URL. Raises: InvalidInput."""
    scheme = scheme_of(url)
    form = f"{scheme}://bucket/prefix"
    if not url.startswith(f"{scheme}://"):
        raise InvalidInput(f"the URL of such a store begins with {scheme}://, as {form} does")
    parts = _split(url)
    if "@" in parts.netloc:
        raise InvalidInput(f"a store's URL must not hold credentials: {_CREDENTIALS[scheme]}")
    if not parts.netloc:
        raise InvalidInput(f"the URL names no bucket; use {form}")
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_settings(url, settings, SETTINGS[scheme])
    if not all(settings.values()):
        raise InvalidInput(f"the settings in a store's URL need values: {', '.join(settings)}")
    return _BucketParts(parts.netloc, unquote(parts.path).strip("/"), settings)


_CREDENTIALS = {
    "s3": (
        "put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
        "~/.aws/credentials"
    ),
    "gs": "let GOOGLE_APPLICATION_CREDENTIALS name their file",
    "az": (
        "put them into AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or "
        "AZURE_STORAGE_CONNECTION_STRING; the account is a setting, az://container/prefix?account=NAME"
    ),
}


def _check_settings(url: str, query: dict[str, str], known: tuple[str, ...]) -> None:
    """Raises: InvalidInput for unknown settings. It quotes only names, since a value may be a
    secret."""
    unknown = [name for name, value in query.items() if name not in known and value]
    if query.keys() - set(known) or "#" in url or ("?" in url and not known):
        found = f", not {', '.join(map(repr, unknown))}" if unknown else ""
        takes = f"no settings but {' and '.join(known)}" if known else "no settings"
        raise InvalidInput(
            f"the URL of such a store takes {takes}{found}; write a '?' or '#' in a path as %3F or "
            "%23 in a URL"
        )


def _checked_prefix(prefix: str) -> str:
    """Returns the prefix of a store. Raises: InvalidInput."""
    if prefix and not _is_prefix(prefix):
        raise InvalidInput(
            f"{prefix!r} is not a prefix for a store: at most {PREFIX_BYTES_MAX} bytes of "
            "letters, digits and punctuation, without empty parts, '.' and '..'"
        )
    return prefix


def _is_prefix(prefix: str) -> bool:
    return (
        len(prefix.encode()) <= PREFIX_BYTES_MAX
        and bool(_PREFIX.match(prefix))
        and not any(part in ("", ".", "..") for part in prefix.split("/"))
    )


def _check_endpoint(endpoint_url: str | None) -> None:
    if endpoint_url is None:
        return
    parts = _split(endpoint_url)
    if "@" in parts.netloc:
        raise InvalidInput(
            "endpoint_url must not hold credentials: use AWS_ACCESS_KEY_ID and its like"
        )
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
        raise InvalidInput("endpoint_url is not the URL of an endpoint; use http://host:port")


def _split(url: str) -> SplitResult:
    """Returns the parts of a URL. Errors do not quote it, since a malformed URL may hold
    secrets."""
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidInput(f"a store's URL is malformed; {_FORMS}") from None


def _path_of(url: str) -> str:
    parts = _split(url)
    _check_settings(url, dict(parse_qsl(parts.query, keep_blank_values=True)), ())
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidInput(f"{url!r} is not a store: a file URL has the form file:///path")
    return path


def parse_endpoint(url: str) -> tuple[bool, str, int]:
    """Returns whether an endpoint's URL uses TLS, its host and its port. Raises: InvalidInput."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"{url!r} is not a URL: {error}") from error
    is_tls = parts.scheme == "https"
    other = parts.username or parts.path.strip("/") or parts.query or parts.fragment
    if not (is_tls or parts.scheme == "http") or not parts.hostname or other:
        raise InvalidInput(f"{url!r} must be http://HOST[:PORT] or https://HOST[:PORT]")
    return is_tls, parts.hostname, port or (443 if is_tls else 80)
