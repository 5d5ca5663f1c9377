"""``./run loadtest simulate-push --workers 100 --json``: a push in parts, in simulation.

The parts are those that a plan makes (part_scan.py), and the requests of a plan, a part and its end
are those that the code sends to a store in memory when it does a small plan. S3 and the machines
are models: a latency, a rate for each prefix, a speed for each connection and each machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from random import Random

from loadtests.simulation.__main__ import parse_count, parse_size
from loadtests.simulation.clock import Clock
from lodefs.api.parts.part_tasks import IN_FLIGHT_MAX
from lodefs.chunkstore.push.index.push_index import SHARD_READERS, UNLISTED_MAX
from lodefs.chunkstore.push.pack_writer import DATA_PACK_SIZES_BYTES, UPLOADS_MAX
from lodefs.chunkstore.push.parts.finish import REQUESTS_MAX, finish_plan
from lodefs.chunkstore.push.parts.part_row import do_part, do_parts
from lodefs.chunkstore.push.parts.part_scan import PartLimits, parts_of
from lodefs.chunkstore.push.parts.plan import PUTS_MAX, make_plan
from lodefs.chunkstore.push.push import PushOptions
from lodefs.chunkstore.push.scanner import Columns, ScannedDirectory
from lodefs.chunkstore.repo.hook_lists import LISTS_AHEAD, READERS
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.faulty_store import Call, FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects

PACK_BYTES = max(DATA_PACK_SIZES_BYTES)
TRAIN_PACKS = 8  # packs of one event
GET_RATE = 5500  # GETs and HEADs a second of each prefix, by the documentation of S3
LISTED = 1000  # keys of a LIST
SHARD_CPU_S = 0.006  # to keep the hooks of a shard of 8 GiB: measured by push-large-store
SHARDS_IN_LIST = 64  # on average (hook_list.py)
FILES_IN_DIRECTORY = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """What is pushed, by which machines, to which S3."""

    workers: int = 100
    dataset_bytes: int = 200 * 10**12
    file_bytes: int = 100_000_000
    worker_bytes_per_s: float = 400e6  # reads, cuts, hashes, compresses
    connection_bytes_per_s: float = 80e6
    latency_s: float = 0.05
    put_rate: float = 3500  # PUTs a second of each prefix
    prefixes: int = 256  # in which S3 keeps packs/: it has split all, or none (1)
    killed: float = 0.01  # of the tasks
    restart_s: float = 30.0  # until a killed worker is there again, on a machine that knows nothing
    tasks: int = 1  # of an array, for each worker; 0: an executor, whose tasks are parts
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a part, one after the other: those before its data and after it, and all those of
    a part that one process does after another part. ``finish`` are those at the end, by parts."""

    before: int
    after: int
    in_a_row: int
    finish: float


@dataclass(slots=True)
class Figures:
    """How long a push took, and where the time went."""

    workers: int
    parts: int
    plan_s: float
    parts_s: float
    finish_s: float
    ideal_s: float  # of one worker's time without others, kills, plan and end, by the workers
    shards_share: float  # of the workers' time, reading index shards of others
    shard_gets: int
    list_gets: int
    killed: int

    @property
    def efficiency(self) -> float:
        """Of linear: 1 is N times as fast as one worker."""
        return self.ideal_s / (self.plan_s + self.parts_s + self.finish_s)


