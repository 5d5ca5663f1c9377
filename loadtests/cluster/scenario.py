"""Scenarios: TOML files that describe the reads, the failures and the targets.

loadtests/README.md describes the tables and keys. Unknown ones are refused by name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from loadtests.cluster.dataset import Group
from loadtests.cluster.figures import FIGURES
from loadtests.errors import LoadtestError
from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.config import parse_size

FOLDER = Path(__file__).parents[1] / "scenarios"
OF_A_NODE = ("kill", "restart", "join")
SUFFIXES = {"_max": "at_most", "_min": "at_least"}

Count = Annotated[int, msgspec.Meta(ge=1, le=64)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Size = int | str  # bytes, or "64MiB"


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Files(_Table, frozen=True):
    """A group of files of one size, in a folder of its own."""

    name: str
    files: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    size: Size


class Nodes(_Table, frozen=True):
    """The nodes. ``late`` of them (the last ones) are only there when an event lets them join."""

    count: Count = 8
    late: Annotated[int, msgspec.Meta(ge=0, le=63)] = 0
    membership: Literal["static", "file"] = "static"
    rate: Size = 0  # of a node's link, bytes per second and direction; 0: as fast as it goes
    latency_s: Seconds = 0
    loss: Share = 0
    serve: dict[str, Any] = {}  # settings of every node's [serve]
    serve_of: dict[str, dict[str, Any]] = {}  # more of them, by the node's number


class Origin(_Table, frozen=True):
    """S3. ``rate``: of all bodies together, bytes per second; ``connection_rate``: of each;
    ``latency_s``: of each answer."""

    rate: Size = 0
    connection_rate: Size = 0
    latency_s: Seconds = 0


class Reading(_Table, frozen=True):
    """What the clients of the nodes read.

    ``everything``: all files, on every node; ``herd``: all files, by each of ``clients``, in the
    same ``order`` or each in one of its own;
    ``shares``: each file by one node, shuffled anew for each epoch; ``shards``: the same without
    shuffling; ``ranges``: ``reads`` random ranges of ``range`` bytes on every node.
    """

    pattern: Literal["everything", "herd", "shares", "shards", "ranges"]
    groups: list[str] = []  # of files; all where none is named
    order: Literal["same", "shuffled"] = "same"  # of everything and herd
    epochs: Count = 1
    streams: Count = 4  # clients of each node
    clients: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100  # of a herd
    reads: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
    range: Size = "256KiB"
    via: Literal["proxy", "mount"] = "proxy"
    timeout_s: Seconds = 120  # of one read
    patience_s: Seconds = 0  # a read that fails is tried again for so long


class Fault(_Table, frozen=True):
    """A bad node: what its peer door does, from the beginning (see relay.Behaviour)."""

    node: int
    fault: Literal["flip", "slow", "hang"]
    below: str = "/peers/"  # paths; "/" for probes too


class Event(_Table, frozen=True):
    """An event that happens when the share ``at`` of all bytes was read.

    ``node`` -1: each of them (to join: of the late ones), one after the other, at even steps over
    the rest of the run. ``groups``: nodes that do not reach each other; none: even and odd ones.
    """

    do: Literal["kill", "restart", "join", "part", "heal", "outage", "recover"]
    at: Share
    node: int = -1
    groups: list[list[int]] = []
    outage: Literal["503", "blackhole"] = "503"


class Outage(_Table, frozen=True):
    """S3 is out for so long, while ``cached`` files are read over and over, and ``cold`` ones."""

    seconds: Seconds
    cached: list[str]
    cold: list[str]
    kind: Literal["503", "blackhole"] = "503"
    pause_s: Seconds = 0.05  # between two reads of a cached reader


class PeerHit(_Table, frozen=True):
    """One node reads a file from another's cache, in turns with curl from nginx there."""

    rounds: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3


class Scenario(_Table, frozen=True):
    """One scenario. ``compare``: what else is run, for ratios to it."""

    title: str
    dataset: list[Files]
    reading: Reading
    nodes: Nodes = Nodes()
    origin: Origin = Origin()
    faults: list[Fault] = []
    events: list[Event] = []
    outage: Outage | None = None
    peer_hit: PeerHit | None = None
    compare: Literal["", "undisturbed", "direct"] = ""
    asserts: dict[str, float] = msgspec.field(default_factory=dict, name="assert")
    seconds_max: Seconds = 600

    @property
    def groups(self) -> tuple[Group, ...]:
        """The files to make."""
        return tuple(Group(each.name, each.files, size(each.size)) for each in self.dataset)


