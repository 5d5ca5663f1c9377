"""Config: all settings of the node's proxy, and how they are read from plain values.

The command line reads files and the environment. This module only checks and converts values, and
reports all problems at once.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign.git import IMPORT_BYTES_MAX
from lodefs.chunkstore.format.foreign.git_url import check_allowed
from lodefs.chunkstore.format.names import Spec, check_repo, parse_spec
from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings, parse_sources
from lodefs.chunkstore.objects.schemes import FORMS, scheme_of
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.access import parse_rules
from lodefs.proxy.peers.membership import peer
from lodefs.proxy.peers.membership.members import distinct
from lodefs.proxy.peers.membership.peer import DnsName, Peer, parse_dns_name

T = TypeVar("T")

CACHE_DIR_DEFAULT = Path("/var/cache/lodefs")
SOCKET_DEFAULT = Path(wire.SOCKET_DEFAULT)
FETCH_CONCURRENCY = 32
DATA_PROCESSES_MAX = 64
CACHE_SIZE_BYTES_MIN = 64 << 20
UNWRITTEN_SIZE_BYTES = 16 << 20
CACHE_DISK_SHARE_DEFAULT = 0.8
RATE_BYTES_PER_S_MIN = 1 << 20  # at a lower rate, one chunk takes longer than its deadline
SCRUB_BYTES_PER_S = 16 << 20
SCRUB_DAYS = 7
HUB_SIZE_BYTES = 1 << 40  # of one repository that is fetched
S3_PORT_DEFAULT = 7480
PRICE_MAX = 1e6
TRACE_RATIO = 0.01
TLS_SETTINGS = ("peer_tls_cert_file", "peer_tls_key_file", "peer_tls_ca_file")
_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{unit}iB": 1 << 10 * power for power, unit in enumerate("KMGTP", 1)}
_UNITS |= {f"{unit}B": 10 ** (3 * power) for power, unit in enumerate("kMGTP", 1)}
_UNITS |= {"KB": 1000}
_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*\Z")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST_NAME = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?")
_STORES = '["s3://bucket/prefix", "/srv/store"]'  # an example
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "journald", "json", "console")


def parse_size(value: object) -> int:
    """Returns bytes from a number or from "10GiB", "500 MB", "1.5TiB". Raises: InvalidInput."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        raise InvalidInput("must be a size such as 10GiB or 500MB")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return int(number * _UNITS[match[2]])


def parse_listen(value: object, port_default: int = wire.PORT_DEFAULT) -> tuple[str, int] | None:
    """Returns host and port from "HOST:PORT", "HOST", "[::1]:PORT" or ":PORT"; None from ""."""
    text = _text(value)
    if not text:
        return None
    match = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", text)
    is_port_alone = match is not None and not match[2] and match[1].isdigit()
    if match is None or is_port_alone or (match[2] and int(match[2]) > 65535):
        raise InvalidInput(
            f"must be HOST:PORT, such as 0.0.0.0:{port_default} or [::]:{port_default}"
        )
    host = match[1].strip("[]") or "0.0.0.0"
    return host, int(match[2]) if match[2] else port_default


def _listen(port_default: int) -> Callable[[object], tuple[str, int] | None]:
    return partial(parse_listen, port_default=port_default)


def _bucket(value: object) -> str:
    name = _text(value)
    if not _BUCKET.fullmatch(name):
        raise InvalidInput(
            "must be the name of a bucket: 3 to 63 characters of a-z, 0-9, '.' and '-'"
        )
    return name


def _buckets(value: object) -> dict[str, Spec]:
    """Returns aliases from a table of texts REPO@REV[:PATH]."""
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
        raise InvalidInput('must be a table such as {imagenet = "vision/imagenet@v3:train"}')
    found = {}
    for name, text in value.items():
        try:
            _bucket(name)
        except InvalidInput as error:
            raise InvalidInput(f"{name!r} {error}") from error
        try:
            found[str(name)] = parse_spec(str(text))
        except InvalidInput as error:
            raise InvalidInput(
                f"{name} = {text!r} must be REPO@REV or REPO@REV:DIRECTORY: {error}"
            ) from error
    return found


def _endpoint_url(value: object) -> str:
    # Here, since few settings need it
    from lodefs.chunkstore.objects.open_url import parse_endpoint

    url = _text(value)
    parse_endpoint(url)
    return url


