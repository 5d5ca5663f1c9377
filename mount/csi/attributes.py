"""The options of a volume: volumeAttributes, mount options and secrets. Pure.

Attributes can be read by everybody who may see a pod or a persistent volume, so none takes a
secret, and values that could be one are never repeated. All mistakes are named at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, check_repo, check_revision, split_path
from lodefs.chunkstore.protocol.cache_control import PIN_S_MAX
from lodefs.chunkstore.system.durations import parse_duration
from lodefs.mount.service.interface import MountClaim, Source

T = TypeVar("T")

KUBERNETES = "csi.storage.k8s.io/"  # podInfoOnMount and the provisioner add keys with this prefix
PROVISIONER = "storage.kubernetes.io/"
VALID = ("repo", "commit", "path", "store", "cachePin", "mountOptions")
SECRET_KEYS = ("token",)
MODE_MAX = 0o555
TOKEN_BYTES_MAX = 16384
_ID_MAX = 2**32 - 2
_BUCKET = re.compile(r"[A-Za-z0-9._-]*\Z")
_STORE_SETTINGS = frozenset({"endpoint_url", "region"})
_REFUSED = dict.fromkeys(
    ("token", "pat", "password", "secret"),
    "is refused: attributes are seen by others; put it into a Secret as `token`, and name "
    "that in nodePublishSecretRef",
)
_BIND_OPTIONS = frozenset({"ro", "nosuid", "nodev", "noatime", "nodiratime", "relatime"})


class VolumeOptions(msgspec.Struct, frozen=True):
    """The options of a volume. ``noexec``: no program on it may be started."""

    wanted: MountClaim
    noexec: bool = False


def parse_volume(
    attributes: Mapping[str, str], mount_flags: Iterable[str] = (), group: str = ""
) -> VolumeOptions:
    """Parses the options of a volume. Raises: InvalidInput, with everything that is wrong at once.

    ``mount_flags``: mountOptions of a persistent volume; ``group``: the group that is to own it
    (fsGroup, VOLUME_MOUNT_GROUP), "" for none.
    """
    return _Attributes(attributes).volume(mount_flags, group)


def parse_token(secrets: Mapping[str, str]) -> str | None:
    """The token in a request's secrets; None without one. InvalidInput never repeats it."""
    unknown = sorted(set(secrets) - set(SECRET_KEYS))
    if unknown:
        raise InvalidInput(
            f"secrets: there is no key {', '.join(map(repr, unknown))[:200]}; the Secret has the "
            "proxy's token as `token`"
        )
    if "token" not in secrets:
        return None
    token = secrets["token"].strip()
    if not token or len(token) > TOKEN_BYTES_MAX or not all("!" <= char <= "~" for char in token):
        raise InvalidInput("secrets: token holds no token: a token is one line without blanks")
    return token


class _Attributes:
    """Takes attributes one by one, and collects what is wrong with them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._problems: list[str] = []
        self._values: dict[str, str] = {}
        for key, value in given.items():
            if key in _REFUSED:
                self._problems.append(f"volumeAttributes {key} {_REFUSED[key]}")
            elif key in VALID:
                self._values[key] = value
            elif not key.startswith((KUBERNETES, PROVISIONER)):
                self._problems.append(f"there is no volumeAttributes {key[:60]!r}")

    def volume(self, mount_flags: Iterable[str], group: str) -> VolumeOptions:
        """Parses all attributes."""
        own = self._values.get("mountOptions", "")
        options = _MountOptions(self._problems)
        for option in (*own.split(","), *mount_flags):
            if option.strip():
                options.put(option.strip())
        gid = options.gid
        if group:
            gid = self._parsed("volume_mount_group", group, _number)
        if not self._values.get("repo"):
            self._problems.append("volumeAttributes repo is missing: give the name of the dataset")
        source = Source(
            repo=self._take("repo", check_repo) or "",
            store=self._take("store", _store) or "",
            path=self._take("path", _path) or b"",
            uid=options.uid,
            gid=gid,
            mode=options.mode,
        )
        wanted = MountClaim(
            source=source,
            rev=self._take("commit", check_revision) or DEFAULT_BRANCH,
            pin_s=self._take("cachePin", _pin),
        )
        if self._problems:
            attributes = ", ".join(VALID)
            raise InvalidInput(f"{'; '.join(self._problems)}. Attributes are {attributes}")
        return VolumeOptions(wanted, options.noexec)

    def _take(self, key: str, parse: type[T] | object) -> T | None:
        value = self._values.get(key, "")
        return self._parsed(f"volumeAttributes {key}", value, parse) if value else None

    def _parsed(self, what: str, value: str, parse: object) -> T | None:
        try:
            return parse(value)  # type: ignore[operator,no-any-return]
        except InvalidInput as error:
            self._problems.append(f"{what}: {error}")
            return None


class _MountOptions:
    """Parses mount options one by one."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self.uid: int | None = None
        self.gid: int | None = None
        self.mode: int | None = None
        self.noexec = False

    def put(self, option: str) -> None:
        """Takes one option, such as ``uid=1000``."""
        name, _, value = option.partition("=")
        try:
            if name in ("uid", "gid"):
                setattr(self, name, _number(value))
            elif name == "mode":
                self.mode = _mode(value)
            elif option == "noexec":
                self.noexec = True
            elif option in ("rw", "exec", "suid", "dev"):
                self._problems.append(f"mount option {option} is refused: volumes are read-only")
            elif option not in _BIND_OPTIONS:
                self._problems.append(
                    f"there is no mount option {option[:60]!r}; options are uid=N, gid=N, "
                    "mode=OCTAL, noexec"
                )
        except InvalidInput as error:
            self._problems.append(f"mount option {name}: {error}")


def _store(text: str) -> str:
    """A store's URL. A refused value may contain a secret, and is not repeated."""
    if text.startswith("/") and text.isprintable():
        return text
    try:
        parts = urlsplit(text)
        settings = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise InvalidInput("it is not a URL") from None
    if not text.isprintable() or not _BUCKET.match(parts.netloc) or "@" in text:
        raise InvalidInput("a URL must not carry credentials: they belong to the proxy")
    if not text.startswith(("s3://", "file://")) or parts.fragment:
        raise InvalidInput("it must be s3://BUCKET/PREFIX, file:///DIR or /DIR")
    if not _STORE_SETTINGS.issuperset(name for name, _ in settings):
        raise InvalidInput("a store's URL takes only endpoint_url and region")
    return text


def _path(text: str) -> bytes:
    try:
        return b"/".join(split_path(text.encode()))
    except UnicodeEncodeError:
        raise InvalidInput("it is not UTF-8") from None


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > _ID_MAX:
        raise InvalidInput(f"{text[:20]!r} is not a number from 0 to {_ID_MAX}")
    return int(text)


def _mode(text: str) -> int:
    if not re.fullmatch(r"(?:0?|0o)[0-7]{3}", text) or int(text, 8) & ~MODE_MAX:
        raise InvalidInput(f"{text[:20]!r} is not an octal mode up to 0555")
    return int(text, 8)


def _pin(text: str) -> int | None:
    if text.lower() in ("true", "1"):
        return 0
    if text.lower() in ("false", "0"):
        return None
    pin_s = parse_duration(text)
    if pin_s > PIN_S_MAX:
        raise InvalidInput(f"{text!r} is too long: the limit is {PIN_S_MAX // 86400}d")
    return pin_s
