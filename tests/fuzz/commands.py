"""What people and accidents do to some stores: the words of a history.

A command says by itself what it does: numbers name stores, machines, sources and files, and shares
of 1 an object among those that are there. So a history from which commands are dropped is one too,
and its ``repr`` can be pasted into a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from random import Random
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
    | Collect | Purge | Copy | Bundle | Repair | Scrub | ReadMirrored
)  # fmt: skip


@dataclass(frozen=True)
class Both:
    """Two at once, a request at a time: ``order`` seeds who is next."""

    one: Single
    other: Single
    order: int


Command = Single | Damage | Wait | SetClock | Both


@dataclass(frozen=True)
class Mood:
    """What goes wrong in a history, as chances of each command."""

    kill: float = 0.0
    fail: float = 0.0
    damage: float = 0.0
    flips: bool = False
    all_objects: bool = False  # and not only packs are damaged
    both: float = 0.0
    clocks: float = 0.0
    purges: bool = True


MOODS = (
    Mood(both=0.1),
    Mood(kill=0.3, both=0.05),
    Mood(kill=0.15, fail=0.15, both=0.1, clocks=0.05),
    Mood(damage=0.12),
    Mood(damage=0.1, kill=0.15, flips=True, both=0.05),
    Mood(damage=0.15, flips=True, all_objects=True, purges=False),
    Mood(damage=0.1, kill=0.1, fail=0.05, flips=True, all_objects=True, both=0.1, clocks=0.03),
)


BEGINNING = 4  # commands that fill stores


def history(seed: int, commands: int) -> list[Command]:
    """The history of a seed."""
    random = Random(seed)
    mood = MOODS[seed % len(MOODS)]
    writer = _Writer(random, mood)
    return [*writer.beginning(), *(writer.next() for _ in range(commands - BEGINNING))]


class _Writer:
    """Writes a history, a command at a time."""

    def __init__(self, random: Random, mood: Mood) -> None:
        self._random = random
        self._mood = mood
        acts: tuple[tuple[Callable[[], Single], float], ...] = (
            (self._push, 7),
            (self._change, 4),
            (self._merge, 1.5),
            (self._revert, 1.5),
            (self._copy_path, 2),
            (self._fork, 1.5),
            (self._rename, 2),
            (self._point, 1.5),
            (self._delete, 2.5),
            (self._undelete, 1),
            (self._retain, 1.5),
            (self._collect, 6),
            (self._purge, 3 if mood.purges else 0),
            (self._copy, 5),
            (self._bundle, 2),
            (self._repair, 2 + 20 * mood.damage),
            (self._scrub, 0.7),
            (self._read_mirrored, 0.7),
        )
        self._acts, self._weights = zip(*acts, strict=True)
        self._main = random.randrange(STORES)  # where most happens

    def beginning(self) -> list[Command]:
        """Something is pushed, and copied, before anything goes wrong."""
        random, main = self._random, self._main
        return [
            Push(main, random.randrange(MACHINES), random.randrange(SOURCES)),
            Push(main, random.randrange(MACHINES), random.randrange(SOURCES)),
            Copy(self._source(main), random.randrange(MACHINES), main),
            self._change(),
        ]

    def next(self) -> Command:
        """The next command."""
        random, mood = self._random, self._mood
        dice = random.random()
        if dice < 0.13:
            return Wait(random.choice((1, 12, 26, 26, 26, 60)))
        if random.random() < mood.damage:
            return self._damage()
        if random.random() < mood.clocks:
            return SetClock(random.randrange(MACHINES), random.choice((0, 0, -7, 5, 40)))
        if random.random() < mood.both:
            return Both(self._single(), self._single(), random.randrange(1 << 16))
        return self._single()

    def _single(self) -> Single:
        act: Callable[[], Single] = self._random.choices(self._acts, self._weights)[0]
        return act()

    def _fault(self) -> Fault:
        random, mood = self._random, self._mood
        if random.random() < mood.kill:
            return Kill(int(random.triangular(1, 30, 6)), random.random() < 0.5)
        if random.random() < mood.fail:
            if random.random() < 0.15:
                return Refuse()
            times = random.choice((1, 1, 3, 1000))
            return Fail(int(random.triangular(1, 60, 10)), times, random.random() < 0.5)
        return None

    def _where(self) -> dict[str, int]:
        store = self._main if self._random.random() < 0.5 else self._random.randrange(STORES)
        return {"store": store, "machine": self._random.randrange(MACHINES)}

    def _share(self) -> float:
        """From 0 on, below 1."""
        return self._random.randrange(1000) / 1000

    def _repo(self) -> str:
        return self._random.choice(("r", "r", "r", "r", "s", "t"))

    def _branch(self) -> str:
        return self._random.choice(("main", "main", "dev"))

    def _push(self) -> Push:
        return Push(
            **self._where(),
            source=self._random.randrange(SOURCES),
            repo=self._repo(),
            branch=self._branch(),
            check=self._random.random() < 0.25,
            fault=self._fault(),
        )

    def _change(self) -> Change:
        random = self._random
        names = random.sample(PATHS, random.randint(1, 3))
        files = tuple(
            (name, None if random.random() < 0.15 else random.randrange(BLOBS)) for name in names
        )
        return Change(
            **self._where(),
            files=files,
            repo=self._repo(),
            branch=self._branch(),
            fault=self._fault(),
        )

    def _merge(self) -> Merge:
        other = self._random.choice(NAMES)
        repo, fault = self._repo(), self._fault()
        return Merge(**self._where(), other=other, repo=repo, branch=self._branch(), fault=fault)

    def _copy_path(self) -> CopyPath:
        random, fault = self._random, self._fault()
        return CopyPath(
            **self._where(),
            path=random.choice((*PATHS, "c", "c/e")),
            to=random.choice((*PATHS, "c", "d/a")),
            source=self._repo(),
            rev=random.choice(("main", "main", *NAMES)),
            repo=self._repo(),
            branch=self._branch(),
            move=random.random() < 0.4,
            fault=fault,
        )

    def _fork(self) -> Fork:
        pick, fault = self._share(), self._fault()
        new = self._random.choice(REPOS)
        return Fork(**self._where(), pick=pick, repo=self._repo(), new=new, fault=fault)

    def _rename(self) -> Rename:
        ended, fault = self._random.random() < 0.2, self._fault()
        new = self._random.choice(REPOS)
        return Rename(**self._where(), repo=self._repo(), new=new, ended=ended, fault=fault)

    def _revert(self) -> Revert:
        pick, fault = self._share(), self._fault()
        return Revert(
            **self._where(), pick=pick, repo=self._repo(), branch=self._branch(), fault=fault
        )

    def _point(self) -> Point:
        name = self._random.choice((*TAGS, "dev"))
        pick, fault = self._share(), self._fault()
        return Point(**self._where(), pick=pick, repo=self._repo(), name=name, fault=fault)

    def _delete(self) -> Delete:
        name = self._random.choice((*NAMES, None))
        return Delete(**self._where(), repo=self._repo(), name=name, fault=self._fault())

    def _undelete(self) -> Undelete:
        name = self._random.choice((*NAMES, None, None))
        return Undelete(**self._where(), repo=self._repo(), name=name, fault=self._fault())

    def _retain(self) -> Retain:
        policy, quota = self._random.randrange(POLICIES), self._random.choice((0, 0, 1, 2))
        where, fault = self._where(), self._fault()
        return Retain(**where, policy=policy, quota=quota, repo=self._repo(), fault=fault)

    def _collect(self) -> Collect:
        return Collect(
            **self._where(),
            min_used=self._random.choice((None, 0.5, 1.0, 1.0)),
            merge_below=self._random.choice((None, None, 1000, 1 << 20)),
            fault=self._fault(),
        )

    def _purge(self) -> Purge:
        pick = None if self._random.random() < 0.25 else self._share()
        return Purge(**self._where(), pick=pick, repo=self._repo(), fault=self._fault())

    def _source(self, store: int) -> int:
        return self._random.choice([one for one in range(STORES) if one != store])

    def _copy(self) -> Copy:
        where = self._where()
        return Copy(
            **where,
            source=self._source(where["store"]),
            repo=self._repo(),
            rev=self._random.choice((None, None, "main", "v1")),
            by_server=self._random.random() < 0.3,
            fault=self._fault(),
        )

    def _bundle(self) -> Bundle:
        where = self._where()
        return Bundle(
            **where,
            source=self._source(where["store"]),
            repo=self._repo(),
            rev=self._random.choice(NAMES),
            since=self._random.random() < 0.5,
            fault=self._fault(),
        )

    def _repair(self) -> Repair:
        random = self._random
        where = self._where()
        others = [n for n in range(STORES) if n != where["store"]]
        kinds = [
            *(f"store:{n}" for n in others),
            *(f"store:{n}" for n in others),
            *(f"proxy:{n}" for n in others),
            *(f"directory:{random.randrange(SOURCES)}" for _ in range(2)),
        ]
        sources = tuple(dict.fromkeys(random.sample(kinds, random.choice((0, 1, 1, 2, 3)))))
        index = random.random() < 0.15
        data = random.random() < 0.7
        return Repair(**where, sources=sources, data=data, index=index, fault=self._fault())

    def _scrub(self) -> Scrub:
        return Scrub(**self._where(), parts=self._random.choice((1, 3)), fault=self._fault())

    def _read_mirrored(self) -> ReadMirrored:
        where = self._where()
        return ReadMirrored(**where, mirror=self._source(where["store"]), fault=self._fault())

    def _damage(self) -> Damage:
        random = self._random
        prefixes = ["packs/", "packs/", "packs/", "composites/data/"]
        if self._mood.all_objects:
            prefixes += ["", "repos/", "journal/", "index/", "composites/", "purges/"]
        hows = ("lose", "lose", "cut", "empty", *(("flip",) * 3 if self._mood.flips else ()))
        return Damage(
            self._main if random.random() < 0.7 else random.randrange(STORES),
            random.choice(hows),
            random.choice(prefixes),
            self._share(),
            self._share(),
        )
