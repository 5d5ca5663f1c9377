"""Ids and names: the valid names of chunks, packs, commits, repositories, revisions and paths."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign import git

ChunkId = NewType("ChunkId", bytes)  # BLAKE3-256 of the chunk's bytes
PackId = NewType("PackId", bytes)  # BLAKE3-256 of the ordered chunk ids and raw lengths
Digest = NewType("Digest", bytes)  # for a file, BLAKE3 of its content; for a tree, see tree.py
CommitId = NewType("CommitId", bytes)  # BLAKE3-256 of the commit's canonical JSON

ID_BYTES = 32
ID_HEX_CHARS_MIN = 6  # the shortest prefix that stands for a commit id
REPO_CHARS_MAX = 200
REF_CHARS_MAX = 100
STEPS_MAX = 1000  # in a revision such as main~3
NAME_BYTES_MAX = 255  # NAME_MAX of Linux

_REPO_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")
_BASE_TAG = re.compile(r"mounted-.*-[0-9a-f]{16}\Z")
_STEP = r"\^[0-9]?|~[0-9]{0,4}"
_STEPS = re.compile(_STEP)
_REVISION = re.compile(rf"({git.REVISION}|[A-Za-z0-9][A-Za-z0-9._-]*)((?:{_STEP})*)\Z")
# In REPO@git:..., the colon begins no path
_OF_GIT = re.compile(rf"[^:@]*@{git.REVISION}(?:{_STEP})*(?=:|\Z)".encode())
_HEX = re.compile(r"[0-9a-f]+\Z")
_HEX_PREFIX = re.compile(r"[0-9a-f]{6,64}\Z")
DEFAULT_BRANCH = "main"
PULL_STATE_DIR = ".lodefs-pull"  # in a directory that a pull has not completed


def digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """Returns the BLAKE3-256 of ``data``: 32 bytes."""
    return Digest(blake3(data).digest())


def parse_id(text: str, what: str = "id") -> bytes:
    """Returns 32 bytes from 64 lower-case hex characters. Raises: InvalidInput."""
    if len(text) != 2 * ID_BYTES or not _HEX_PREFIX.match(text):
        raise InvalidInput(f"{text!r} is not a {what}: it must be 64 lower-case hex characters")
    return bytes.fromhex(text)


def check_repo(name: str) -> str:
    """Returns a valid repository name: parts of [A-Za-z0-9._-], joined by '/'. Raises:
    InvalidInput."""
    parts = name.split("/")
    if len(name) > REPO_CHARS_MAX or not all(_REPO_PART.match(part) for part in parts):
        raise InvalidInput(
            f"{name!r} is not a repository name: use letters, digits, '.', '_' and '-', "
            f"in parts joined by '/', at most {REPO_CHARS_MAX} characters"
        )
    if any(part in ("commits", "refs") for part in parts):
        raise InvalidInput(f"{name!r}: 'commits' and 'refs' are reserved in repository names")
    return name


def check_ref_name(name: str) -> str:
    """Returns a valid name of a branch or tag: one part of [A-Za-z0-9._-]. Raises: InvalidInput."""
    if len(name) > REF_CHARS_MAX or not _REF.match(name):
        raise InvalidInput(
            f"{name!r} is not a branch or tag name: use letters, digits, '.', '_' and '-', "
            f"at most {REF_CHARS_MAX} characters"
        )
    return name


def check_source(name: str) -> str:
    """Returns the valid name of a source. Raises: InvalidInput."""
    if not _SOURCE.match(name):
        raise InvalidInput(
            f"{name!r} is not a name for a source: it has 1 to 100 letters, digits, '_' and '-', "
            "and begins with a letter or digit"
        )
    return name


def is_base_tag(name: str) -> bool:
    """Whether a tag has the form of those that keep the bases of writable mounts
    (docs/decisions/0083). They move, and belong to machines."""
    return _BASE_TAG.match(name) is not None


def check_new_ref_name(name: str) -> str:
    """Returns a valid name of a new branch or tag. Raises: InvalidInput, also for a name that users
    or programs would take for something else."""
    check_ref_name(name)
    if name == "HEAD":
        raise InvalidInput(
            "HEAD cannot be the name of a branch or tag, since it has another meaning in git: "
            "choose another name"
        )
    if name == "git":
        raise InvalidInput(
            "git cannot be the name of a branch or tag, since REPO@git:ID is the import of a Git "
            "commit: choose another name"
        )
    if len(name) == 2 * ID_BYTES and is_hex(name):
        raise InvalidInput(
            f"{name} looks like the id of a commit: choose another name for the branch or tag, "
            "so that nobody mistakes it for one"
        )
    return name


class Revision(NamedTuple):
    """A parsed REV. ``name`` is a branch, a tag, a commit, or a prefix of one; or ``git:`` and an
    id, or a name, of Git. ``steps`` leads from there to the commit: each is the
    number of a parent, counted from 1."""

    name: str
    steps: tuple[int, ...]


def parse_revision(rev: str) -> Revision:
    """Parses a name, followed by any of ``~N`` (N first parents back; N is 1 by default) and ``^N``
    (the parent N, by default the first), as in git. Raises: InvalidInput."""
    found = _REVISION.match(rev)
    if len(rev) > REF_CHARS_MAX or found is None:
        raise InvalidInput(
            f"{rev!r} is not a revision: write a branch, a tag, a commit or git:ID, followed by ~N "
            f"for the commit N before it, or ^ for its parent; at most {REF_CHARS_MAX} characters"
        )
    steps: list[int] = []
    for step in _STEPS.findall(found[2]):
        number = int(step[1:] or 1)
        if step[0] == "~":
            steps += [1] * number
        elif number:  # ^0 is the commit itself
            steps.append(number)
    if len(steps) > STEPS_MAX:
        raise InvalidInput(
            f"{rev} is more than {STEPS_MAX:,} commits before {found[1]}: `lodefs log` lists these "
            "commits, and the id of a commit is a revision, too"
        )
    return Revision(found[1], tuple(steps))


def check_revision(rev: str) -> str:
    """Returns a valid revision. Raises: InvalidInput."""
    parse_revision(rev)
    return rev


def is_hex(rev: str) -> bool:
    """Whether ``rev`` consists of hex digits, as commit ids do."""
    return bool(_HEX.match(rev))


def is_commit_prefix(rev: str) -> bool:
    """Whether ``rev`` may be a commit id or a prefix of one."""
    return bool(_HEX_PREFIX.match(rev))


class Spec(msgspec.Struct, frozen=True):
    """A parsed ``REPO[@REV][:PATH]``. ``path`` is bytes, without leading or trailing '/'."""

    repo: str
    rev: str = DEFAULT_BRANCH
    path: bytes = b""

    def __str__(self) -> str:
        tail = f":{self.path.decode('utf-8', 'backslashreplace')}" if self.path else ""
        return f"{self.repo}@{self.rev}{tail}"


def split_path(path: bytes) -> list[bytes]:
    """Returns the names in a path inside a snapshot. Raises: InvalidInput for '..', NUL or an
    overlong name."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    for part in parts:
        if part == b".." or b"\0" in part or len(part) > NAME_BYTES_MAX:
            raise InvalidInput(
                f"{path.decode('utf-8', 'backslashreplace')!r} is not a path inside a snapshot: "
                f"'..', NUL and names of more than {NAME_BYTES_MAX} bytes are refused"
            )
    return parts