def _is_plain_url(text: str) -> bool:
    """Whether this is the URL of a web server, without a password, which logs and settings would
    show."""
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_good and not (parts.username or parts.password or parts.query or parts.fragment)


def _collector_url(value: object) -> str:
    """Returns the URL for OTLP."""
    text = _text(value)
    if not _is_plain_url(text):
        raise InvalidInput(
            "must be a collector's URL such as http://localhost:4318, without a password "
            "(headers go into OTEL_EXPORTER_OTLP_HEADERS)"
        )
    return text


def _hub_url(value: object) -> str:
    text = _text(value)
    if not _is_plain_url(text):
        raise InvalidInput("must be the URL of a hub, such as https://huggingface.co")
    return text.rstrip("/")


def _git_allowed(value: object) -> tuple[str, ...]:
    return tuple(map(check_allowed, _texts(value, '["https://github.com/org"]')))


def _repos(value: object) -> tuple[str, ...]:
    return tuple(map(check_repo, _texts(value, '["vision/cats"]')))


def _texts(value: object, example: str) -> list[str]:
    texts = value.split() if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise InvalidInput(f"must be a list such as {example}, or a text with spaces between them")
    return list(texts)


def _stores(value: object) -> tuple[str, ...]:
    texts = _texts(value, _STORES)
    if not all(scheme_of(one) or one.startswith(("file://", "/")) for one in texts):
        raise InvalidInput(f"must be a list of stores such as {_STORES}")
    return tuple(texts)


def _domain(value: object) -> str:
    name = _text(value).lower()
    if not _DOMAIN.fullmatch(name):
        raise InvalidInput("must be a host name such as s3.example.org, without a port")
    return name


