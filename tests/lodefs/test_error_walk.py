"""A walk through the errors of the command line: each is one line that names its subject, in words
and not in what the program has inside."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.chunkstore import errors
from lodefs.chunkstore.errors import Denied, LodefsError, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.chunkstore.types import Buffer
from lodefs.cli.exit_codes import CODES, code_of
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import MemorySession

# What is inside: keys and whole ids, classes of Python and how it shows their objects
INSIDE = re.compile(
    r"\b(?:packs|repos|index|journal|composites|purges)/|[0-9a-f]{64}|\b[A-Z]\w+\(| at 0x|"
    r"(?<![\w^/])b['\"]|(?<!-)\bNone\b(?!-)|Errno|Traceback|fault of lodefs"
)
NOT_WALKED = {
    errors.Changed,  # is tried again where it is raised
    errors.SourceChanged,  # needs another process that writes meanwhile
    errors.Purged,  # tests/lodefs/commands/test_purge.py
    errors.InUse,  # needs another process that runs
}


def spoil(objects: MemoryObjects, part: str, data: Callable[[bytes], bytes]) -> None:
    """Changes the objects whose keys have this part; what is empty then goes."""
    for key in [one for one in objects.objects if part in one]:
        objects.objects[key] = data(objects.objects[key])
        if not objects.objects[key]:
            del objects.objects[key]


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: bytes(byte ^ (n == at % len(data)) for n, byte in enumerate(data))


def expire(objects: MemoryObjects, store: Store) -> None:
    first = store.resolve("v/cats", "v1")
    store.put_expired("v/cats", first, 1)
    del objects.objects[keys.commit("v/cats", first)]


class _NoConditions(MemoryObjects):
    """A store that overwrites what is to be written only if absent."""

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        return super().put(key, data)


def lost(data: bytes) -> bytes:
    return b""


State = Callable[[MemoryObjects, Store], ObjectStore | None]
STATES: dict[str, State] = {
    "": lambda _objects, _store: None,
    "packs are lost": lambda objects, _: spoil(objects, "packs/", lost),
    "packs are damaged": lambda objects, _: spoil(objects, "packs/", flipped(0)),
    "indexes are damaged": lambda objects, _: spoil(objects, "packs/", flipped(-70)),
    "commits are lost": lambda objects, _: spoil(objects, "/commits/", lost),
    "commits are damaged": lambda objects, _: spoil(objects, "/commits/", lambda _: b"x"),
    "commits are huge": lambda objects, _: spoil(objects, "/commits/", lambda _: bytes(2**21)),
    "commits are newer": lambda objects, _: spoil(
        objects, "store.json", lambda _: seal("store", 9, {})
    ),
    "refs are damaged": lambda objects, _: spoil(objects, "/refs/", lambda _: b"x"),
    "there is no store": lambda objects, _: spoil(objects, "", lost),
    "a commit has expired": expire,
    "it is away": lambda objects, _: failing(objects, Unavailable("s3://b: 503")),
    "it denies": lambda objects, _: failing(objects, Denied("s3://b: 403")),
    "it has no conditions": lambda _objects, _store: _NoConditions(),
    "others push": lambda objects, _: failing(
        objects, errors.AlreadyExists("x"), "put", "repos/v/cats/refs/branches"
    ),
}


def failing(
    objects: MemoryObjects, error: LodefsError, operation: str | None = None, prefix: str = ""
) -> ObjectStore:
    faulty = FaultyObjects(objects)
    faulty.add(fail(error), operation, prefix)
    return faulty


# The state of the store; commands; the error; what each message names
WALK: list[tuple[str, str, type[LodefsError], str]] = [
    ("", "nope", errors.InvalidInput, "nope"),
    ("", "log --nope v/cats", errors.InvalidInput, "--nope"),
    ("", "log -n 0 v/cats", errors.InvalidInput, "-n"),
    ("", "log", errors.InvalidInput, "REPO"),
    ("", "ls v/nope | diff v/cats v/nope | du v/nope | verify v/nope", errors.NotFound, "v/nope"),
    ("", "tag v/nope v2 | retain v/nope --keep-last 1 | fork v/nope v/x",
     errors.NotFound, "v/nope"),
    ("", "ls v/cats@nope | log v/cats@nope | merge v/cats@nope main", errors.NotFound, "nope"),
    ("", "revert v/cats nope | branch v/cats@nope x | merge v/cats@v1 nope",
     errors.NotFound, "nope"),
    ("", "branch --delete v/cats nope | tag --delete v/cats nope", errors.NotFound, "nope"),
    ("", "reflog v/cats@nope | branch --move v/cats@nope x", errors.NotFound, "nope"),
    ("", "ls v/cats:nope | cat v/cats:nope | blame v/cats:nope",
     errors.NotFound, "v/cats@main:nope"),
    ("", "cp v/cats:nope v/cats:b | mv v/cats:nope v/cats:b", errors.NotFound, "v/cats@main:nope"),
    ("", "ls v/cats@main~9 | diff v/cats@main~9 v/cats", errors.NotFound, "v/cats@main~9"),
    ("", "revert v/cats@v1 main", errors.NotFound, "v1"),
    ("", "push http://h/\udcff v/x | push s3://b/\udcff v/cats:x | plan create p gs://b/\udcff v/x",
     errors.InvalidInput, "xff is not UTF-8"),
    ("", "bundle unpack ./nope | push ./nope v/cats", errors.NotFound, "nope"),
    ("", "ls v/cats:a/x", errors.NotADirectory, "v/cats@main:a"),
    ("", "ls v/cats@~1 | ls v/cats@a^b | push d v/cats@a/b",
     errors.InvalidInput, "is not a revision"),
    ("", "ls v/cats:../x | cat v/cats:../x", errors.InvalidInput, "../x"),
    ("", "ls 'v cats' | push d 'v cats'", errors.InvalidInput, "v cats"),
    ("", "cat v/cats:dir | cat v/cats", errors.InvalidInput, "v/cats@main"),
    ("", "branch v/cats v1 | push d v/cats@v1", errors.InvalidInput, "v1"),
    ("", "branch v/cats HEAD | branch v/cats x~1", errors.InvalidInput, "name"),
    ("", "rm v/cats | rm v/cats@v1", errors.InvalidInput, "v/cats"),
    ("", "push d v/cats --meta x | push d v/cats --meta author=x", errors.InvalidInput, "metadata"),
    ("", "push d/a v/cats | push d v/cats --private x", errors.InvalidInput, ""),
    ("", "pull v/cats d", errors.InvalidInput, "d is not empty"),
    ("", "init | init s3//b", errors.InvalidInput, ""),
    ("", "run v/cats | scrub --share 5/2 | gc --min-used 3", errors.InvalidInput, ""),
    ("", "tag v/cats v1", errors.AlreadyExists, "v1"),
    ("", "undelete v/cats@main", errors.AlreadyExists, "main"),
    ("", "fork v/cats v/cats | init s3://memory", errors.AlreadyExists, ""),
    ("", "push empty v/cats", errors.TooManyRemovals, "v/cats@main"),
    ("", "merge v/cats@dev main | revert v/cats main~1", errors.Diverged, "changed a"),
    ("", "push d v/cats:new -m x", errors.NoSpace, "v/cats"),
    ("packs are lost", "ls v/cats | cat v/cats:a | revert v/cats main", errors.Corrupt, "v/cats"),
    ("packs are lost", "diff v/cats@v1 v/cats | blame v/cats:a", errors.Corrupt, "v/cats"),
    ("packs are damaged", "ls v/cats | diff -p v/cats@v1 v/cats", errors.Corrupt, "v/cats"),
    ("packs are damaged", "pull v/cats out | blame v/cats:a", errors.Corrupt, "lodefs repair"),
    ("indexes are damaged", "ls v/cats | diff v/cats@v1 v/cats", errors.Corrupt, "lodefs repair"),
    ("commits are lost", "ls v/cats | log v/cats | push d v/cats", errors.NotFound, "v/cats"),
    ("commits are damaged", "ls v/cats | log v/cats | push d v/cats", errors.Corrupt, "of v/cats"),
    ("commits are damaged", "tag v/cats x | revert v/cats main", errors.Corrupt, "lodefs repair"),
    ("commits are huge", "ls v/cats", errors.TooLarge, "of v/cats"),
    ("commits are newer", "ls v/cats", errors.UnknownFormat, "a newer lodefs"),
    ("refs are damaged", "ls v/cats | push d v/cats | branch v/cats", errors.Corrupt, "branch "),
    ("refs are damaged", "tag v/cats | log v/cats@v1", errors.Corrupt, "v/cats"),
    ("there is no store", "ls v/cats | push d v/cats", errors.NotFound, "lodefs init"),
    ("a commit has expired", "ls v/cats@main~1 | revert v/cats main", errors.Expired, "v/cats"),
    ("it is away", "ls v/cats | push d v/cats | gc", errors.Unavailable, "s3://b"),
    ("it denies", "ls v/cats | push d v/cats | gc", errors.Denied, "s3://b"),
    ("it has no conditions", "init s3://b", errors.Unsupported, "memory:"),
    ("others push", "push d v/cats:x", errors.Conflict, "main"),
]  # fmt: skip


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryObjects:
    """A repository with two commits, a tag, a branch that went another way, and a quota; and
    directories to push."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_text("a")
    (tmp_path / "empty").mkdir()
    store = create_store(objects := MemoryObjects())
    made = Handmade(store)
    first = made.commit("v/cats", {b"a": b"1", b"dir/b": b"2", b"c": b"3"})
    refs = store.refs("v/cats")
    refs.advance("tags", "v1", first, expected_sequence=None)
    refs.advance("branches", "dev", first, expected_sequence=None)
    made.commit("v/cats", {b"a": b"other", b"dir/b": b"2", b"c": b"3"}, branch="dev")
    made.commit("v/cats", {b"a": b"11", b"dir/b": b"2", b"c": b"3"})
    return objects


