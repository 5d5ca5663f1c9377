"""Imports of Git commits: the same files, what is kept and read, and hostile repositories."""

from __future__ import annotations

import base64
import fcntl
import itertools
import os
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from lodefs.chunkstore.errors import (
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    TooLarge,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.foreign import git as git_format
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.foreign.git_url import GitUrl
from lodefs.chunkstore.format.foreign.lfs import Pointer
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.push.changes.change import Put as PutChange
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.git import git_process, lfs_client
from lodefs.chunkstore.push.git.git_process import GitLimits
from lodefs.chunkstore.push.git.git_repository import GitAccess, GitRepository
from lodefs.chunkstore.push.git.import_git import GitResult, GitSource, import_git
from lodefs.chunkstore.repo.refs import TAGS
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.branches import Branches
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.git_repositories import (
    EXECUTABLE,
    LINK,
    MODULE,
    PASSWORD,
    USER,
    Put,
    Tree,
    git,
    git_server,
    make_repository,
    pointer,
)

LFS = b"*.bin filter=lfs diff=lfs merge=lfs -text\n"
LARGE = Random(1).randbytes(100_000)


class World(Branches):
    """A store, and Git repositories of which commits are imported into its repository r."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.access = GitAccess(base / "git")

    def have_objects(self, *contents: bytes, repo: str = "r") -> None:
        """Stores objects as the LFS server does."""
        changes = [PutChange(lfs.object_path(sha256(one).hexdigest()), one) for one in contents]
        commit_changes(self.store, repo, lfs.OBJECTS, changes, self.options())

    def run(self, url: str | Path, rev: str = "main", **source: object) -> GitResult:
        options = self.options(author="", message="")
        given = GitSource(str(url), rev, **source)  # type: ignore[arg-type]
        return import_git(self.store, given, self.access, "r", "main", options)

    def contents(self, commit: str) -> dict[str, bytes]:
        return {path.decode(): one for path, one in self.files(commit).items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def test_a_commit_of_git(world: World, tmp_path: Path) -> None:
    """A commit has the modes, symlinks and texts of Git; a second import reads only what changed,
    and Git's ids find both."""
    first, second = make_repository(
        tmp_path / "r.git",
        [
            {"a/b": b"1", "run": Put(b"#!", EXECUTABLE), "l": Put(b"../../x", LINK), "old/x": b""},
            {"a/b": b"2", "new": b"n", "old/x": None},
        ],
    )
    one = world.run(tmp_path / "r.git", first)
    seen = in_commit(world.store, "r", one.commit)
    assert seen[b"run"].executable and seen[b"l"].content == b"../../x"
    assert (one.git_commit, one.files_read, one.kept_files) == (first, 3, 0)
    commit = world.head()
    assert (commit.author, commit.message) == ("Ann <ann@example.com>", "commit 1\n\nwith ü")
    assert dict(commit.metadata)[git_format.COMMIT] == first

    two = world.run(tmp_path / "r.git")
    assert (two.files_read, two.kept_files) == (2, 2)
    assert world.contents(two.commit) == {"a/b": b"2", "run": b"#!", "new": b"n"}
    assert b"old" not in in_commit(world.store, "r", two.commit)
    assert world.run(tmp_path / "r.git").unchanged
    for sha, result in ((first, one), (second, two)):
        for length in (7, 40):
            assert world.store.resolve("r", f"git:{sha[:length]}").hex() == result.commit
    assert world.store.resolve("r", f"git:{second}~1").hex() == one.commit
    assert world.contents(world.run(tmp_path / "r.git", first).commit)["a/b"] == b"1"
    world.assert_sound()


def test_ids_that_name_nothing(world: World, tmp_path: Path) -> None:
    """An id that was not imported is named with the command that imports it; one that several
    commits begin with is refused."""
    [sha] = make_repository(tmp_path / "r.git", [{"a": b"1"}])
    result = world.run(tmp_path / "r.git")
    with pytest.raises(NotFound, match="import-git URL@abcdef1 r"):
        world.store.resolve("r", "git:abcdef1")
    at = bytes.fromhex(result.commit)
    other = sha[:-1] + ("0" if sha[-1] != "0" else "1")
    refs = world.store.refs("r")
    refs.advance(TAGS, git_format.tag_of(other), at, expected_sequence=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="several"):
        world.store.resolve("r", f"git:{sha[:10]}")


def test_pointers_become_files(world: World, tmp_path: Path) -> None:
    """A pointer becomes the object's file with its mode, and no byte of it is sent; one that no
    attribute gives to Git LFS stays a file of Git; objects may be those of another repository."""
    make_repository(
        tmp_path / "r.git",
        [
            {
                ".gitattributes": LFS,
                "d/large.bin": Put(pointer(LARGE), EXECUTABLE),
                "empty.bin": b"",
                "not.bin": b"no pointer",
                "kept.txt": pointer(LARGE),
            }
        ],
    )
    world.have_objects(LARGE, repo="other")
    result = world.run(tmp_path / "r.git", lfs_repos=["r", "other"])
    assert result.lfs_files == 1 and result.new_bytes < 1000
    seen = in_commit(world.store, "r", result.commit)
    assert seen[b"d/large.bin"].content == LARGE and seen[b"d/large.bin"].executable
    assert seen[b"kept.txt"].content == pointer(LARGE) and seen[b"not.bin"].content == b"no pointer"


def test_objects_that_only_an_import_names(world: World, tmp_path: Path) -> None:
    """gc keeps what a pointer in an import names, also after the branch of objects was deleted, and
    deletes the other objects."""
    make_repository(tmp_path / "r.git", [{".gitattributes": LFS, "a.bin": pointer(LARGE)}])
    other = Random(7).randbytes(50_000)
    world.have_objects(LARGE)
    world.have_objects(other)
    result = world.run(tmp_path / "r.git")
    refs = world.store.refs("r")
    entry = refs.read("branches", lfs.OBJECTS)
    refs.advance("branches", lfs.OBJECTS, None, expected_sequence=entry.sequence)
    for days in (0, 40, 80):
        collect(world.store, CollectOptions(clock=lambda: time.time() + days * 86400))  # noqa: B023
    fresh = open_store(world.objects)
    assert in_commit(fresh, "r", result.commit)[b"a.bin"].content == LARGE
    left = sum(one.size_bytes for one in world.objects.list("packs/"))
    assert left < len(LARGE) + len(other)
    world.assert_sound()


def test_pointers_without_an_object(world: World, tmp_path: Path) -> None:
    """A pointer whose object is nowhere, or has another size, is named with path and commit, and
    nothing is committed; when the object is there, the import succeeds."""
    wrong = pointer(LARGE).replace(b"size 100000", b"size 99999")
    good, bad = make_repository(
        tmp_path / "r.git",
        [{".gitattributes": LFS, "d/ü.bin": pointer(LARGE)}, {"d/ü.bin": wrong}],
    )
    oid = sha256(LARGE).hexdigest()
    with pytest.raises(NotFound, match=rf"d/ü.bin \({oid}\) in .*@{good[:12]}.*git lfs push"):
        world.run(tmp_path / "r.git", good)
    with pytest.raises(NotFound):
        world.store.resolve("r", "main")
    world.have_objects(LARGE)
    assert world.run(tmp_path / "r.git", good).lfs_files == 1
    with pytest.raises(InvalidInput, match=r"d/ü.bin .* points to 99,999 bytes.*100,000"):
        world.run(tmp_path / "r.git", bad)


def test_objects_of_the_git_server(world: World, tmp_path: Path) -> None:
    """Objects that the store lacks come from the LFS server of Git, if that is asked for: each one
    once, checked, with the credentials of the file; wrong bytes, other lengths, and URLs that lead
    to files are refused, and nothing is committed."""
    small = b"small object"
    tree = {".gitattributes": LFS, "a.bin": pointer(LARGE), "b.bin": pointer(small)}
    make_repository(tmp_path / "r.git", [{**tree, "c/a.bin": Put(pointer(LARGE), EXECUTABLE)}])
    large_id, small_id = sha256(LARGE).hexdigest(), sha256(small).hexdigest()
    with git_server(tmp_path) as server:
        url = server.url("r.git")
        with pytest.raises(NotFound, match=f"does not give {large_id}: not here"):
            world.run(url, fetch_lfs=True)
        server.objects[large_id] = LARGE
        for wrong in (b"", b"Small object", small + b"!"):
            server.objects[small_id] = wrong
            with pytest.raises(Corrupt, match="other bytes"):
                world.run(url, fetch_lfs=True)
        server.objects[small_id] = small
        for href in ("file:///etc/passwd#", "ftp://127.0.0.1/", "http://a:b@127.0.0.1/"):
            server.state["href"] = href
            with pytest.raises(Denied, match="not followed"):
                world.run(url, fetch_lfs=True)
        del server.state["href"]
        with pytest.raises(NotFound):
            world.store.resolve("r", "main")

        world.have_objects(small)
        asked = len(server.asked)
        secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        file = tmp_path / "credentials"
        file.write_text(f"http://{USER}:{PASSWORD}@127.0.0.1:{server.port}\n")
        world.access = replace(world.access, credentials_file=file)
        server.state["lfs_password"] = f"Basic {secret}"
        result = world.run(url, fetch_lfs=True)
        assert (result.lfs_files, result.lfs_fetched_bytes) == (1, len(LARGE))
        assert sum(one.startswith("/lfs-objects") for one in server.asked[asked:]) == 1
    seen = in_commit(world.store, "r", result.commit)
    assert seen[b"a.bin"].content == seen[b"c/a.bin"].content == LARGE
    assert seen[b"c/a.bin"].executable and seen[b"b.bin"].content == small
    world.assert_sound()


def test_a_password_may_have_any_bytes(world: World, tmp_path: Path) -> None:
    """It comes from the file as it stands there, and a LFS server gets it so."""
    file = tmp_path / "credentials"
    file.write_text("https://a:b%FFc@h\n")
    file.chmod(0o600)
    repository = GitRepository("https://h/r", replace(world.access, credentials_file=file))
    repository.directory.mkdir(parents=True)
    assert repository.credentials("https://h/r") == ("a", os.fsdecode(b"b\xffc"))


def test_a_server_of_objects_that_drips(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that comes byte by byte ends with the time of the import, not with its last one."""
    done = threading.Event()

    class Drip(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"x")
            done.wait(60)

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Drip)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{httpd.server_port}/r"
    repository = GitRepository(url, world.access)
    repository.directory.mkdir(parents=True)
    now_s = itertools.chain([0.0, 0.0], itertools.repeat(1000.0))
    monkeypatch.setattr(lfs_client, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    monkeypatch.setattr(lfs_client, "TIMEOUT_S", 5.0)
    server = lfs_client.LfsServer(repository, limit_s=100)
    try:
        with (
            pytest.raises(DeadlineExceeded, match="takes too long"),
            server.fetched(Pointer("0" * 64, 100), lfs.Action(url)),
        ):
            pass
    finally:
        done.set()
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def test_archive_attributes(world: World, tmp_path: Path) -> None:
    """What attributes exclude from archives is left out; new attributes count for old files."""
    make_repository(
        tmp_path / "r.git",
        [
            {
                "ci/.gitattributes": b"secret export-ignore\n",
                ".gitattributes": b"docs/ export-ignore\n*.tmp export-ignore\n",
                "docs/deep/x": b"",
                "ci/secret": b"",
                "ci/y": b"",
                "z.tmp": b"",
                "keep": b"",
            },
            {".gitattributes": b"keep export-ignore\n"},
        ],
    )
    result = world.run(tmp_path / "r.git")
    first = git(tmp_path / "r.git", "rev-parse", "main~1")
    assert set(world.contents(result.commit)) == {
        ".gitattributes", "ci/.gitattributes", "docs/deep/x", "ci/y", "z.tmp",
    }  # fmt: skip
    older = world.run(tmp_path / "r.git", first)
    assert set(world.contents(older.commit)) == {
        ".gitattributes", "ci/.gitattributes", "ci/y", "keep",
    }  # fmt: skip


def test_files_about_which_git_says_much(world: World, tmp_path: Path) -> None:
    """Git warns about each malformed line of attributes: more than a pipe takes stops no import."""
    lines = b"".join(b"file-%d -no/attribute\n" % number for number in range(2000))
    make_repository(tmp_path / "r.git", [{".gitattributes": lines, "a": b"1"}])
    world.access = replace(world.access, limits=GitLimits(fetch_s_max=20))
    assert world.run(tmp_path / "r.git").files == 2


def test_what_git_prints_is_limited(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with too many branches costs no more memory than the limit."""
    monkeypatch.setattr(git_process, "PRINTED_BYTES_MAX", 50)
    make_repository(tmp_path / "r.git", [{"a": b"1"}])
    with pytest.raises(TooLarge, match="git ls-remote prints more than 50 bytes"):
        world.run(tmp_path / "r.git", "main")


def test_hooks_filters_and_settings_of_others_never_run(world: World, tmp_path: Path) -> None:
    """A repository whose hooks, filters, settings and attributes run programs runs none of them."""
    place, trap = tmp_path / "r.git", tmp_path / "trap"
    attributes = b"* filter=evil diff=evil ident\n*.bin filter=lfs\n"
    make_repository(place, [{".gitattributes": attributes, "a": b"$Id$\r\n", "--exec": b"x"}])
    script = tmp_path / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    script.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "pre-auto-gc", "post-index-change"):
        (place / "hooks" / hook).symlink_to(script)
    for key in (
        "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv", "core.fsmonitor",
        "core.sshCommand", "uploadpack.packObjectsHook", "core.pager", "core.gitProxy",
    ):  # fmt: skip
        git(place, "config", key, str(script))
    result = world.run(place)
    assert world.contents(result.commit)["a"] == b"$Id$\r\n"
    assert not trap.exists()


def test_refs_named_like_options(world: World, tmp_path: Path) -> None:
    """A repository may have refs whose names look like options: they are data."""
    [sha] = make_repository(tmp_path / "r.git", [{"a": b"1"}])
    for name in ("heads/--upload-pack=touch", "tags/-x", "heads/ok"):
        (tmp_path / "r.git" / "refs" / name).write_text(f"{sha}\n")
    assert world.run(tmp_path / "r.git", "ok").git_commit == sha
    with pytest.raises(NotFound, match="no branch or tag missing"):
        world.run(tmp_path / "r.git", "missing")


def test_a_branch_that_moves_meanwhile(world: World, tmp_path: Path) -> None:
    """What another writer commits during an import is not mixed into Git's files."""
    make_repository(tmp_path / "r.git", [{"a": b"1"}])
    make_repository(tmp_path / "s.git", [{"b": b"2"}])
    world.run(tmp_path / "s.git")
    moved: list[str] = []

    def overtaken(_removals: object) -> bool:
        if not moved:
            moved.append(world.change(PutChange("c", b"3")).commit)
        return True

    options = replace(world.options(), allow_removals=overtaken)
    source = GitSource(str(tmp_path / "r.git"), "main")
    with pytest.raises(Conflict, match="repeat the command"):
        import_git(world.store, source, world.access, "r", "main", options)
    assert world.store.resolve("r", "main").hex() == moved[0]
    result = import_git(world.store, source, world.access, "r", "main", options)
    assert world.contents(result.commit) == {"a": b"1"}


@pytest.mark.parametrize("at", [0, -30])
def test_a_damaged_copy_on_this_machine(world: World, tmp_path: Path, at: int) -> None:
    """What this machine has of a repository is checked, and fetched again if it is damaged."""
    first, second = make_repository(
        tmp_path / "r.git", [{"a": Random(3).randbytes(9000)}, {"b": Random(4).randbytes(9000)}]
    )
    world.run(tmp_path / "r.git", first)
    for pack in world.access.below.rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[at or len(data) // 2] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(data[:100] if not at else data)
    commits = []
    for _ in range(3):
        with suppress(LodefsError):
            commits.append(world.run(tmp_path / "r.git", second).commit)
    assert commits and len(world.files(commits[-1])) == 2
    world.assert_sound()


def test_a_git_that_was_killed(world: World, tmp_path: Path) -> None:
    """What git leaves when it is killed does not keep later imports away."""
    first, second = make_repository(tmp_path / "r.git", [{"a": b"1"}, {"a": b"2"}])
    world.run(tmp_path / "r.git", first)
    [kept] = (one for one in world.access.below.iterdir() if one.is_dir())
    for name in ("shallow.lock", f"refs/lodefs/{second}.lock", "packed-refs.lock"):
        (kept / name).touch()
    assert world.contents(world.run(tmp_path / "r.git", second).commit) == {"a": b"2"}


def test_a_git_that_outlives_its_import(world: World, tmp_path: Path) -> None:
    """While git runs, nobody else fetches, even if the process that started it was killed."""
    repository = GitRepository(str(tmp_path), world.access)
    with repository._locked() as lock:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.fileno()])
    with open(f"{repository.directory}.lock", "ab") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.communicate()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_lost_packs(world: World, tmp_path: Path) -> None:
    """If the store has lost a file that did not change since the last import, it is read again."""
    noise = Random(5).randbytes(50_000)
    first, second = make_repository(tmp_path / "r.git", [{"a": noise}, {"b": b"2"}])
    one = world.run(tmp_path / "r.git", first)
    root = world.store.commit("r", CommitId(bytes.fromhex(one.commit))).root
    [entry] = world.store.packs.read_tree(root)
    world.objects.delete(keys.pack(entry.segments[0].pack))
    two = world.run(tmp_path / "r.git", second)
    assert two.lost_packs and two.kept_files == 0
    assert world.contents(two.commit) == {"a": noise, "b": b"2"}