def parse_spec(text: str | bytes) -> Spec:
    """Parses ``REPO[@REV][:PATH]``. Raises: InvalidInput if a part of it is malformed.

    Text from the command line may have surrogate escapes for bytes that are not UTF-8.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    of_git = _OF_GIT.match(raw)
    begin = of_git[0] if of_git else b""
    rest, colon, path = raw[len(begin) :].partition(b":")
    head = begin + rest
    repo, at, rev = head.decode("utf-8", "replace").partition("@")
    check_repo(repo)
    if at:
        check_revision(rev)
    clean = b"/".join(split_path(path)) if colon else b""
    return Spec(repo, rev if at else DEFAULT_BRANCH, clean)


class Target(NamedTuple):
    """A whole repository (``rev`` None), or a revision of it."""

    repo: str
    rev: str | None

    def __str__(self) -> str:
        return self.repo if self.rev is None else f"{self.repo}@{self.rev}"


def parse_target(text: str) -> Target:
    """Parses ``REPO[@REV]``; without a revision it stands for all of them. Raises: InvalidInput."""
    spec = parse_spec(text)
    if ":" in text.removeprefix(f"{spec.repo}@{spec.rev}"):
        raise InvalidInput(f"{text!r}: write REPO or REPO@REV, without a path")
    return Target(spec.repo, spec.rev if "@" in text else None)
