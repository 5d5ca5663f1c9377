"""The options of a volume: volumeAttributes, mount options and secrets. Pure.

Attributes can be read by everybody who may see a pod or a persistent volume, so none takes a
secret, and values that could be one are never repeated. All mistakes are named at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign.git_url import check_rev, is_git_url, parse_git_url
from lodefs.chunkstore.format.names import (
    DEFAULT_BRANCH,
    check_ref_name,
    check_repo,
    check_revision,
)
from lodefs.mount.options import MODE_MAX
from lodefs.mount.service.interface import MountClaim, Source
from lodefs.mount.volumes import options as volume_options
from lodefs.mount.volumes.changes import WritableVolume
from lodefs.mount.volumes.options import DISCARD, NEVER, ON_LAST

T = TypeVar("T")

KUBERNETES = "csi.storage.k8s.io/"  # podInfoOnMount and the provisioner add keys with this prefix
PROVISIONER = "storage.kubernetes.io/"
EPHEMERAL = f"{KUBERNETES}ephemeral"
VALID = ("repo", "commit", "ref", "write", "branch", "path", "store", "cachePin", "mountOptions")
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
SECRET_KEYS = ("token", *CREDENTIALS)
SECRET_BYTES_MAX = 16384
GROUP_WRITES = 0o020
_REFUSED = dict.fromkeys(
    ("token", "pat", "password", "secret"),
    "is refused: attributes are seen by others; put it into a Secret as `token`, and name "
    "that in nodePublishSecretRef",
)
_POD = {"${pod.name}": f"{KUBERNETES}pod.name", "${pod.namespace}": f"{KUBERNETES}pod.namespace"}
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}?")
_BIND_OPTIONS = frozenset({"ro", "rw", "nosuid", "nodev", "noatime", "nodiratime", "relatime"})


class VolumeOptions(msgspec.Struct, frozen=True):
    """The options of a volume. ``wanted``: what is read; for a writable volume, the branch that
    changes are committed to. ``noexec``: no program on it may be started. ``commits``: what becomes
    of changes (volumes.options); "" for a read-only volume. ``is_shared``: its group may write."""

    wanted: MountClaim
    noexec: bool = False
    commits: str = ""
    is_shared: bool = False

    def writable(self, name: str) -> WritableVolume:
        """Returns the volume of that name, which takes changes."""
        source = self.wanted.source
        if self.is_shared:
            mode = (MODE_MAX if source.mode is None else source.mode) | GROUP_WRITES
            source = msgspec.structs.replace(source, mode=mode)
        return WritableVolume(
            name=name, source=source, branch=self.wanted.rev, commits=self.commits
        )


class Secrets(NamedTuple):
    """The contents of a Secret. ``token``: for the node's proxy; ``credentials``: of S3, by their
    names in the environment, {} without any."""

    token: str | None
    credentials: Mapping[str, str]

    def __repr__(self) -> str:
        """Returns a text without the secrets."""
        return "Secrets(...)"


def parse_volume(
    attributes: Mapping[str, str], mount_flags: Iterable[str] = (), group: str = ""
) -> VolumeOptions:
    """Parses the options of a volume. Raises: InvalidInput, with everything that is wrong at once.

    ``mount_flags``: mountOptions of a persistent volume; ``group``: the group that is to own it
    (fsGroup, VOLUME_MOUNT_GROUP), "" for none.
    """
    return _Attributes(attributes).volume(mount_flags, group)


def parse_secrets(secrets: Mapping[str, str]) -> Secrets:
    """Parses a request's secrets. Raises: InvalidInput, which never repeats any of them."""
    unknown = sorted(set(secrets) - set(SECRET_KEYS))
    if unknown:
        raise InvalidInput(
            f"secrets: there is no key {', '.join(map(repr, unknown))[:200]}; the Secret has the "
            f"proxy's token as `token`, and credentials of S3 as {', '.join(CREDENTIALS)}"
        )
    found = {key: _secret(key, value) for key, value in secrets.items()}
    token = found.pop("token", None)
    if missing := [key for key in CREDENTIALS[:2] if found and key not in found]:
        raise InvalidInput(f"secrets: there are credentials of S3, and no {missing[0]}")
    return Secrets(token, found)


def _git_repo(url: str) -> str:
    return parse_git_url(url).repo


def _secret(key: str, value: str) -> str:
    value = value.strip()
    if not value or len(value) > SECRET_BYTES_MAX or not all("!" <= char <= "~" for char in value):
        raise InvalidInput(f"secrets: {key} holds none: that is one line without blanks")
    return value