def test_a_repository_of_another_user(world: World, tmp_path: Path) -> None:
    """A local repository of another user, whose settings could be a trap, is refused in words that
    help."""
    make_repository(tmp_path / "r.git", [{"a": b"1"}])
    if os.geteuid() != 0:
        return  # nobody else can make such a repository
    os.chown(tmp_path / "r.git", 65534, 65534)
    with pytest.raises(Denied, match="belongs to another user"):
        world.run(tmp_path / "r.git")


def test_limits(world: World, tmp_path: Path) -> None:
    """A repository that sends more, or unpacks to more, than the limit is refused, and leaves no
    large file behind."""
    noise = Random(2).randbytes(3_000_000)
    make_repository(tmp_path / "large.git", [{"a": noise}])
    make_repository(tmp_path / "bomb.git", [{f"{n}": bytes(400_000) for n in range(9)}])
    make_repository(tmp_path / "many.git", [{f"{n}": b"" for n in range(30)}])
    limits = GitLimits(size_bytes_max=1_000_000, files_max=20)
    world.access = replace(world.access, limits=limits)
    for name in ("large", "bomb", "many"):
        with pytest.raises(TooLarge, match=r"raise the\s+limit"):
            world.run(tmp_path / f"{name}.git")
    left = [one.stat().st_size for one in world.access.below.rglob("*") if one.is_file()]
    assert max(left) < 1_000_000


