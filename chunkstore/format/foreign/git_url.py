"""The URLs of Git repositories, and which of them may be read. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.format.names import Spec, check_repo, split_path

HEAD = "HEAD"
SCHEMES = ("https", "http", "ssh")
CHARS_MAX = 1000

_URL = re.compile(
    r"(?P<scheme>https|http|ssh)://(?:(?P<user>[A-Za-z0-9._-]+)@)?"
    r"(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)(?::(?P<port>[0-9]{1,5}))?"
    r"/(?P<path>[A-Za-z0-9._~+%/-]+)\Z"
)
_PASSWORD = re.compile(r"[a-z]+://[^/@]*:[^/@]*@")
_REV = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,250}\Z")
_PORTS = {"https": "443", "http": "80", "ssh": "22"}


class GitUrl(NamedTuple):
    """The URL of a repository on a server. ``user`` is "" unless it is ssh's. ``port`` is "" if it
    is the scheme's own."""

    scheme: str
    user: str
    host: str
    port: str
    path: str

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{self.scheme}://{user}{self.place}"

    @property
    def place(self) -> str:
        """HOST[:PORT]/PATH."""
        return f"{self.host}{f':{self.port}' if self.port else ''}/{self.path}"

    @property
    def repo(self) -> str:
        """The repository of a store that nodes import it into. Raises: InvalidInput."""
        port = f"_{self.port}" if self.port else ""
        return check_repo(f"{git.TREE_BELOW}/{self.host}{port}/{self.path}")


def is_git_url(text: str) -> bool:
    """Whether a text is meant as the URL of a Git repository: no store has such a scheme."""
    return text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def parse_git_url(text: str) -> GitUrl:
    """Parses a URL. Raises: InvalidInput, which does not repeat a password."""
    if _PASSWORD.match(text):
        raise InvalidInput(
            "the URL of a Git repository has no password in it, since others could see it: a file "
            "has it (docs/git.md)"
        )
    found = _URL.match(text) if len(text) <= CHARS_MAX else None
    names = [] if found is None else found["path"].strip("/").split("/")
    if found is None or any(name in ("", ".", "..") or name.startswith("-") for name in names):
        raise InvalidInput(
            f"{text[:CHARS_MAX]!r} is not the URL of a Git repository: write "
            "https://HOST/PATH.git or ssh://git@HOST/PATH.git"
        )
    scheme, user = found["scheme"], found["user"] or ""
    if user and scheme != "ssh":
        raise InvalidInput(f"{text!r}: only ssh has a user in the URL")
    port = found["port"] or ""
    port = "" if port == _PORTS[scheme] else port
    return GitUrl(scheme, user, found["host"].lower(), port, "/".join(names))


def split_rev(text: str) -> tuple[str, str]:
    """Splits ``URL[@REV]``, or the path of a directory with ``@REV``; the revision is HEAD by
    default. Raises: InvalidInput for a revision that Git could take for something else."""
    scheme, mark, rest = text.partition("://")
    if mark:
        host, slash, path = rest.partition("/")
        path, at, rev = path.partition("@")
        url = f"{scheme}://{host}{slash}{path}"
    else:
        path, at, rev = text.rpartition("@")
        url = path if at else text
    return url, check_rev(rev) if at else HEAD


def check_rev(rev: str) -> str:
    """Returns the valid name of a branch, tag or commit of Git. Raises: InvalidInput."""
    if not _REV.match(rev) or ".." in rev or "//" in rev or rev.endswith(("/", ".lock", ".")):
        raise InvalidInput(
            f"{rev[:CHARS_MAX]!r} is not a revision of Git: write a branch, a tag, or the whole id "
            "of a commit"
        )
    return rev


def spec_of_url(text: str) -> Spec:
    """Returns the dataset that ``URL[@REV][:PATH]`` names, which nodes import when it is asked
    for. Raises: InvalidInput."""
    scheme, _, rest = text.partition("://")
    host, _, path = rest.partition("/")
    path, colon, inside = path.partition(":")
    path, at, rev = path.partition("@")
    repo = parse_git_url(f"{scheme}://{host}/{path}").repo
    where = b"/".join(split_path(os.fsencode(inside))) if colon else b""
    return Spec(repo, revision(rev if at else HEAD), where)


def revision(name: str) -> str:
    """Returns the revision of a store that a branch, a tag or an id of Git is. Raises:
    InvalidInput."""
    return git.revision_of(check_rev(name))


def url_of_repo(repo: str, allowed: Sequence[str]) -> str | None:
    """Returns the URL of a repository that nodes import, if it is one of ``allowed``, or below one;
    None if it is not. How it is reached, they say."""
    for one in allowed:
        beginning = one if one.endswith("/") else f"{one}/"
        below = parse_git_url(f"{beginning}x").repo.removesuffix("x")
        if f"{repo}/" == below and one != beginning:
            return one
        if repo.startswith(below) and len(repo) > len(below):
            return str(parse_git_url(beginning + repo.removeprefix(below)))
    return None


def check_allowed(text: str) -> str:
    """Returns a valid entry of the settings: a host (https://HOST/), or what is at or below a URL.
    Raises: InvalidInput."""
    below = parse_git_url(f"{text.rstrip('/')}/x")
    check_repo(below.repo)
    return str(below).removesuffix("/x") if below.path != "x" else str(below).removesuffix("x")


def relative_to(url: GitUrl, text: str) -> GitUrl:
    """Returns the URL of a submodule, which may be relative to that of its parent. Raises:
    InvalidInput."""
    if not text.startswith(("./", "../")):
        return parse_git_url(text)
    names = url.path.split("/")
    for name in text.rstrip("/").split("/"):
        if name == ".." and names:
            names.pop()
        elif name != ".":
            names.append(name)
    return parse_git_url(str(url._replace(path="/".join(names) or "-")))