class Gate:
    """Lets requests through at a rate, in order."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_s = 0.0

    def pass_at(self, now_s: float, requests: int) -> float:
        """Returns when the last of so many requests gets through."""
        self._free_s = max(self._free_s, now_s) + requests / self._rate
        return max(now_s, self._free_s - 1 / self._rate)


@dataclass(frozen=True, slots=True)
class HookList:
    """The hooks of the shards ``first`` to ``last``, and when it is in the store."""

    first: int
    last: int
    ready_s: float


class Push:
    """The workers of one push, on a virtual clock."""

    def __init__(self, settings: Settings, requests: Requests, sizes: Sequence[int]) -> None:
        self.settings = settings
        self.clock = Clock()
        self.requests = requests
        self.sizes = sizes
        self.packs = Gate(settings.put_rate * settings.prefixes)
        self.shards, self.lists = Gate(GET_RATE), Gate(GET_RATE)
        self.hook_lists: list[HookList] = []
        self.documents = Gate(settings.put_rate)
        self.published = self.done = self.killed = self.shard_gets = self.list_gets = 0
        self.shards_s = 0.0
        self._random = Random(settings.seed)
        self._attempts = 0
        tasks = settings.tasks * settings.workers or len(sizes)
        self.tasks = deque(deque(range(number, len(sizes), tasks)) for number in range(tasks))

    def run(self) -> float:
        """Returns the time until all parts are done."""
        workers = self.settings.workers
        if not self.settings.tasks:
            workers = min(workers, IN_FLIGHT_MAX)
        for _ in range(workers):  # which do not begin at the same moment
            self.clock.at(self._random.random() * 5, _Worker(self).next)
        finished = self.clock.run(lambda: self.done == len(self.sizes), calls_max=1 << 40)
        assert finished
        return self.clock.now_s

    def publish(self) -> None:
        """Adds a shard to the store; some close a list, of which the shards are read first."""
        self.published += 1
        if self._random.random() * SHARDS_IN_LIST < 1:
            first = self.hook_lists[-1].last + 1 if self.hook_lists else 1
            shards = self.published - first + 1
            takes_s = (shards / READERS + 3) * self.settings.latency_s  # two LISTs, the PUT
            ready_s = self.shards.pass_at(self.clock.now_s, shards) + takes_s
            self.hook_lists.append(HookList(first, self.published, ready_s))

    def unread(self, known: int) -> tuple[int, int]:
        """Returns how many shards and lists a worker reads that knows the first shards."""
        begin = bisect_right(self.hook_lists, known, key=lambda one: one.last)
        ready = [one for one in self.hook_lists[begin:] if one.ready_s <= self.clock.now_s]
        listed = sum(one.last - max(one.first - 1, known) for one in ready)
        return self.published - known - listed, len(ready)

    def listed(self, known: int) -> int:
        """Returns the last shard that is in a list."""
        ready = (one.last for one in self.hook_lists[::-1] if one.ready_s <= self.clock.now_s)
        return max(known, next(ready, 0))

    def lives_for(self) -> float:
        """Returns the share of the next task after which its worker is killed; 2 if it is not."""
        is_killed = self._random.random() < self.settings.killed
        return self._random.random() if is_killed else 2


class _Worker:
    def __init__(self, push: Push) -> None:
        self._push = push
        self._parts: deque[int] = deque()  # of its task
        self._known = 0  # shards
        self._is_first = True  # of the parts that its process does

    def next(self) -> None:
        """Begins the next part, if need be of the next task."""
        push, settings = self._push, self._push.settings
        while not self._parts:
            if not push.tasks:
                return
            self._parts = push.tasks.popleft()
        part = self._parts.popleft()
        unseen = push.published - self._known
        shards, lists = push.unread(self._known)
        if not self._is_first and shards > UNLISTED_MAX:
            unseen -= shards
            shards = 0
            self._known = push.listed(self._known)
        else:
            self._known = push.published
        serial = push.published // LISTED
        serial += push.requests.before if self._is_first else push.requests.in_a_row
        self._is_first = not settings.tasks
        before_s = push.clock.now_s + serial * settings.latency_s
        passed_s = push.shards.pass_at(before_s, shards) if shards else before_s
        passed_s = max(passed_s, push.lists.pass_at(before_s, lists)) if lists else passed_s
        asked_s = (shards / SHARD_READERS + lists / LISTS_AHEAD) * settings.latency_s
        ready_s = max(passed_s, before_s + asked_s, before_s + unseen * SHARD_CPU_S)
        push.shard_gets += shards
        push.list_gets += lists
        push.shards_s += ready_s - before_s
        size = push.sizes[part]
        push.clock.at(ready_s, self._read, part, size, size * (1 - push.lives_for()))

    def _read(self, part: int, left: float, dies_at: float) -> None:
        """Reads and stores some packs of a part. The worker dies when ``dies_at`` bytes are
        left."""
        push, settings = self._push, self._push.settings
        if left <= dies_at:
            push.killed += 1
            self._known, self._is_first = 0, True
            self._parts.appendleft(part)
            push.tasks.append(self._parts)
            self._parts = deque()
            push.clock.after(settings.restart_s, self.next)
            return
        some = min(left, TRAIN_PACKS * PACK_BYTES)
        now_s = push.clock.now_s
        passed_s = push.packs.pass_at(now_s, -(-int(some) // PACK_BYTES))
        sent_s = now_s + some / _upload_speed(settings)
        at_s = max(passed_s, sent_s, now_s + some / settings.worker_bytes_per_s)
        if left > some:
            push.clock.at(at_s, self._read, part, left - some, dies_at)
        elif settings.tasks:  # the next part is read meanwhile
            push.clock.at(at_s, self.next)
            push.clock.at(at_s + _last_pack_s(settings), self._published)
        else:
            push.clock.at(at_s + _last_pack_s(settings), self._end)

    def _end(self) -> None:
        push = self._push
        after = push.requests.after
        passed_s = push.documents.pass_at(push.clock.now_s, after)
        push.clock.at(passed_s + after * push.settings.latency_s, self._done)

    def _done(self) -> None:
        self._published()
        self.next()

    def _published(self) -> None:
        self._push.publish()
        self._push.done += 1
        self._known += 1


def _upload_speed(settings: Settings) -> float:
    pack_s = settings.latency_s + PACK_BYTES / settings.connection_bytes_per_s
    return UPLOADS_MAX * PACK_BYTES / pack_s


def _last_pack_s(settings: Settings) -> float:
    return settings.latency_s + PACK_BYTES / settings.connection_bytes_per_s


def part_sizes(settings: Settings) -> list[int]:
    """Returns the sizes of the parts of a plan."""
    files = settings.dataset_bytes // settings.file_bytes

    def directories() -> Iterator[ScannedDirectory]:
        for at in range(0, files, FILES_IN_DIRECTORY):
            count = min(FILES_IN_DIRECTORY, files - at)
            names = (b"%08d.tar" % n for n in range(at, at + count))
            rows = zip(names, repeat(0), repeat(settings.file_bytes), *[repeat(0)] * 3)
            yield ScannedDirectory(b"%06d" % at, 1, Columns(rows), [], 0)

    return [
        sum(sum(one.sizes) for one in part.directories)
        for part in parts_of(directories(), PartLimits())
    ]


@cache
def traced() -> Requests:
    """Does two small plans with the real code, and counts the requests, without those of data and
    index shards."""
    objects = FaultyObjects(MemoryObjects())
    store = create_store(objects)
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "source")
        for number in range(40):
            (source / f"{number:02}").mkdir(parents=True)
            for file in "abc":
                (source / f"{number:02}" / file).write_bytes(b"%d" % number + file.encode())
        options = PushOptions("", "", 0, Path(directory, "machine"), workers=0)

        def planned(name: str) -> int:
            limits = PartLimits(files=4)
            return make_plan(store, name, source, "r", name, options, limits=limits).plan.parts

        parts = planned("in-a-row")
        objects.forget()
        do_parts(store, "in-a-row", range(parts), options, lambda _, __: None)
        in_a_row = round(len(_own(objects.calls)) / parts)
        for number in range(planned("alone")):
            objects.forget()
            do_part(store, "alone", number, options)
        own = _own(objects.calls)
        before = next(n for n, call in enumerate(own) if call.operation == "list")
        objects.forget()
        finish_plan(store, "alone", options)
    return Requests(before + 1, len(own) - before - 1, in_a_row, len(objects.calls) / parts)


def _own(calls: Sequence[Call]) -> list[Call]:
    return [
        call
        for call in calls
        if not call.key.startswith("packs/")
        and not (call.operation == "get" and call.key.startswith("index/"))
    ]


def simulate(settings: Settings) -> Figures:
    """Runs a push with these settings."""
    requests = traced()
    sizes = part_sizes(settings)
    push = Push(settings, requests, sizes)
    parts_s = push.run()
    speed = min(settings.worker_bytes_per_s, _upload_speed(settings))
    alone_s = (requests.before + requests.after) * settings.latency_s + _last_pack_s(settings)
    fixed_s = requests.in_a_row * settings.latency_s if settings.tasks else alone_s
    ideal_s = (sum(sizes) / speed + len(sizes) * fixed_s) / settings.workers
    scan_s = settings.dataset_bytes / settings.file_bytes / LISTED * settings.latency_s
    return Figures(
        workers=settings.workers,
        parts=len(sizes),
        plan_s=max(scan_s, len(sizes) / PUTS_MAX * settings.latency_s),
        parts_s=parts_s,
        finish_s=len(sizes) * requests.finish / REQUESTS_MAX * settings.latency_s,
        ideal_s=ideal_s,
        shards_share=push.shards_s / (parts_s * settings.workers),
        shard_gets=push.shard_gets,
        list_gets=push.list_gets,
        killed=push.killed,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the figures of one push."""
    parser = argparse.ArgumentParser(prog="./run loadtest simulate-push", description=__doc__)
    parser.add_argument("--workers", type=parse_count, default=100)
    parser.add_argument("--dataset", type=parse_size, default=200 * 10**12, metavar="SIZE")
    parser.add_argument("--file-size", type=parse_size, default=10**8, metavar="SIZE")
    parser.add_argument("--worker-speed", type=parse_size, default=4 * 10**8, metavar="BYTES_PER_S")
    parser.add_argument("--prefixes", type=parse_count, default=256)
    parser.add_argument("--tasks", type=int, default=1, help="of an array, for each worker; or 0")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    found = simulate(
        Settings(
            workers=options.workers,
            dataset_bytes=options.dataset,
            file_bytes=options.file_size,
            worker_bytes_per_s=options.worker_speed,
            prefixes=options.prefixes,
            tasks=options.tasks,
        )
    )
    figures = {**asdict(found), "efficiency": found.efficiency}
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:14} {value:,.6g}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
