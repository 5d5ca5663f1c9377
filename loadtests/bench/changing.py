"""``./run bench changes``: one byte changed of 100,000 files, without the other ones: pushed, or
committed of a writable mount. ``./run bench changes-million``: the latter, of 1,000,000 files.
``./run bench changes-hostile``: empty files, and holes, in a writable mount."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import closing
from pathlib import Path

from blake3 import blake3

import lodefs as api
from loadtests.cli import Lodefs
from loadtests.measure import Run, size_of
from loadtests.results import Result
from lodefs.api.changes import CopyFrom, Put
from lodefs.settings.session import Session

FILES = 100_000
FILES_OF_MILLION, DIRECTORIES_OF_MILLION = 1_000_000, 1000
FILES_IN_DIRECTORY = 100
ROUNDS = 5
SECONDS_MAX = 1.0
COMMIT_SECONDS_MAX = 2.0
SENT_KIB_MAX = 1024
NAMES, NAME_BYTES_MAX = (20_000, 120_000), 2048
HOLE_BYTES, ZEROS, HASHINGS_MAX = 8 << 30, bytes(8 << 20), 6.0


def one_of_many(scratch: Path) -> Result:
    """Time and bytes sent, of files in 1,000 directories and of files in one; by a machine that
    has pushed them, and by one that knows nothing of the store. Beside it: a push of all."""
    result = Result("changes")
    for layout, in_directory in (
        ("1,000 directories", FILES_IN_DIRECTORY),
        ("one directory", FILES),
    ):
        place = scratch / layout.split()[0].replace(",", "")
        source = place / "source"
        _fill(source, in_directory)
        lodefs = Lodefs(str(place / "store"), place / "home", {})
        lodefs.run("init", place / "store")
        lodefs.run("push", source, "bench")
        again = statistics.median(lodefs.run("push", source, "bench").seconds for _ in range(3))
        for who, home in (("same machine", place / "home"), ("fresh machine", None)):
            seconds, sent = _changed(lodefs, place, home)
            what = f"{layout}, {who}"
            result.add(f"{what}: time", seconds, "s", at_most=SECONDS_MAX)
            result.add(f"{what}: sent", sent / 1024, "KiB", at_most=SENT_KIB_MAX)
            result.add(f"{what}: a push of all, unchanged, takes", again / seconds, "x")
        changed = sorted((source).rglob("*.txt"))[FILES // 3].relative_to(source)
        _add_commits(result, lodefs, place, f"{layout}, commit of a writable mount", changed)
    result.notes.append("`lodefs push FILE REPO:PATH`, the start of Python included")
    result.notes.append("`lodefs commit DIR`, until DIR shows the new commit")
    return result


def one_of_a_million(scratch: Path) -> Result:
    """A commit of a writable mount of 1,000,000 files in 1,000 directories, of which one file was
    changed. The directories are copies of one, in the store, with one file more of their own."""
    result = Result("changes-million")
    source = scratch / "source"
    source.mkdir()
    for number in range(FILES_OF_MILLION // DIRECTORIES_OF_MILLION - 1):
        (source / f"{number:06}.txt").write_text(f"sample {number}\n" * 8)
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    lodefs.run("push", source, "part")
    names = [f"{number:04}" for number in range(DIRECTORIES_OF_MILLION)]
    copies = [CopyFrom("part", name) for name in names]
    own = [Put(f"{name}/own.txt", name.encode()) for name in names]
    with closing(Session(lodefs.environment())) as session:
        api.commit_changes("bench", [*copies, *own], session=session)
    path = Path(names[DIRECTORIES_OF_MILLION // 3]) / "000500.txt"
    _add_commits(result, lodefs, scratch, "commit of a writable mount", path)
    result.notes.append("`lodefs commit DIR`, until DIR shows the new commit")
    return result


def hostile(scratch: Path) -> Result:
    """What a commit of a writable mount costs its node if a user has filled it with what costs him
    nothing: empty files, and a file with one hole."""
    result = Result("changes-hostile")
    source = scratch / "source"
    source.mkdir()
    (source / "one").write_text("one\n")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    lodefs.run("push", source, "bench")
    with lodefs.proxy(scratch / "proxy") as proxy:
        few, many = (_committed_names(lodefs, scratch, proxy.url, names) for names in NAMES)
        each = (many.memory_bytes - few.memory_bytes) / (NAMES[1] - NAMES[0])
        result.add("memory for each empty file", each, "B", at_most=NAME_BYTES_MAX)
        result.add("processor time for each empty file", many.cpu_s / NAMES[1] * 1e6, "us")
        root = _mounted(lodefs, scratch, proxy.url, "hole")
        with open(root / "hole", "wb") as file:
            file.truncate(HOLE_BYTES)
        done = lodefs.run("commit", root)
        lodefs.run("unmount", root)
    began_s = time.process_time()
    for _ in range(HOLE_BYTES // len(ZEROS)):
        blake3(ZEROS)
    hashing_s = time.process_time() - began_s
    result.add("a hole: processor time against BLAKE3 of its zeros", done.cpu_s / hashing_s, "x",
               at_most=HASHINGS_MAX)  # fmt: skip
    result.notes.append(f"commits of {NAMES[0]:,} and {NAMES[1]:,} files; {HOLE_BYTES >> 30} GiB")
    return result


def _committed_names(lodefs: Lodefs, place: Path, proxy: str, names: int) -> Run:
    root = _mounted(lodefs, place, proxy, f"names-{names}")
    for number in range(names):
        if number % 1000 == 0:
            below = root / f"{names}-{number:07}"
            below.mkdir()
        (below / f"{number:07}.txt").touch()
    done = lodefs.run("commit", root, watch_memory=True)
    lodefs.run("unmount", root)
    return done


def _mounted(lodefs: Lodefs, place: Path, proxy: str, name: str) -> Path:
    root = place / name
    root.mkdir()
    own = "--upper", place / f"upper-{name}", "--proxy", proxy
    lodefs.run("mount", "bench", root, "--writable", *own)
    return root


def _add_commits(result: Result, lodefs: Lodefs, place: Path, what: str, path: Path) -> None:
    seconds, cpu_s, sent, read = _committed(lodefs, place, path)
    result.add(f"{what}: time", seconds, "s", at_most=COMMIT_SECONDS_MAX)
    result.add(f"{what}: processor time", cpu_s, "s", at_most=COMMIT_SECONDS_MAX)
    result.add(f"{what}: sent", sent / 1024, "KiB", at_most=SENT_KIB_MAX)
    result.add(f"{what}: files read", read, "", at_most=1)


def _fill(source: Path, in_directory: int) -> None:
    for number in range(FILES):
        path = source / f"{number // in_directory:04}" / f"{number:06}.txt"
        if number % in_directory == 0:
            path.parent.mkdir(parents=True)
        path.write_text(f"sample {number}\n" * 8)


def _changed(lodefs: Lodefs, place: Path, home: Path | None) -> tuple[float, int]:
    """The median of the seconds, and the largest number of bytes sent."""
    seconds: list[float] = []
    sent: list[int] = []
    changed = sorted((place / "source").rglob("*.txt"))[FILES // 2]
    for number in range(ROUNDS):
        machine = Lodefs(lodefs.store, home or place / f"home{number}", {})
        changed.write_text(changed.read_text()[:-1] + chr(ord("a") + number + 5 * (home is None)))
        before = size_of(place / "store")
        path = changed.relative_to(place / "source")
        seconds.append(machine.run("push", changed, f"bench:{path}").seconds)
        sent.append(size_of(place / "store") - before)
    return statistics.median(seconds), max(sent)


def _committed(lodefs: Lodefs, place: Path, path: Path) -> tuple[float, float, int, int]:
    """Commits of a writable mount in which one file was changed: the medians of the seconds and of
    the processor's, the most bytes that were sent, the most files that were read."""
    seconds: list[float] = []
    cpu_s: list[float] = []
    sent: list[int] = []
    read: list[int] = []
    root = place / "mount"
    root.mkdir()
    with lodefs.proxy(place / "proxy") as proxy:
        own = "--upper", place / "upper", "--proxy", proxy.url
        lodefs.run("mount", "bench", root, "--writable", *own)
        try:
            for number in range(ROUNDS):
                (root / path).write_text(f"changed {number}\n")
                before = size_of(place / "store")
                done = lodefs.run("commit", root, "--json")
                cpu_s.append(done.cpu_s)
                seconds.append(done.seconds)
                read.append(json.loads(done.output)["files_read"])
                sent.append(size_of(place / "store") - before)
        finally:
            lodefs.run("unmount", root, "--discard")
    return statistics.median(seconds), statistics.median(cpu_s), max(sent), max(read)
