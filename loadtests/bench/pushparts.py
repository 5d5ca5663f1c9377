"""Benchmark of a push in parts: what it costs, and what its end takes for many files."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from loadtests import corpora
from loadtests.cli import Lodefs
from loadtests.measure import Run
from loadtests.results import Result
from lodefs.chunkstore.format.commit import Large
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import Digest, PackId
from lodefs.chunkstore.format.push_plan import PartResult, PushPlan
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.journal.push_plans import begin_plan
from lodefs.chunkstore.journal.ref_write import RefWrite
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.push.changes.branch_commits import store_trees
from lodefs.chunkstore.push.changes.overlay import ChangedDirectory
from lodefs.chunkstore.push.committer import Committer
from lodefs.chunkstore.push.parts.plan import own_version
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store, open_store

ROUNDS = 3
PARTS, DIRECTORIES, FILES = 200, 49, 1000  # of a part: directories with so many files each
SIZE_BYTES = 100_000

Way = Callable[[Lodefs, Path], list[Run]]


def push_parts(scratch: Path) -> Result:
    """The wheels by four ways in turns, and the end of a large plan."""
    result = Result("push-parts")
    source = corpora.wheels()
    size_bytes = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    ways: dict[str, Way] = {
        "push": _plain,
        "parts": _by_one_task,
        "one process": _with("processes:1"),
        "two processes": _with("processes:2"),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    stored: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            lodefs = new_store(scratch)
            runs = way(lodefs, source)
            taken[name].append(sum(one.seconds for one in runs))
            cpu[name].append(sum(one.cpu_s for one in runs))
            stored[name] = _size_of(scratch / "store" / "packs")
            shutil.rmtree(scratch / "store")
            shutil.rmtree(lodefs.home)
    speeds = {name: size_bytes / 1e6 / statistics.median(some) for name, some in taken.items()}
    for name, speed in speeds.items():
        result.add(name, speed, "MB/s")
        result.add(f"{name}, processor time", statistics.median(cpu[name]), "s")
    result.ratio("parts", speeds["parts"], {"push": speeds["push"]}, at_least=0.9)
    one = {"one process": speeds["one process"]}
    result.ratio("two processes", speeds["two processes"], one, at_least=1.7)
    for name in ("parts", "two processes"):
        share = stored[name] / stored["push"]
        result.add(f"stored bytes, {name} / push", share, "x", at_most=1.03)
    _finish(result, scratch)
    return result


def _plain(lodefs: Lodefs, source: Path) -> list[Run]:
    return [lodefs.run("push", source, "bench", "--workers", "0")]


def _by_one_task(lodefs: Lodefs, source: Path) -> list[Run]:
    return [
        lodefs.run("plan", "create", "p", source, "bench"),
        lodefs.run("plan", "part", "p", "1/1", "--workers", "0"),
        lodefs.run("plan", "finish", "p"),
    ]


def _with(executor: str) -> Way:
    return lambda lodefs, source: [lodefs.run("push", source, "bench", "--executor", executor)]


def _finish(result: Result, scratch: Path) -> None:
    """The end of a plan whose results are made up: trees of files that nobody has stored."""
    lodefs = new_store(scratch)
    store = open_store(DirectoryObjects(str(scratch / "store")))
    documents, write = begin_plan(store, "p")
    files = PARTS * DIRECTORIES * FILES + 2 * PARTS * FILES
    for number in range(PARTS):
        root = _stored(store, write, number, scratch / "index")
        documents.put_result(_result(number, write, root, files // PARTS))
    documents.put_plan(
        PushPlan(
            "p", own_version(), b"/nowhere", "bench", "main", None, "", "", (), PARTS, files,
            1 + PARTS * (1 + DIRECTORIES), files * SIZE_BYTES,
        )
    )  # fmt: skip
    run = lodefs.run("plan", "finish", "p", watch_memory=True)
    result.add("files of the plan", files, "")
    result.add("finish", run.seconds, "s", at_most=60)
    result.add("memory of finish", run.memory_bytes / 2**20, "MiB", at_most=500)


def _stored(store: Store, write: RefWrite, number: int, index_dir: Path) -> TreeEntry:
    """Stores the trees of a part. It begins within a directory, and ends within the next one."""
    options = PushOptions("", "", 0, index_dir, workers=0)
    session = PushSession(store, RefName("bench", BRANCHES, "main"), options, None, write)
    first = _directory(b"b", number)
    for one in range(DIRECTORIES):
        first.children[b"x%03d" % one] = _directory(b"c", number * DIRECTORIES + one)
    below = {b"%06d" % number: first, b"%06d" % (number + 1): _directory(b"a", number)}
    with session.once():
        root = store_trees(session, ChangedDirectory(None, dict(below)), store.packs)
        Committer(session).hand_over(root)
    return root


def _directory(prefix: bytes, number: int) -> ChangedDirectory:
    seed = blake3(b"%s %d" % (prefix, number)).digest(length=32 * FILES)
    pack = PackId(seed[:32])
    return ChangedDirectory(
        None,
        {
            (name := b"%s%05d" % (prefix, n)): TreeEntry(
                name,
                Kind.FILE,
                size_bytes=SIZE_BYTES,
                digest=Digest(seed[32 * n : 32 * (n + 1)]),
                segments=(Segment(pack, n, 1, SIZE_BYTES),),
            )
            for n in range(FILES)
        },
    )


def _result(number: int, write: RefWrite, root: TreeEntry, files: int) -> PartResult:
    size_bytes = files * SIZE_BYTES
    return PartResult(
        number, write.begin().number, -1, root, files, 0, size_bytes, Large(0, 0), files,
        size_bytes, 0, [], 0,
    )  # fmt: skip


def new_store(scratch: Path) -> Lodefs:
    """Makes a store, and a home without memory of earlier pushes."""
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    return lodefs


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
