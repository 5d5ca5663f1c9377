"""Options of ``docker volume create``: what they mean, and everything that is wrong with them.

Pure. dockerd keeps options on disk and shows them to everybody who may ask it. So no option takes a
secret, and values that could be secrets are never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.foreign.git import id_in
from lodefs.chunkstore.format.foreign.git_url import check_rev, is_git_url, parse_git_url
from lodefs.chunkstore.format.names import (
    DEFAULT_BRANCH,
    ID_BYTES,
    check_ref_name,
    check_repo,
    check_revision,
)
from lodefs.chunkstore.system.durations import parse_duration
from lodefs.mount.helper.interface import Source
from lodefs.mount.volumes import options as volume_options
from lodefs.mount.volumes.options import ON_LAST

T = TypeVar("T")
SplitUrl = Callable[[str], tuple[str, str]]
"""Splits a URL with the repository's name at its end into store and repository. InvalidInput,
NotFound, Unavailable."""

VALID = (
    "repo",
    "commit",
    "ref",
    "write",
    "branch",
    "path",
    "follow",
    "token_file",
    "token_env",
    "store",
    "uid",
    "gid",
    "mode",
    "cache_pin",
)
_ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,99}\Z")  # only capitals, unlike most tokens

_SECRET = (
    "is refused: `docker volume inspect` and dockerd's files would show it to others; put the "
    "token into a file that only root can read, and give token_file=/PATH (or token_env=NAME)"
)
REFUSED = {
    "pat": _SECRET,
    "password": _SECRET,
    "token": _SECRET,
    "secret": _SECRET,
    "username": "is refused: a token identifies its user; give token_file=/PATH if the "
    "store's proxy needs one",
    "cas": "is refused: it named XetHub's server; name a store with store=URL",
}


class Pin(msgspec.Struct, frozen=True):
    """Keeps a volume's data in the node's cache for this long; None: while the volume exists."""

    pin_s: int | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a volume. ``rev``: a branch, a tag or a commit; ``follow_s`` None: the volume
    stays at the commit that this was at first. ``commits``: what becomes of the changes of a
    writable volume (volumes.options); a commit of them goes to ``rev``."""

    source: Source
    rev: str = DEFAULT_BRANCH
    follow_s: int | None = None
    pin: Pin | None = None
    commits: str | msgspec.UnsetType = msgspec.UNSET


def parse_options(given: Mapping[str, str], split_url: SplitUrl) -> Options:
    """Parses the options of a volume. Raises: InvalidInput, with everything that is wrong at once;
    otherwise what ``split_url`` raises."""
    return _Parser(given, split_url).options()