@pytest.mark.parametrize(
    ("state", "commands", "kind", "subject"), WALK, ids=[f"{one[0]}: {one[1]}" for one in WALK]
)
def test_errors_are_one_line_that_names_its_subject(
    state: str,
    commands: str,
    kind: type[LodefsError],
    subject: str,
    objects: MemoryObjects,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The exit code is that of the error, and nothing of what is inside is shown."""
    if kind is errors.NoSpace:
        quota = MemorySession({"LODEFS_STORE": "s3://memory"}, objects)
        assert run(["quota", "v/cats", "--size-bytes-max", "3"], quota) == 0
    changed = STATES[state](objects, create_or_open(objects))
    environment = {"LODEFS_STORE": "s3://memory", "HOME": str(tmp_path / "home")}
    for command in commands.split(" | "):
        capfd.readouterr()
        code = run(shlex.split(command), MemorySession(environment, changed or objects))
        told = capfd.readouterr().err
        assert (code, told.count("\n")) == (code_of(kind("")), 1), told
        assert told.startswith("lodefs: error: "), told
        assert subject in told
        assert not INSIDE.search(told), told


def create_or_open(objects: MemoryObjects) -> Store:
    return MemorySession({"LODEFS_STORE": "s3://memory"}, objects).store


def test_the_walk_comes_by_every_class() -> None:
    """Each class of errors with an exit code of its own, but for those that are named here."""
    walked = {kind for _, _, kind, _ in WALK}
    assert {kind for kind, _ in CODES} - walked == NOT_WALKED
