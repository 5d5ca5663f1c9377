"""Ids and names: what a chunk, pack, commit, repository, revision and path may be called."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import InvalidInput

ChunkId = NewType("ChunkId", bytes)  # BLAKE3-256 of the chunk's bytes
PackId = NewType("PackId", bytes)  # BLAKE3-256 of the ordered chunk ids and raw lengths
Digest = NewType("Digest", bytes)  # of a file: BLAKE3 of its content; of a tree: see tree.py
CommitId = NewType("CommitId", bytes)  # BLAKE3-256 of the commit's canonical JSON

ID_BYTES = 32
ID_HEX_CHARS_MIN = 6  # the shortest prefix of a commit id that is taken for one
REPO_CHARS_MAX = 200
REF_CHARS_MAX = 100
STEPS_MAX = 1000  # of a revision such as main~3
NAME_BYTES_MAX = 255  # NAME_MAX of Linux

_REPO_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_STEP = r"\^[0-9]?|~[0-9]{0,4}"
_STEPS = re.compile(_STEP)
_REVISION = re.compile(rf"([A-Za-z0-9][A-Za-z0-9._-]*)((?:{_STEP})*)\Z")
_HEX = re.compile(r"[0-9a-f]+\Z")
_HEX_PREFIX = re.compile(r"[0-9a-f]{6,64}\Z")
DEFAULT_BRANCH = "main"
PULL_STATE_DIR = ".lodefs-pull"  # in a directory that a pull has not filled to the end


def digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """BLAKE3-256 of ``data``: 32 bytes."""
    return Digest(blake3(data).digest())


def parse_id(text: str, what: str = "id") -> bytes:
    """32 bytes from 64 lower-case hex characters; InvalidInput otherwise."""
    if len(text) != 2 * ID_BYTES or not _HEX_PREFIX.match(text):
        raise InvalidInput(f"{text!r} is not a {what}: it must be 64 lower-case hex characters")
    return bytes.fromhex(text)


def check_repo(name: str) -> str:
    """The name of a repository, or InvalidInput. Parts of [A-Za-z0-9._-], joined by '/'."""
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
    """The name of a branch or tag, or InvalidInput. One part of [A-Za-z0-9._-]."""
    if len(name) > REF_CHARS_MAX or not _REF.match(name):
        raise InvalidInput(
            f"{name!r} is not a branch or tag name: use letters, digits, '.', '_' and '-', "
            f"at most {REF_CHARS_MAX} characters"
        )
    return name


def check_new_ref_name(name: str) -> str:
    """The same for a branch or tag that is created: InvalidInput also for a name that people or
    programs would take for something else."""
    check_ref_name(name)
    if name == "HEAD":
        raise InvalidInput(
            "HEAD cannot be the name of a branch or tag: git means something else by it; "
            "take another name"
        )
    if len(name) == 2 * ID_BYTES and is_hex(name):
        raise InvalidInput(
            f"{name} looks like the id of a commit, and would be mistaken for one; take another "
            "name for the branch or tag"
        )
    return name


class Revision(NamedTuple):
    """A parsed REV. ``name``: a branch, a tag, or a commit or its beginning. ``steps``: which
    parent, counted from 1, is next on the way from there to the commit that is meant."""

    name: str
    steps: tuple[int, ...]


def parse_revision(rev: str) -> Revision:
    """A name, and behind it any of ``~N`` (N first parents back; without N one) and ``^N`` (the
    parent N; without N the first), as git has them. Raises: InvalidInput."""
    found = _REVISION.match(rev)
    if len(rev) > REF_CHARS_MAX or found is None:
        raise InvalidInput(
            f"{rev!r} is not a revision: write a branch, a tag or a commit, and behind it ~N for "
            f"the commit N before it, or ^ for its parent; at most {REF_CHARS_MAX} characters"
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
            f"{rev} is more than {STEPS_MAX:,} commits before {found[1]}: `lodefs log` lists them, "
            "and a commit that it shows is a revision too"
        )
    return Revision(found[1], tuple(steps))


def check_revision(rev: str) -> str:
    """A revision, or InvalidInput."""
    parse_revision(rev)
    return rev


def is_hex(rev: str) -> bool:
    """Whether ``rev`` consists of hex digits as commit ids do."""
    return bool(_HEX.match(rev))


def is_commit_prefix(rev: str) -> bool:
    """Whether ``rev`` may be a commit id or the beginning of one."""
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
    """The names in a path inside a snapshot; InvalidInput for '..', NUL or an overlong name."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    for part in parts:
        if part == b".." or b"\0" in part or len(part) > NAME_BYTES_MAX:
            raise InvalidInput(
                f"{path.decode('utf-8', 'backslashreplace')!r} is not a path inside a snapshot: "
                f"'..', NUL and names of more than {NAME_BYTES_MAX} bytes are refused"
            )
    return parts


def parse_spec(text: str | bytes) -> Spec:
    """``REPO[@REV][:PATH]`` as a Spec. Raises: InvalidInput if a part of it is malformed.

    Text that came from the command line may hold surrogate escapes for bytes that are not UTF-8.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    head, colon, path = raw.partition(b":")
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
    """``REPO[@REV]``, where the lack of a revision means all of them. Raises: InvalidInput."""
    spec = parse_spec(text)
    if ":" in text:
        raise InvalidInput(f"{text!r}: this takes REPO or REPO@REV, without a path")
    return Target(spec.repo, spec.rev if "@" in text else None)