def _host_names(value: object) -> tuple[str, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise InvalidInput('must be a list of names, such as ["data.example.org"]')
    found = tuple(text.strip().lower() for text in texts if text.strip())
    if not all(map(_HOST_NAME.fullmatch, found)):
        raise InvalidInput("must list host names without ports; *.example.org covers many")
    return found


def _peer_address(value: object) -> str:
    host, port = peer.split_address(_text(value))
    return peer.join_address(host, port)


def parse_peers(value: object) -> tuple[Peer, ...]:
    """Returns the members from a list of "HOST[:PORT][;weight=W]", or a text with commas in
    between.

    Duplicates count once. Raises: InvalidInput.
    """
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise InvalidInput('must be a list of addresses, such as ["node1:7441", "node2:7441"]')
    return distinct(peer.parse_peer(text) for text in texts if text.strip())


def _dns_name(value: object) -> DnsName:
    return parse_dns_name(_text(value))


def _text(value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise InvalidInput("must be a text")
    return os.fspath(value)


def _path(value: object) -> Path:
    text = _text(value)
    if not text:
        raise InvalidInput("must be a path")
    return Path(text)


def _maybe(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """Returns a parser like ``parse`` for which "" and None mean "not set"."""
    return lambda value: None if value in ("", None) else parse(value)


def _rate(value: object) -> int:
    rate = parse_size(value)
    if rate < RATE_BYTES_PER_S_MIN:
        raise InvalidInput(f"must be at least {RATE_BYTES_PER_S_MIN >> 20}MiB per second")
    return rate


def _rate_or_none(value: object) -> int:
    return 0 if value in (0, "0") else _rate(value)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = known.get(str(value).strip().lower())
    if found is None:
        raise InvalidInput("must be true or false")
    return found


def _mode(value: object) -> int:
    """Returns file permission bits, from an octal text ("0660") or a number such as TOML's
    0o660."""
    try:
        mode = int(value, 8) if isinstance(value, str) else value
    except ValueError:
        mode = None
    if not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise InvalidInput('must be a file mode such as "0660"')
    return mode


def _whole(least: int, most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = value
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,12}\s*", value):
            number = int(value)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise InvalidInput(f"must be a number from {least} to {most}")
        return number

    return parse


def _number(least: float, most: float, what: str) -> Callable[[object], float]:
    def parse(value: object) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise InvalidInput(f"must be a {what} from {least:g} to {most:g}")
        return number

    return parse


def _seconds(least: float, most: float) -> Callable[[object], float]:
    return _number(least, most, "number of seconds")


_PRICE = _number(0, PRICE_MAX, "price")


def _choice(*known: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in known:
            raise InvalidInput(f"must be one of {', '.join(known)}")
        return str(value)

    return parse


def _setting(default: object, parse: Callable[[object], object], *types: type) -> Any:
    """Returns a field of Config. ``default`` is its value, or dict for an empty one. ``parse``
    reads it from a text, or from a value of ``types``, the types in a settings file."""
    metadata = {"parse": parse, "types": types}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


PLAIN_TOKENS = (
    "tokens would cross the network unencrypted: give tls_cert_file and tls_key_file, listen on "
    "127.0.0.1, or set allow_plain_tokens = true if the network is trusted"
)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. ``cache_size_bytes_max`` None is a share of the disk; ``data_processes`` None
    is a number that suits the machine; ``listen`` None is no TCP; ``socket_path`` None is no Unix
    socket; with ``unused_timeout_s`` 0 the proxy runs until it is stopped;
    ``scrub_bytes_per_s_max`` 0 turns the scrub off."""

    store: str = field(metadata={"parse": _text, "types": (str,)})
    mirrors: tuple[str, ...] = _setting((), _stores, list, str)
    endpoint_url: str | None = _setting(None, _maybe(_text), str)
    region: str | None = _setting(None, _maybe(_text), str)
    transfer_timeout_s: float = _setting(60.0, _seconds(1, 3600), int, float)
    fetch_concurrency: int = _setting(FETCH_CONCURRENCY, _whole(1, 256), int)
    data_processes: int | None = _setting(None, _maybe(_whole(0, DATA_PROCESSES_MAX)), int)
    cache_dir: Path = _setting(CACHE_DIR_DEFAULT, _path, str)
    cache_size_bytes_max: int | None = _setting(None, _maybe(parse_size), int, str)
    unwritten_size_bytes_max: int = _setting(UNWRITTEN_SIZE_BYTES, parse_size, int, str)
    socket_path: Path | None = _setting(SOCKET_DEFAULT, _maybe(_path), str)
    socket_mode: int = _setting(0o660, _mode, int, str)
    socket_group: str | None = _setting(None, _maybe(_text), str)
    listen: tuple[str, int] | None = _setting(None, parse_listen, str)
    sources: Mapping[str, SourceSettings] = _setting(dict, parse_sources, dict)
    access: Mapping[str, tuple[str, ...]] = _setting(dict, parse_rules, dict)
    tokens_file: Path | None = _setting(None, _maybe(_path), str)
    allow_anonymous: bool = _setting(False, _flag, bool)
    metrics_anonymous: bool = _setting(False, _flag, bool)
    metrics_repositories_max: int = _setting(100, _whole(1, 10_000), int)
    price_per_1000_gets: float = _setting(0.0, _PRICE, int, float)
    price_per_gb: float = _setting(0.0, _PRICE, int, float)
    otlp_endpoint: str | None = _setting(None, _maybe(_collector_url), str)
    trace_ratio: float = _setting(TRACE_RATIO, _number(0, 1, "ratio"), int, float)
    host_names: tuple[str, ...] = _setting((), _host_names, list, str)
    tls_cert_file: Path | None = _setting(None, _maybe(_path), str)
    tls_key_file: Path | None = _setting(None, _maybe(_path), str)
    allow_plain_tokens: bool = _setting(False, _flag, bool)
    s3_listen: tuple[str, int] | None = _setting(None, _listen(S3_PORT_DEFAULT), str)
    s3_bucket: str = _setting("lodefs", _bucket, str)
    s3_buckets: Mapping[str, Spec] = _setting(dict, _buckets, dict)
    s3_domain: str | None = _setting(None, _maybe(_domain), str)
    s3_forward: str | None = _setting(None, _maybe(_endpoint_url), str)
    hub_upstream: str | None = _setting(None, _maybe(_hub_url), str)
    hub_token_file: Path | None = _setting(None, _maybe(_path), str)
    hub_size_bytes_max: int = _setting(HUB_SIZE_BYTES, parse_size, int, str)
    git_allowed: tuple[str, ...] = _setting((), _git_allowed, list, str)
    git_credentials_file: Path | None = _setting(None, _maybe(_path), str)
    git_lfs_repos: tuple[str, ...] = _setting((), _repos, list, str)
    git_size_bytes_max: int = _setting(IMPORT_BYTES_MAX, parse_size, int, str)
    connections_max: int = _setting(4096, _whole(1, 1_000_000), int)
    streams_max: int = _setting(512, _whole(1, 1_000_000), int)
    idle_timeout_s: float = _setting(120.0, _seconds(1, 86400), int, float)
    write_timeout_s: float = _setting(60.0, _seconds(1, 86400), int, float)
    shutdown_timeout_s: float = _setting(15.0, _seconds(0, 3600), int, float)
    peer_listen: tuple[str, int] | None = _setting(None, _listen(peer.PORT_DEFAULT), str)
    peer_address: str | None = _setting(None, _maybe(_peer_address), str)
    peers: tuple[Peer, ...] = _setting((), parse_peers, list, str)
    peers_file: Path | None = _setting(None, _maybe(_path), str)
    peers_dns: DnsName | None = _setting(None, _maybe(_dns_name), str)
    peer_secret_file: Path | None = _setting(None, _maybe(_path), str)
    peer_tls_cert_file: Path | None = _setting(None, _maybe(_path), str)
    peer_tls_key_file: Path | None = _setting(None, _maybe(_path), str)
    peer_tls_ca_file: Path | None = _setting(None, _maybe(_path), str)
    peer_allow_anonymous: bool = _setting(False, _flag, bool)
    peer_upload_bytes_per_s_max: int | None = _setting(None, _maybe(_rate), int, str)
    peer_download_bytes_per_s_max: int | None = _setting(None, _maybe(_rate), int, str)
    scrub_bytes_per_s_max: int = _setting(SCRUB_BYTES_PER_S, _rate_or_none, int, str)
    scrub_days: int = _setting(SCRUB_DAYS, _whole(1, 3650), int)
    unused_timeout_s: float = _setting(0.0, _seconds(0, 86400 * 365), int, float)
    log_level: str = _setting("info", _choice(*LOG_LEVELS), str)
    log_format: str = _setting("auto", _choice(*LOG_FORMATS), str)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Config:
        """Returns a Config from plain values. Raises: one InvalidInput that names every wrong
        setting."""
        known: dict[str, Field[object]] = {one.name: one for one in fields(cls)}
        problems = [f"{name}: there is no such setting" for name in values if name not in known]
        found: dict[str, object] = {}
        for name, one in known.items():
            if name not in values:
                if one.default is MISSING and one.default_factory is MISSING:
                    problems.append(f"{name}: is missing")
                continue
            try:
                found[name] = one.metadata["parse"](values[name])
            except InvalidInput as error:
                given = f", not {values[name]!r}" if str(error).startswith("must ") else ""
                problems.append(f"{name}: {error}{given}")
        if not problems:
            config = cls(**found)  # type: ignore[arg-type]
            problems = config.problems()
        if problems:
            raise InvalidInput("the proxy's settings are wrong: " + "; ".join(problems))
        return config

    def problems(self) -> list[str]:
        """Returns what is wrong with the settings as a whole, one line for each problem."""
        found = []
        if not self.store:
            found.append(f"store: is missing: give {FORMS} or a directory")
        if len({self.store, *self.mirrors}) <= len(self.mirrors):
            found.append("mirrors: name each store once, and do not repeat `store`")
        if self.listen is None and self.s3_listen is None and self.socket_path is None:
            found.append("socket_path: is needed if listen is not given")
        if self.listen is not None and self.tokens_file is None and not self.allow_anonymous:
            found.append(
                "listen: TCP needs tokens_file (--tokens FILE), or allow_anonymous = true "
                "(--allow-anonymous) to let everybody read"
            )
        found += self._door_problems()
        limit = self.cache_size_bytes_max
        if limit is not None and limit < CACHE_SIZE_BYTES_MIN:
            found.append(f"cache_size_bytes_max: must be at least {CACHE_SIZE_BYTES_MIN >> 20}MiB")
        if self.socket_path is not None and len(os.fsencode(self.socket_path)) > 100:
            found.append("socket_path: is too long for a socket (at most 100 bytes)")
        on_tcp = self.listen or self.s3_listen or self.in_cluster
        if self.unused_timeout_s and (on_tcp or not self.socket_path):
            found.append(
                "unused_timeout_s: is only for a proxy without TCP listeners, since it cannot see "
                "whether TCP clients still use it"
            )
        return found + self._peer_problems()

    def _door_problems(self) -> list[str]:
        """Returns problems with TCP for clients: tokens, TLS, S3."""
        found = []
        if self.s3_listen is not None and self.tokens_file is None and not self.allow_anonymous:
            found.append(
                "s3.listen: needs tokens_file with keys (lodefs token create --s3), or "
                "allow_anonymous = true to let everybody read"
            )
        if self.s3_forward is not None and self.tokens_file is None:
            found.append(
                "s3.forward: needs tokens_file: only keys that name s3://BUCKET may use it"
            )
        if self.s3_listen is not None and self.s3_listen in (self.listen, self.peer_listen):
            found.append(
                "s3.listen: must differ from listen and peer_listen, since S3 has its own endpoint"
            )
        if self.hub_token_file is not None and self.hub_upstream is None:
            found.append("hub_token_file: needs hub_upstream, the hub that it is for")
        if self.hub_upstream is not None and find_spec("huggingface_hub") is None:
            found.append("hub_upstream: needs a package: pip install 'lodefs[hf]'")
        if self.git_allowed and shutil.which("git") is None:
            found.append("git_allowed: needs the program git")
        if self.git_credentials_file is not None and not self.git_allowed:
            found.append("git_credentials_file: needs git_allowed, the hosts that it is for")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            found.append("tls_cert_file: TLS needs tls_cert_file and tls_key_file")
        if self.listen is not None and self.plain_tokens_refused(self.listen[0]):
            found.append(f"listen: {PLAIN_TOKENS}")
        if self.s3_bucket in self.s3_buckets:
            found.append(f"s3.buckets: {self.s3_bucket} is the bucket of the whole store")
        return found

    def plain_tokens_refused(self, host: str) -> bool:
        """Whether tokens would cross a network unencrypted at an address, and no setting allows
        it."""
        plain = self.tls_cert_file is None and not self.allow_plain_tokens
        return plain and self.tokens_file is not None and not is_loopback(host)

    @property
    def in_cluster(self) -> bool:
        """Whether this node sends requests to other nodes, or answers theirs."""
        given = (self.peer_listen, self.peers, self.peers_file, self.peers_dns)
        return any(given)

    @property
    def peer_tls(self) -> bool:
        """Whether nodes authenticate each other by certificates."""
        return self.peer_tls_cert_file is not None

    def _peer_problems(self) -> list[str]:
        found = []
        sources = [name for name in ("peers", "peers_file", "peers_dns") if getattr(self, name)]
        if len(sources) > 1:
            found.append(f"{sources[1]}: only one of {', '.join(sources)} can list the members")
        tls = [name for name in TLS_SETTINGS if getattr(self, name) is not None]
        if 0 < len(tls) < len(TLS_SETTINGS):
            found.append(f"{tls[0]}: TLS needs all of {', '.join(TLS_SETTINGS)}")
        trusted = bool(self.peer_secret_file or tls)
        if self.in_cluster and not trusted and not self.peer_allow_anonymous:
            found.append(
                f"{'peer_listen' if self.peer_listen else sources[0]}: nodes trust each other by "
                f"peer_secret_file or by {', '.join(TLS_SETTINGS)}; peer_allow_anonymous = true "
                "lets everybody who can connect to the peer endpoint read everything"
            )
        if trusted and self.peer_allow_anonymous:
            found.append("peer_allow_anonymous: cannot be true with peer_secret_file or TLS")
        if self.peer_listen is not None and self.peer_listen == self.listen:
            found.append(
                "peer_listen: must differ from listen: nodes and clients use different endpoints"
            )
        if self.peer_address is not None and self.peer_listen is None:
            found.append(
                "peer_address: needs peer_listen, since nothing would answer other nodes here"
            )
        return found


def cache_size_bytes(config: Config, used_bytes: int = 0) -> int:
    """Returns the cache's limit: as set, or 80 % of the free space and what the cache itself
    uses."""
    if config.cache_size_bytes_max is not None:
        return config.cache_size_bytes_max
    there = config.cache_dir
    while not there.exists() and there != there.parent:
        there = there.parent
    free_bytes = shutil.disk_usage(there).free
    share = int((free_bytes + used_bytes) * CACHE_DISK_SHARE_DEFAULT)
    return max(CACHE_SIZE_BYTES_MIN, share)