@dataclass(frozen=True, slots=True)
class Assertion:
    """The target of one result."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The command line's changes to a scenario."""

    nodes: int | None = None
    quick: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)  # tables over those of the file


def names() -> list[str]:
    """All scenarios."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str, changes: Changes | None = None) -> Scenario:
    """The scenario of a name, or of a file if it has a slash. Raises: LoadtestError."""
    path = Path(name) if "/" in name else FOLDER / f"{name}.toml"
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise LoadtestError(f"no scenario {name}; there are: {', '.join(names())}") from None
    return parse(text, changes or Changes(), str(name))


def parse(text: str, changes: Changes, name: str = "scenario") -> Scenario:
    """Parses a scenario from TOML. Raises: LoadtestError, with the place of a mistake."""
    try:
        tables = tomllib.loads(text)
        quick = tables.pop("quick", {})
        if changes.quick:
            tables = merged(tables, quick)
        tables = merged(tables, changes.more)
        if changes.nodes is not None:
            tables = merged(tables, {"nodes": {"count": changes.nodes}})
        scenario = msgspec.convert(tables, Scenario)
        problems = problems_of(scenario)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, InvalidInput) as error:
        problems = [str(error)]
    if problems:
        raise LoadtestError(f"{name}: {'; '.join(problems)}")
    return scenario


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with the keys of ``above`` over those of ``below``; lists are replaced."""
    found = dict(below)
    for key, value in above.items():
        mine = found.get(key)
        both = isinstance(mine, dict) and isinstance(value, dict)
        found[key] = merged(mine, value) if both and mine else value
    return found


def problems_of(scenario: Scenario) -> list[str]:
    """The mistakes in a scenario as a whole."""
    count, known = scenario.nodes.count, {each.name for each in scenario.dataset}
    found = [f"assert: {name}: no such figure" for name in scenario.asserts
             if _figure(name) not in FIGURES]  # fmt: skip
    numbers = [fault.node for fault in scenario.faults]
    numbers += [event.node for event in scenario.events if event.node != -1]
    numbers += [node for event in scenario.events for group in event.groups for node in group]
    found += [f"node {number}: there are {count}" for number in numbers
              if not 0 <= number < count]  # fmt: skip
    wanted = list(scenario.reading.groups)
    if scenario.outage is not None:
        wanted += scenario.outage.cached + scenario.outage.cold
    found += [f"no files {name} in the dataset" for name in wanted if name not in known]
    if scenario.nodes.late >= count:
        found.append("nodes: late: at least one node must be there from the beginning")
    for each in (*(files.size for files in scenario.dataset), scenario.reading.range,
                 scenario.nodes.rate, scenario.origin.rate):  # fmt: skip
        size(each)
    return found


def assertions(scenario: Scenario) -> list[Assertion]:
    """The scenario's targets for its results."""
    return [
        Assertion(_figure(name), **{SUFFIXES[name[-4:]]: value})
        for name, value in scenario.asserts.items()
    ]


def expanded(scenario: Scenario) -> list[Event]:
    """The events in their order, with nodes and groups given."""
    count, late = scenario.nodes.count, scenario.nodes.late
    found = []
    for event in scenario.events:
        if event.node == -1 and event.do in OF_A_NODE:
            numbers = range(count - late if event.do == "join" else 0, count)
            step = (1 - event.at) / max(1, len(numbers))
            found += [replace(event, node=number, at=event.at + position * step)
                      for position, number in enumerate(numbers)]  # fmt: skip
        elif event.do == "part" and not event.groups:
            found.append(replace(event, groups=[list(range(odd, count, 2)) for odd in (0, 1)]))
        else:
            found.append(event)
    return sorted(found, key=lambda event: event.at)


def size(value: Size) -> int:
    """Parses a number of bytes. Raises: InvalidInput."""
    try:
        return parse_size(value)
    except InvalidInput as error:
        raise InvalidInput(f"{value!r} {error}") from None


def _figure(name: str) -> str:
    return name[:-4] if name[-4:] in SUFFIXES else ""
