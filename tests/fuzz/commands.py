"""What people and accidents do to some stores: the words of a history.

A command says by itself what it does: numbers name stores, machines, sources and files, and shares
of 1 an object among those that are there. So a history from which commands are dropped is one too,
and its ``repr`` can be pasted into a test.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Literal

STORES = 3
MACHINES = 3
SOURCES = 8  # directories that are pushed
REPOS = ("r", "s", "t")
BRANCHES = ("main", "dev")
TAGS = ("v1", "v2")
NAMES = (*BRANCHES, *TAGS)
BLOBS = 12  # contents of files
PATHS = ("a", "b", "c/d", "c/e/f", "g")
BUCKETS = 2  # of somebody else; the second one keeps versions
PLANS = ((0, "r", "main"), (3, "r", "dev"), (5, "s", "main"))  # of pushes in parts: source, branch
POLICIES = 4
QUOTAS = (None, 200_000, 9_000)


def path_of(pick: float) -> str:
    """One of the paths."""
    return PATHS[int(pick * len(PATHS))]


@dataclass(frozen=True)
class Kill:
    """The process dies at its ``write``-th put or delete, or right after it."""

    write: int
    after: bool = False


@dataclass(frozen=True)
class Fail:
    """Requests from the ``request``-th on are not answered, ``times`` of them; done all the same
    with ``answered``."""

    request: int
    times: int = 1
    answered: bool = False


@dataclass(frozen=True)
class Refuse:
    """Credentials that do not allow deletes."""


Fault = Kill | Fail | Refuse | None


@dataclass(frozen=True)
class Push:
    """A directory becomes a branch."""

    store: int
    machine: int
    source: int
    repo: str = "r"
    branch: str = "main"
    check: bool = False
    fault: Fault = None


@dataclass(frozen=True)
class Import:
    """A bucket becomes a branch, and its larger objects stay there."""

    store: int
    machine: int
    bucket: int
    repo: str = "r"
    branch: str = "main"
    fault: Fault = None


@dataclass(frozen=True)
class Adopt:
    """What a branch or tag has in place, or (None) any version, comes into the store."""

    store: int
    machine: int
    repo: str = "r"
    rev: str | None = None
    fault: Fault = None


@dataclass(frozen=True)
class PlanCreate:
    """A push in parts begins."""

    store: int
    machine: int
    plan: int
    fault: Fault = None


@dataclass(frozen=True)
class PlanPart:
    """One part of a plan, or (None) one after the other, is pushed, again too."""

    store: int
    machine: int
    plan: int
    pick: float | None = None
    fault: Fault = None


@dataclass(frozen=True)
class PlanFinish:
    """What the parts of a plan have stored becomes a commit."""

    store: int
    machine: int
    plan: int
    fault: Fault = None


@dataclass(frozen=True)
class PlanDiscard:
    """A plan goes."""

    store: int
    machine: int
    plan: int
    fault: Fault = None


@dataclass(frozen=True)
class Change:
    """Files of a branch are put (number of the content), or removed (None)."""

    store: int
    machine: int
    files: tuple[tuple[str, int | None], ...]
    repo: str = "r"
    branch: str = "main"
    fault: Fault = None


@dataclass(frozen=True)
class Merge:
    """What a branch or tag has comes into a branch; where both changed a file, its own stays."""

    store: int
    machine: int
    other: str = "dev"
    repo: str = "r"
    branch: str = "main"
    fault: Fault = None


@dataclass(frozen=True)
class CopyPath:
    """What a branch or tag has at a path comes to a path of a branch; with ``move`` it goes from
    where it was."""

    store: int
    machine: int
    path: str
    to: str
    source: str = "r"
    rev: str = "main"
    repo: str = "r"
    branch: str = "main"
    move: bool = False
    fault: Fault = None


@dataclass(frozen=True)
class Fork:
    """A repository begins at any commit that another one has."""

    store: int
    machine: int
    pick: float
    repo: str = "r"
    new: str = "t"
    fault: Fault = None


@dataclass(frozen=True)
class Rename:
    """A repository gets another name, to which its own leads or (``ended``) does not any more."""

    store: int
    machine: int
    repo: str = "r"
    new: str = "t"
    ended: bool = False
    fault: Fault = None


@dataclass(frozen=True)
class Revert:
    """What any commit that the repository has has changed is taken back in a branch."""

    store: int
    machine: int
    pick: float
    repo: str = "r"
    branch: str = "main"
    fault: Fault = None


@dataclass(frozen=True)
class Point:
    """A branch or tag that is not there is made, at any commit that the repository has."""

    store: int
    machine: int
    pick: float
    repo: str = "r"
    name: str = "v1"
    fault: Fault = None


@dataclass(frozen=True)
class Delete:
    """A branch or tag goes; with no name all of the repository."""

    store: int
    machine: int
    repo: str = "r"
    name: str | None = None
    fault: Fault = None


@dataclass(frozen=True)
class Undelete:
    """A deleted branch, tag or repository comes back."""

    store: int
    machine: int
    repo: str = "r"
    name: str | None = None
    fault: Fault = None


@dataclass(frozen=True)
class Retain:
    """One of a few policies (0: none), and one of a few quotas."""

    store: int
    machine: int
    policy: int
    quota: int = 0
    repo: str = "r"
    fault: Fault = None


@dataclass(frozen=True)
class Collect:
    """A gc run, perhaps with compaction, and merging of small packs."""

    store: int
    machine: int
    min_used: float | None = None
    merge_below: int | None = None
    fault: Fault = None


@dataclass(frozen=True)
class Purge:
    """A file of any version is to be gone; without ``pick``, what came back of earlier ones."""

    store: int
    machine: int
    pick: float | None = None
    repo: str = "r"
    fault: Fault = None


@dataclass(frozen=True)
class Copy:
    """A repository, or one branch or tag of it, to another store."""

    store: int  # where it comes to
    machine: int
    source: int
    repo: str = "r"
    rev: str | None = None
    by_server: bool = False
    fault: Fault = None


@dataclass(frozen=True)
class Bundle:
    """A branch or tag through a file to another store, after what is there of it or as a whole."""

    store: int  # where it comes to
    machine: int
    source: int
    repo: str = "r"
    rev: str = "main"
    since: bool = False
    fault: Fault = None


@dataclass(frozen=True)
class Repair:
    """A repair from ``store:N``, ``proxy:N``, ``directory:N``; of the index shards alone with
    ``index``."""

    store: int
    machine: int
    sources: tuple[str, ...] = ()
    data: bool = True
    index: bool = False
    fault: Fault = None


@dataclass(frozen=True)
class Scrub:
    """A share of the packs is read: 1 / ``parts``."""

    store: int
    machine: int
    parts: int = 1
    fault: Fault = None


@dataclass(frozen=True)
class ReadMirrored:
    """All that the refs of a store lead to is read, with other stores as its mirrors."""

    store: int
    machine: int
    mirror: int
    fault: Fault = None


@dataclass(frozen=True)
class Damage:
    """An object that begins so is lost, or cut off, or a bit of it is wrong."""

    store: int
    how: Literal["lose", "cut", "flip", "empty"]
    prefix: str = ""
    pick: float = 0.0
    at: float = 0.5


@dataclass(frozen=True)
class ChangeObject:
    """The owner of a bucket writes an object (number of the content), or (None) deletes it."""

    bucket: int
    path: str
    blob: int | None = None


@dataclass(frozen=True)
class Wait:
    """Time passes."""

    hours: float


@dataclass(frozen=True)
class SetClock:
    """The clock of one machine is wrong by so many hours from now on."""

    machine: int
    hours: float


def shown(command: object) -> str:
    """A command as it is written in a test: without what is as by default."""
    values = [(one.name, getattr(command, one.name), one.default) for one in fields(command)]  # type: ignore[arg-type]
    told = [
        f"{name}={shown(value) if is_dataclass(value) else repr(value)}"
        for name, value, default in values
        if value != default
    ]
    return f"{type(command).__name__}({', '.join(told)})"


Single = (
    Push | Change | Merge | Revert | CopyPath | Fork | Rename | Point | Delete | Undelete | Retain
    | Collect | Purge | Copy | Bundle | Repair | Scrub | ReadMirrored | Import | Adopt
    | PlanCreate | PlanPart | PlanFinish | PlanDiscard
)  # fmt: skip


@dataclass(frozen=True)
class Both:
    """Two at once, a request at a time: ``order`` seeds who is next."""

    one: Single
    other: Single
    order: int


Command = Single | Damage | ChangeObject | Wait | SetClock | Both