@pytest.mark.parametrize(
    "tree",
    [
        {"l": Put(b"x" * 5000, LINK)},
        {"l": Put(b"a\0b", LINK)},
        {"/".join(["d" * 200] * 30): b""},
        {"n" * 300: b""},
    ],
)
def test_what_no_system_can_have(world: World, tmp_path: Path, tree: Tree) -> None:
    """Symlinks, paths and names that no directory can have are refused; nothing is committed."""
    make_repository(tmp_path / "r.git", [tree])
    with pytest.raises(InvalidInput):
        world.run(tmp_path / "r.git")
    with pytest.raises(NotFound):
        world.store.resolve("r", "main")


def test_a_long_message(world: World, tmp_path: Path) -> None:
    """A message that is longer than one of lodefs may be is cut."""
    make_repository(tmp_path / "r.git", [{"a": b"1"}])
    tree = git(tmp_path / "r.git", "rev-parse", "main^{tree}")
    (tmp_path / "text").write_text("é" * 100_000)
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    sha = git(tmp_path / "r.git", *who, "commit-tree", tree, "-F", tmp_path / "text")
    assert world.run(tmp_path / "r.git", sha).git_commit == sha
    assert world.head().message == "é" * 65536


def test_a_server(world: World, tmp_path: Path) -> None:
    """Over HTTP: a commit by its id, and then the next one; submodules by URLs relative to their
    parent; without the option they are empty directories."""
    [lib] = make_repository(tmp_path / "org/lib.git", [{"lib.txt": b"lib"}])
    modules = b'[submodule "x"]\n\tpath = deps/lib\n\turl = ../lib.git\n'
    first, second = make_repository(
        tmp_path / "org/r.git",
        [
            {"a": b"1", ".gitmodules": modules, "deps/lib": Put(lib.encode(), MODULE)},
            {"a": b"2"},
        ],
    )
    with git_server(tmp_path) as server:
        url = server.url("org/r.git")
        one = world.run(url, first)
        assert b"deps/lib" in in_commit(world.store, "r", one.commit)
        opened: list[str] = []

        def open_submodule(module: GitUrl) -> GitRepository:
            opened.append(str(module))
            return GitRepository(str(module), world.access)

        two = world.run(url, second, open_submodule=open_submodule)
        assert world.contents(two.commit)["deps/lib/lib.txt"] == b"lib"
        assert set(opened) == {server.url("org/lib.git")}
        three = world.run(url, "main", open_submodule=open_submodule)
        assert three.unchanged and three.kept_files == 3
        with pytest.raises(NotFound, match="no such commit"):
            world.run(url, "f" * 40)
        for nowhere in (server.url("org/none.git"), tmp_path / "org"):
            with pytest.raises(NotFound, match="no such Git repository"):
                world.run(nowhere)


