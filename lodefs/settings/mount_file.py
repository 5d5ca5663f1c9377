"""Mounts that files describe: /etc/lodefs/mounts.d/NAME.toml, for ``lodefs mount --from FILE``."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, check_repo, check_revision, parse_spec, split_path
from lodefs.mount.options import Wanted, check_mode
from lodefs.settings import toml_file

_ID_MAX = (1 << 32) - 2  # the next one means "unchanged" to chown(2)
READ_TIMEOUT_S_MIN, READ_TIMEOUT_S_MAX = 0.1, 3600.0


class MountFile(msgspec.Struct, frozen=True, kw_only=True):
    """A mount to make, and its directory. None means the default."""

    spec: Spec
    directory: str
    proxy: str | None = None
    token_file: Path | None = None
    read_timeout_s: float | None = None
    passthrough: Wanted | None = None
    uid: int | None = None
    gid: int | None = None
    mode: int | None = None
    create_dir: bool = False

    def token(self) -> str | None:
        """Returns the token for the proxy from its file; None without one. Raises: InvalidInput if
        the file cannot be read, is empty, or can be read by others."""
        if self.token_file is None:
            return None
        from lodefs.chunkstore.system.private_file import (
            check_private,  # imported here: most mounts have no token
        )

        what = f"token_file {self.token_file}"
        check_private(self.token_file, what)
        token = toml_file.read_text(self.token_file).strip()
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidInput(f"{what}: the file is empty")
        return token


def on_off(wanted: bool) -> Wanted:
    """Returns the value of ``passthrough`` for a flag."""
    return "on" if wanted else "off"


def read(path: Path) -> MountFile:
    """Reads a file. Raises: InvalidInput, with the line of every mistake; NotFound, Denied."""
    return parse(toml_file.read_text(path), str(path))


def parse(text: str, path: str) -> MountFile:
    """Parses the text of a file. Raises: InvalidInput, with all mistakes."""
    document = toml_file.parse_document(text, path)
    values, mistakes = toml_file.read_values(document, _READERS)
    mistakes += _inconsistent_keys(document)
    if mistakes:
        raise toml_file.error_for(text, path, mistakes)
    spec = values.pop("spec", None) or Spec(
        **{name: values.pop(name) for name in _PARTS if name in values}
    )
    return MountFile(spec=spec, directory=values.pop("dir"), **values)


def _inconsistent_keys(document: Mapping[str, object]) -> list[tuple[str, str]]:
    """Keys that contradict each other, and missing keys, each with the reason."""
    found = []
    parts = [name for name in _PARTS if name in document]
    if "spec" in document and parts:
        found.append((parts[0], "spec already sets it"))
    if "spec" not in document and "repo" not in document:
        found.append(("spec", 'is missing: it names what to mount, as in spec = "REPO@REV:PATH"'))
    if "dir" not in document:
        found.append(("dir", 'is missing: it names where to mount, as in dir = "/data/cats"'))
    return found


def _absolute(value: object) -> str:
    text = toml_file.text(value)
    if not text.startswith("/"):
        raise InvalidInput("must be an absolute path")
    return text


def _repo(value: object) -> str:
    name = toml_file.text(value)
    check_repo(name)
    return name


def _rev(value: object) -> str:
    name = toml_file.text(value)
    check_revision(name)
    return name


def _path(value: object) -> bytes:
    return b"/".join(split_path(toml_file.text(value).encode()))


def _wanted(value: object) -> Wanted:
    if isinstance(value, bool):
        return on_off(value)
    if value != "auto":
        raise InvalidInput('must be true, false or "auto"')
    return "auto"


def _id(kind: str, find: Callable[[str], int]) -> Callable[[object], int]:
    """Returns a number, or a name that this machine knows."""

    def parse(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _ID_MAX:
            return value
        if not isinstance(value, str):
            raise InvalidInput(f"must be the number or the name of a {kind}")
        try:
            return find(value)
        except KeyError:
            raise InvalidInput(f"this machine has no {kind} {value!r}") from None

    return parse


def _mode(value: object) -> int:
    """Returns permission bits: 0o550 or "0550"."""
    try:
        mode = int(value, 8) if isinstance(value, str) else value
    except ValueError:
        mode = None
    if isinstance(mode, bool) or not isinstance(mode, int):
        raise InvalidInput('must be permission bits, such as "0550"')
    check_mode(mode)
    return mode


_PARTS = ("repo", "rev", "path")
_READERS: Mapping[str, toml_file.Reader] = {
    "spec": lambda value: parse_spec(toml_file.text(value)),
    "repo": _repo,
    "rev": _rev,
    "path": _path,
    "dir": _absolute,
    "proxy": toml_file.text,
    "token_file": lambda value: Path(_absolute(value)),
    "read_timeout_s": toml_file.seconds(READ_TIMEOUT_S_MIN, READ_TIMEOUT_S_MAX),
    "passthrough": _wanted,
    "uid": _id("user", lambda name: pwd.getpwnam(name).pw_uid),
    "gid": _id("group", lambda name: grp.getgrnam(name).gr_gid),
    "mode": _mode,
    "create_dir": toml_file.flag,
}