class _Attributes:
    """Takes attributes one by one, and collects what is wrong with them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._problems: list[str] = []
        self._values: dict[str, str] = {}
        self._given = given
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
        commits = self._commits()
        options = _MountOptions(self._problems, takes_changes=bool(commits))
        for option in (*own.split(","), *mount_flags):
            if option.strip():
                options.put(option.strip())
        gid = options.gid
        if group:
            gid = self._parsed("volume_mount_group", group, volume_options.owner)
        if not self._values.get("repo"):
            self._problems.append("volumeAttributes repo is missing: give the name of the dataset")
        source = Source(
            repo=self._take("repo", _git_repo if self._is_git else check_repo) or "",
            store=self._take("store", volume_options.store_url) or "",
            path=self._take("path", volume_options.directory) or b"",
            uid=options.uid,
            gid=gid,
            mode=options.mode,
        )
        rev = self._revision(commits)
        pin_s = self._take("cachePin", volume_options.pin_s)
        wanted = MountClaim(source=source, rev=rev or DEFAULT_BRANCH, pin_s=pin_s)
        self._check_writing(wanted, commits)
        if self._problems:
            attributes = ", ".join(VALID)
            raise InvalidInput(f"{'; '.join(self._problems)}. Attributes are {attributes}")
        return VolumeOptions(wanted, options.noexec, commits, bool(commits and group))

    @property
    def _is_git(self) -> bool:
        return is_git_url(self._values.get("repo", ""))

    def _revision(self, commits: str) -> str | None:
        """Returns the revision of the store, or of Git if the repository is one of Git."""
        if self._is_git:
            if commits:
                self._problems.append(
                    'volumeAttributes write: "true" is not for a Git repository: use a copy of it'
                )
            return volume_options.git_revision(
                self._take("commit", check_rev), self._take("ref", check_rev), self._problems
            )
        if "ref" in self._values:
            self._problems.append("volumeAttributes ref is for the URL of a Git repository")
        return self._branch() if commits else self._take("commit", check_revision)

    def _commits(self) -> str:
        """Returns the policy for changes; "" for a volume that takes none."""
        if not self._take("write", volume_options.flag):
            return ""
        return self._take("commit", volume_options.policy) or ON_LAST

    def _branch(self) -> str | None:
        """Returns the branch, where ``${pod.name}`` and ``${pod.namespace}`` are those of the
        pod."""
        text = self._values.get("branch", "")
        for placeholder, told in _POD.items():
            if self._given.get(EPHEMERAL) == "true" and told in self._given:
                text = text.replace(placeholder, self._given[told])
        if found := _PLACEHOLDER.search(text):
            self._problems.append(
                f"volumeAttributes branch: there is no {found[0][:60]}; inline volumes have "
                f"{' and '.join(_POD)}"
            )
            return None
        return self._parsed("volumeAttributes branch", text, check_ref_name) if text else None

    def _check_writing(self, wanted: MountClaim, commits: str) -> None:
        if not commits:
            if "branch" in self._values:
                self._problems.append(
                    'volumeAttributes branch is for write: "true"; commit: BRANCH reads it'
                )
            return
        for name, value in (("store", wanted.source.store), ("cachePin", wanted.pin_s)):
            if value or value == 0:
                self._problems.append(f'volumeAttributes {name} is not for write: "true"')
        if commits == NEVER and self._given.get(EPHEMERAL) == "true":
            self._problems.append(
                f"volumeAttributes commit: an inline volume ends with its pod, and nobody would "
                f"find changes again that are {NEVER} committed: {ON_LAST} or {DISCARD}"
            )

    def _take(self, key: str, parse: Callable[[str], T]) -> T | None:
        value = self._values.get(key, "")
        return self._parsed(f"volumeAttributes {key}", value, parse) if value else None

    def _parsed(self, what: str, value: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(value)
        except InvalidInput as error:
            self._problems.append(f"{what}: {error}")
            return None


class _MountOptions:
    """Parses mount options one by one."""

    def __init__(self, problems: list[str], *, takes_changes: bool) -> None:
        self._problems = problems
        self._takes_changes = takes_changes
        self.uid: int | None = None
        self.gid: int | None = None
        self.mode: int | None = None
        self.noexec = False

    def put(self, option: str) -> None:
        """Takes one option, such as ``uid=1000``."""
        name, _, value = option.partition("=")
        try:
            if name in ("uid", "gid"):
                setattr(self, name, volume_options.owner(value))
            elif name == "mode":
                self.mode = volume_options.mode(value)
            elif option == "noexec":
                self.noexec = True
            elif option == "rw" and not self._takes_changes:
                self._problems.append(
                    'mount option rw is refused: volumes are read-only without write: "true"'
                )
            elif option in ("exec", "suid", "dev"):
                self._problems.append(f"mount option {option} is refused")
            elif option not in _BIND_OPTIONS:
                self._problems.append(
                    f"there is no mount option {option[:60]!r}; options are uid=N, gid=N, "
                    "mode=OCTAL, noexec"
                )
        except InvalidInput as error:
            self._problems.append(f"mount option {name}: {error}")
