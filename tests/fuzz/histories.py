"""Writes random histories: what goes wrong in one is its mood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.fuzz.commands import (
    BLOBS,
    BUCKETS,
    MACHINES,
    NAMES,
    PATHS,
    PLANS,
    POLICIES,
    REPOS,
    SOURCES,
    STORES,
    TAGS,
    Adopt,
    Both,
    Bundle,
    Change,
    ChangeObject,
    Collect,
    Command,
    Copy,
    CopyPath,
    Damage,
    Delete,
    Fail,
    Fault,
    Fork,
    Import,
    Kill,
    Merge,
    PlanCreate,
    PlanDiscard,
    PlanFinish,
    PlanPart,
    Point,
    Purge,
    Push,
    ReadMirrored,
    Refuse,
    Rename,
    Repair,
    Retain,
    Revert,
    Scrub,
    SetClock,
    Single,
    Undelete,
    Wait,
)


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
            (self._import, 4),
            (self._adopt, 1.5),
            (self._plan_create, 1),
            (self._plan_part, 5),
            (self._plan_finish, 4),
            (self._plan_discard, 0.3),
        )
        self._acts, self._weights = zip(*acts, strict=True)
        self._main = random.randrange(STORES)  # where most happens
        self._plans: list[int] = []  # that were begun

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
        if dice > 0.9:
            return self._change_object()
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

    def _import(self) -> Import:
        bucket, repo = self._random.randrange(BUCKETS), self._repo()
        where, fault = self._where(), self._fault()
        return Import(**where, bucket=bucket, repo=repo, branch=self._branch(), fault=fault)

    def _adopt(self) -> Adopt:
        rev = self._random.choice((None, "main", "dev", "v1"))
        return Adopt(**self._where(), repo=self._repo(), rev=rev, fault=self._fault())

    def _planned(self) -> dict[str, int]:
        """One of the plans that were begun, which machines share."""
        machine = self._random.randrange(MACHINES)
        return {"store": self._main, "machine": machine, "plan": self._random.choice(self._plans)}

    def _plan_create(self) -> PlanCreate:
        self._plans.append(self._random.randrange(len(PLANS)))
        return PlanCreate(**self._planned(), fault=self._fault())

    def _plan_part(self) -> PlanCreate | PlanPart:
        if not self._plans:
            return self._plan_create()
        pick = None if self._random.random() < 0.6 else self._share()
        return PlanPart(**self._planned(), pick=pick, fault=self._fault())

    def _plan_finish(self) -> PlanCreate | PlanFinish:
        if not self._plans:
            return self._plan_create()
        return PlanFinish(**self._planned(), fault=self._fault())

    def _plan_discard(self) -> PlanCreate | PlanDiscard:
        if not self._plans:
            return self._plan_create()
        return PlanDiscard(**self._planned(), fault=self._fault())

    def _change_object(self) -> ChangeObject:
        random = self._random
        blob = None if random.random() < 0.25 else random.randrange(BLOBS)
        return ChangeObject(random.randrange(BUCKETS), random.choice(PATHS), blob)

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