def test_servers_that_ask_or_lead_elsewhere(world: World, tmp_path: Path) -> None:
    """A server that wants a password is told from a file, which stays as it is; without one, and
    with a wrong one, nobody is asked. Where a server leads to is not followed."""
    make_repository(tmp_path / "r.git", [{"a": b"1"}])
    with git_server(tmp_path) as server, git_server(tmp_path) as elsewhere:
        secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        server.state["password"] = f"Basic {secret}"
        url = server.url("r.git")
        with pytest.raises(Denied, match="asks for a password"):
            world.run(url)
        file = tmp_path / "it's a file"
        for password in ("wrong", PASSWORD):
            lines = f"http://{USER}:{password}@127.0.0.1:{server.port}\n"
            file.write_text(lines)
            world.access = replace(world.access, credentials_file=file)
            if password == PASSWORD:
                assert world.run(url).files == 1
            else:
                with pytest.raises(Denied, match="asks for a password") as refused:
                    world.run(url)
                assert "wrong" not in str(refused.value)
            assert file.read_text() == lines
        for target in (elsewhere.url(""), f"file://{tmp_path}", "ext::sh -c touch%20x"):
            server.state["redirect"] = target.rstrip("/")
            with pytest.raises(Denied, match="redirects, and no redirect is followed"):
                world.run(url)
        assert elsewhere.asked == []


def test_protocols_that_git_would_know(world: World, tmp_path: Path) -> None:
    """A URL is used by its own protocol alone."""
    for text in (f"ext::sh -c touch% {tmp_path}/trap", f"ext://sh -c touch% {tmp_path}/trap"):
        with pytest.raises(LodefsError):
            GitRepository(text, world.access).resolve("main")
    assert not (tmp_path / "trap").exists()