class _Parser:
    """Takes options one by one, and collects what is wrong with them."""

    def __init__(self, given: Mapping[str, str], split_url: SplitUrl) -> None:
        self._problems: list[str] = []
        self._failure: LodefsError | None = None
        self._split_url = split_url
        self._values: dict[str, str] = {}
        for key, value in given.items():
            self._put(key.lower(), value)

    def options(self) -> Options:
        """Parses all options."""
        source, commits = self._source(), self._commits()
        rev = self._revision(commits)
        follow_s = self._take("follow", parse_duration)
        if follow_s is not None and (len(rev) == 2 * ID_BYTES or id_in(rev)):
            self._problems.append("option follow needs a branch, and commit= names a commit")
        options = Options(
            source=source,
            rev=rev,
            follow_s=follow_s,
            pin=self._take("cache_pin", _pin),
            commits=commits or msgspec.UNSET,
        )
        self._check_writing(options)
        if self._problems:
            raise InvalidInput(f"{'; '.join(self._problems)}. Options are {', '.join(VALID)}")
        if self._failure is not None:
            raise self._failure
        return options

    def _revision(self, commits: str) -> str:
        """Returns the revision of the store, or of Git if the repository is one of Git."""
        if self._is_git:
            if commits:
                self._problems.append("write=true is not for a Git repository: mount a copy of it")
            return volume_options.git_revision(
                self._take("commit", check_rev), self._take("ref", check_rev), self._problems
            )
        if "ref" in self._values:
            self._problems.append("option ref is for the URL of a Git repository: give commit")
        name = ("branch", check_ref_name) if commits else ("commit", check_revision)
        return self._take(*name) or DEFAULT_BRANCH

    @property
    def _is_git(self) -> bool:
        return is_git_url(self._values.get("repo", ""))

    def _commits(self) -> str:
        """Returns the policy for changes; "" for a read-only volume."""
        if not self._take("write", volume_options.flag):
            return ""
        return self._take("commit", volume_options.policy) or ON_LAST

    def _check_writing(self, options: Options) -> None:
        if options.commits is msgspec.UNSET:
            if "branch" in self._values:
                self._problems.append(
                    "option branch needs write=true; commit=BRANCH reads a branch"
                )
            return
        if options.follow_s is not None:
            self._problems.append(
                "option follow does not go with write=true, which begins at the newest"
            )
        if options.source.store:
            self._problems.append(
                "write=true needs the store of the node's proxy: name only the repository"
            )

    def _source(self) -> Source:
        store, repo = self._repo()
        if "token_file" in self._values and "token_env" in self._values:
            self._problems.append("give token_file or token_env, not both")
        return Source(
            repo=repo,
            store=store,
            path=self._take("path", volume_options.directory) or b"",
            token_file=self._take("token_file", _token_file) or "",
            token_env=self._take("token_env", _token_env) or "",
            uid=self._take("uid", volume_options.owner),
            gid=self._take("gid", volume_options.owner),
            mode=self._take("mode", volume_options.mode),
        )

    def _put(self, key: str, value: str) -> None:
        if key == "watch":  # the name that XetHub used
            key = "follow"
        if key in REFUSED:
            self._problems.append(f"option {key} {REFUSED[key]}")
        elif key not in VALID:
            self._problems.append(f"there is no option {_named(key)}")
        elif key in self._values:
            self._problems.append(f"option {key} is given twice")
        else:
            self._values[key] = value

    def _repo(self) -> tuple[str, str]:
        store = self._take("store", volume_options.store_url) or ""
        value = self._values.get("repo", "")
        if not value:
            self._problems.append(
                "option repo is missing: give repo=NAME, or repo=URL with its store"
            )
            return store, ""
        if self._is_git:
            return store, self._take("repo", lambda url: parse_git_url(url).repo) or ""
        if "://" not in value and not value.startswith("/"):
            return store, self._take("repo", _repo_name) or ""
        if store:
            self._problems.append("option repo is a URL and names the store: leave out store")
        found = self._take("repo", lambda url: self._split_url(volume_options.store_url(url)))
        return found or ("", "")

    def _take(self, key: str, parse: Callable[[str], T]) -> T | None:
        """Takes one option; None if it is missing or wrong."""
        if key not in self._values:
            return None
        try:
            return parse(self._values[key])
        except InvalidInput as error:
            self._problems.append(f"option {key}: {error}")
        except LodefsError as error:  # a store does not exist, or does not answer
            self._failure = error
        return None


def _named(key: str) -> str:
    """Returns the name of an option in a form that is safe in a message."""
    return repr(key[:60])


def _repo_name(text: str) -> str:
    """Returns the name of a repository. REPO@REV:PATH is refused with the options to use
    instead."""
    try:
        return check_repo(text)
    except InvalidInput:
        repo, at, rev = text.partition(":")[0].partition("@")
        path = text.partition(":")[2]
        if not at and not path:
            raise
        wanted = [f"repo={repo}", *([f"commit={rev}"] if at else [])]
        wanted += [f"path={path}"] if path else []
        raise InvalidInput(
            f"{text!r} is more than a name: give {' and '.join(f'-o {one}' for one in wanted)}"
        ) from None


def _token_file(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise InvalidInput("it must be the absolute path of a file, not the token itself")
    return text


def _token_env(text: str) -> str:
    if not _ENV_NAME.match(text):
        raise InvalidInput(
            "it must be the name of an environment variable (capitals, digits, _), not the token"
        )
    if text.startswith("AWS_"):
        raise InvalidInput(
            "variables AWS_... hold credentials for S3, which no volume may send to a proxy; give "
            "the token a variable of its own, or token_file=/PATH"
        )
    return text


def _pin(text: str) -> Pin | None:
    pin_s = volume_options.pin_s(text)
    return None if pin_s is None else Pin(pin_s or None)
