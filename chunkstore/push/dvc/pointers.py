"""The files of DVC that name data: NAME.dvc, dvc.lock, manifests of directories, and its settings.

Pure; reads nothing. The only importer of PyYAML.
Sources: https://dvc.org/doc/user-guide/project-structure (.dvc files, dvc.lock, internal
directories) and https://dvc.org/doc/command-reference/config.
"""

from __future__ import annotations

import configparser
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lodefs.chunkstore.errors import InvalidInput, LodefsError

LOCK = b"dvc.lock"
SUFFIX = b".dvc"
_MD5 = re.compile(r"[0-9a-f]{32}\Z")
_REMOTE = re.compile(r"""'?remote\s+"(?P<name>[^"]+)"'?\Z""")


class Out(NamedTuple):
    """Data that a pointer names. ``path`` is below the root of the repository. ``is_legacy``: DVC
    before version 3 made the id, from text without the CR of CRLF. ``remote`` is where it lies if
    not in the default one."""

    path: bytes
    md5: str
    is_directory: bool
    is_legacy: bool
    remote: str = ""

    @property
    def object_path(self) -> bytes:
        """Where the object lies, below a cache or remote."""
        return object_path(self.md5, is_directory=self.is_directory, is_legacy=self.is_legacy)


class DvcSettings(NamedTuple):
    """``cache`` is the directory of the cache or ""; ``remotes`` maps names to URLs; ``default`` is
    the name of the default remote or ""."""

    cache: str
    remotes: Mapping[str, str]
    default: str


def object_path(md5: str, *, is_directory: bool = False, is_legacy: bool = False) -> bytes:
    """Returns the path of an object in the layout of DVC 3, or that of DVC 2."""
    above = "" if is_legacy else "files/md5/"
    return f"{above}{md5[:2]}/{md5[2:]}{'.dir' if is_directory else ''}".encode()


def outs_of(path: bytes, data: bytes) -> list[Out]:
    """Returns what a pointer file at a path names. Outputs without an MD5 (which Git has, or which
    were never made) are left out. Raises: InvalidInput."""
    document = _yaml(path, data)
    if posixpath.basename(path) == LOCK:
        stages = _get(path, document, "stages", dict, {})
        # before DVC 2, the stages were the document
        found = (stages or {k: v for k, v in document.items() if k != "schema"}).values()
        listed = [_get(path, stage, "outs", list, []) for stage in found]
    else:
        listed = [_get(path, document, "outs", list, [])]
    above = posixpath.dirname(path).decode("utf-8", "surrogateescape")
    wdir = "." if path.endswith(LOCK) else _get(path, document, "wdir", str, ".")
    return list(_outs(path, posixpath.join(above, wdir), [one for outs in listed for one in outs]))


def manifest_of(out: Out, data: bytes) -> list[Out]:
    """Returns the files of a directory. Raises: InvalidInput."""
    name = out.path
    try:
        rows = json.loads(data)
    except ValueError as error:
        raise _bad(name, f"its list of files is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise _bad(name, "its list of files is not a list")
    found = []
    for row in rows:
        md5, relative = _get(name, row, "md5", str, ""), _get(name, row, "relpath", str, "")
        if not _MD5.match(md5):
            raise _bad(name, f"{relative!r} has no MD5")
        path = _below(name, name.decode("utf-8", "surrogateescape"), relative)
        found.append(Out(path, md5, is_directory=False, is_legacy=out.is_legacy, remote=out.remote))
    return found


def settings_of(texts: list[str]) -> DvcSettings:
    """Returns the settings in .dvc/config and .dvc/config.local; later ones win. Raises:
    InvalidInput."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        for text in texts:
            parser.read_string(text)
    except configparser.Error as error:
        raise InvalidInput(f".dvc/config cannot be read: {error}") from error
    remotes = {
        found["name"]: parser[section]["url"]
        for section in parser.sections()
        if (found := _REMOTE.match(section)) and "url" in parser[section]
    }
    cache = parser.get("cache", "dir", fallback="")
    return DvcSettings(cache, remotes, parser.get("core", "remote", fallback=""))


def _outs(path: bytes, folder: str, outs: list[Any]) -> Iterator[Out]:
    for one in outs:
        md5 = _get(path, one, "md5", str, "")
        if not md5 or _get(path, one, "cache", bool, default=True) is False:
            continue
        plain = md5.removesuffix(".dir")
        if not _MD5.match(plain):
            raise _bad(path, f"{md5[:80]!r} is not an MD5")
        at = _below(path, folder, _get(path, one, "path", str, ""))
        is_legacy = _get(path, one, "hash", str, "") != "md5"
        yield Out(at, plain, md5 != plain, is_legacy, _get(path, one, "remote", str, ""))


def _below(path: bytes, folder: str, name: str) -> bytes:
    at = posixpath.normpath(posixpath.join(folder, name))
    if not name or at.startswith(("/", "../")) or at in (".", ".."):
        raise _bad(path, f"{name[:200]!r} does not lie in the repository")
    return at.encode("utf-8", "surrogateescape")


def _yaml(path: bytes, data: bytes) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise InvalidInput(
            "repositories of DVC need the library PyYAML: pip install 'lodefs[dvc]'"
        ) from error
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        document = yaml.load(data, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _bad(path, f"it is not YAML: {str(error).splitlines()[0]}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise _bad(path, "it is not a mapping")
    return document


def _get(path: bytes, found: Any, key: str, kind: type[Any], default: Any = None) -> Any:
    """Returns a value of a mapping. Raises: InvalidInput for values of another kind."""
    value = found.get(key) if isinstance(found, dict) else InvalidInput
    if value is None:
        return default
    if not isinstance(value, kind):
        raise _bad(path, f"its {key!r} is not what DVC writes")
    return value


def _bad(path: bytes, why: str) -> LodefsError:
    return InvalidInput(f"{path.decode('utf-8', 'backslashreplace')}: {why}")
