"""Commands that look: ls, cat, log, diff, branch, tag, verify, pull."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.api.mounting import mount as api_mount
from lodefs.chunkstore.errors import Unsupported
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.mount.kernel import device
from tests.support.chunkstore.handmade import Files, Handmade, Link, Program
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs

OLD: Files = {b"a.txt": b"hello\n", b"dir/b": b"b" * 2000, b"link": Link(b"a.txt")}
NEW: Files = {
    b"a.txt": b"hello, world\n",
    b"dir/b": b"b" * 2000,
    b"dir/run": Program(b"#!"),
    b"link": Link(b"a.txt"),
    b"\xff\n\x1b[31m\xe2\x80\xaered": b"odd",
}
ODD = "\\xff\\n\\x1b[31m\\u202ered"


@pytest.fixture(autouse=True)
def store(objects: MemoryObjects) -> Store:
    """Two commits of vision/cats: OLD, tagged v1, and NEW."""
    store = create_store(objects)
    made = Handmade(store)
    old = made.commit("vision/cats", OLD, message="first\x1b]0;title\nmore")
    store.refs("vision/cats").advance("tags", "v1", old, expected_sequence=None)
    made.commit("vision/cats", NEW, message="second")
    return open_store(objects)


def test_ls(lodefs: Lodefs) -> None:
    """ls lists names, directories with a slash, odd names escaped."""
    assert lodefs("ls", "vision/cats").out.splitlines() == ["a.txt", "dir/", "link", ODD]
    assert lodefs("ls", "vision/cats@v1:dir").out == "b\n"
    assert lodefs("ls", "-R", "vision/cats@v1").out.split() == ["a.txt", "dir/", "dir/b", "link"]


def test_ls_long(lodefs: Lodefs) -> None:
    """ls -l shows kind, executable bit, size, digest, and where symlinks point."""
    lines = lodefs("ls", "-l", "-R", "vision/cats").out.splitlines()
    assert lines[0].split()[:2] == ["--", "13"]
    assert lines[3].split()[0] == "-x"
    assert lines[4].endswith("link -> a.txt")


def test_ls_json(lodefs: Lodefs) -> None:
    """ls --json writes one object a line, with percent-encoded paths."""
    found = {line["path"]: line for line in lodefs("ls", "--json", "vision/cats").json_lines}
    assert found["a.txt"]["size_bytes"] == 13
    assert found["link"]["target"] == "a.txt"
    assert "%FF%0A%1B%5B31m%E2%80%AEred" in found


def test_cat(lodefs: Lodefs) -> None:
    """cat writes the bytes of a file; directories and symlinks are refused."""
    assert lodefs("cat", "vision/cats:a.txt").out == "hello, world\n"
    assert lodefs("cat", "vision/cats@v1:a.txt").out == "hello\n"
    assert lodefs("cat", "vision/cats:dir").code == 2
    refused = lodefs("cat", "vision/cats:link")
    assert refused.code == 2
    assert refused.err.endswith("; it points to a.txt\n")


def test_damage_is_told_with_the_way_out(
    lodefs: Lodefs, objects: MemoryObjects, tmp_path: Path
) -> None:
    """Where the store is damaged, cat and pull name the file, ls the directory, and each says how
    to fix it."""
    for key in [key for key in objects.objects if key.startswith(keys.PACKS)]:
        data = bytearray(objects.objects[key])
        data[: len(data) // 2] = bytes(len(data) // 2)
        objects.objects[key] = bytes(data)
    commands = [
        ("cat", "vision/cats:dir/b", "vision/cats@main"),
        ("ls", "vision/cats@v1", "vision/cats@v1"),
        ("pull", "vision/cats@v1:dir", "vision/cats@v1"),
    ]
    for command, spec, named in commands:
        target = [str(tmp_path / "t")] if command == "pull" else []
        ran = lodefs(command, spec, *target)
        assert ran.code == 8
        assert named in ran.err
        assert ran.err.count("`lodefs repair` ") == 1


def test_log(lodefs: Lodefs) -> None:
    """log shows commits newest first, messages without what a terminal would obey."""
    out = lodefs("log", "vision/cats").out
    assert out.index("second") < out.index("first")
    assert "\x1b" not in out
    assert "    more" in out
    assert len(lodefs("log", "-n", "1", "--json", "vision/cats").json_lines) == 1


def test_diff(lodefs: Lodefs) -> None:
    """diff shows what changed, by path, and sums it up."""
    lines = lodefs("diff", "vision/cats@v1", "vision/cats").out.splitlines()
    assert lines == [
        "M  a.txt  (6 B -> 13 B)",
        "A  dir/run  (nothing -> 2 B)",
        f"A  {ODD}  (nothing -> 3 B)",
        "2 added, 1 changed",
    ]
    assert lodefs("diff", "vision/cats", "vision/cats").out == "no difference\n"


def test_diff_exit_code(lodefs: Lodefs) -> None:
    """diff --exit-code is 1 where anything differs and 0 where nothing does."""
    assert lodefs("diff", "--exit-code", "vision/cats@v1", "vision/cats").code == 1
    assert lodefs("diff", "--exit-code", "vision/cats", "vision/cats").code == 0
    found = lodefs("diff", "--json", "vision/cats@v1:a.txt", "vision/cats:a.txt").json
    assert (found["change"], found["before"]["size_bytes"]) == ("changed", 6)


def test_branches(lodefs: Lodefs) -> None:
    """branch lists, creates, moves only by force, and deletes."""
    assert lodefs("branch", "vision/cats").out.split()[0] == "main"
    assert lodefs("branch", "vision/cats@v1", "dev").code == 0
    assert lodefs("branch", "vision/cats@v1", "dev").code == 0  # there already: nothing to do
    moved = lodefs("branch", "vision/cats", "dev")
    assert moved.code == 4
    assert "--force moves it" in moved.err
    assert lodefs("branch", "--force", "vision/cats", "dev").code == 0
    names = [one["name"] for one in lodefs("branch", "--json", "vision/cats").json_lines]
    assert names == ["dev", "main"]
    assert lodefs("branch", "--delete", "vision/cats", "dev").code == 0
    assert lodefs("ls", "vision/cats@dev").code == 3
    assert lodefs("branch", "--delete", "vision/cats", "dev").code == 3
    assert lodefs("branch", "vision/cats", "dev").code == 0  # a deleted name can be used again


def test_tags(lodefs: Lodefs) -> None:
    """tag does the same for tags, and never creates a branch."""
    assert lodefs("tag", "vision/cats", "v2").code == 0
    tags = [one["name"] for one in lodefs("tag", "--json", "vision/cats").json_lines]
    assert tags == ["v1", "v2"]
    assert lodefs("branch", "vision/cats").out.count("\n") == 1
    assert lodefs("tag", "vision/cats", "v1").code == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("tag", "vision/cats", "../x"),
        ("tag", "--delete", "vision/cats"),
        ("branch", "vision/cats:dir", "x"),
        ("log", "vision/cats:dir"),
        ("verify", "vision/cats:dir"),
        ("verify", "--cache", "--sources"),
        ("adopt",),
        ("adopt", "--all", "vision/cats"),
        ("ls", "vision/../cats"),
        ("ls", "vision/cats:../x"),
        ("ls", "vision/cats@"),
        ("ls", ""),
        ("ls", "vision/cats", "more"),
        ("pull", "vision/cats"),
        ("no-such-command",),
        ("ls", "--no-such-option"),
    ],
    ids=" ".join,
)
def test_bad_input(lodefs: Lodefs, arguments: tuple[str, ...]) -> None:
    """Malformed names, missing and unknown arguments: code 2, a reason, no traceback."""
    ran = lodefs(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("lodefs: error: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("vision/dogs", "no repository vision/dogs that you may read; memory: has vision/cats"),
        ("vision/cats@v9", "vision/cats has no branch, tag or commit v9; its branches: main"),
        ("vision/cats:dir/none", "dir/none does not exist"),
        ("vision/cats:a.txt/x", "a.txt is a file, not a directory"),
    ],
)
def test_unknown_names(lodefs: Lodefs, spec: str, told: str) -> None:
    """What does not exist is one line that says what does, and code 3."""
    ran = lodefs("ls", spec)
    assert ran.code == 3
    assert ran.err.startswith("lodefs: error: ")
    assert ran.err.count("\n") == 1
    assert told in ran.err


def test_verify(lodefs: Lodefs, objects: MemoryObjects, store: Store) -> None:
    """verify is quiet about a good store; of a bad one it lists the problems and exits with 1."""
    good = lodefs("verify", "--data")
    assert good.code == 0
    assert good.out.endswith("all is well\n")
    segment = find(store, Spec("vision/cats", path=b"dir/b")).segments[0]
    del objects.objects[keys.pack(segment.pack)]
    bad = lodefs("verify", "vision/cats")
    assert bad.code == 1
    assert "dir/b" in bad.out
    assert lodefs("verify", "--json").json["problems"]


def test_pull(lodefs: Lodefs, tmp_path: Path) -> None:
    """pull copies a revision and says what it copied; repeated it finds all of it there; a target
    that holds anything else is refused, with what differs, and left alone."""
    target = tmp_path / "t"
    ran = lodefs("pull", "vision/cats", str(target))
    assert ran.code == 0
    assert "pulled vision/cats@main" in ran.out
    assert (target / "a.txt").read_bytes() == b"hello, world\n"
    again = lodefs("pull", "vision/cats", str(target))
    assert again.code == 0
    assert f"nothing to pull: {target} is already vision/cats@main" in again.out
    found = lodefs("pull", "--json", "vision/cats", str(target)).json
    assert (found["unchanged"], found["fetched_bytes"]) == (True, 0)
    (target / "a.txt").write_bytes(b"mine")
    again = lodefs("pull", "vision/cats", str(target))
    assert again.code == 2
    assert "is not empty, and differs from vision/cats@main: a.txt differs" in again.err
    assert (target / "a.txt").read_bytes() == b"mine"
    found = lodefs("pull", "--json", "--no-sync", "vision/cats@v1:dir", str(tmp_path / "u")).json
    assert (found["files"], found["size_bytes"]) == (1, 2000)
    assert os.listdir(tmp_path / "u") == ["b"]


def test_no_store(lodefs: Lodefs) -> None:
    """Without a store the error says how to give one; a place without a store, how to make it."""
    ran = lodefs("ls", "vision/cats", LODEFS_STORE="")
    assert ran.code == 2
    assert "--store URL, LODEFS_STORE" in ran.err


def test_store_of_a_newer_format(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """Spoiled or unknown settings of a store have codes of their own."""
    objects.objects[keys.STORE] = b"nonsense"
    assert lodefs("ls", "vision/cats").code == 8
    del objects.objects[keys.STORE]
    ran = lodefs("ls", "vision/cats")
    assert ran.code == 3
    assert "lodefs init" in ran.err


def test_init(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """init creates a store once."""
    assert lodefs("init", "s3://memory").code == 4
    objects.objects.clear()
    made = lodefs("init", "--json", "s3://memory")
    assert made.code == 0
    assert len(made.json["store_id"]) == 32
    assert keys.STORE in objects.objects


def test_ls_of_the_store(lodefs: Lodefs, store: Store) -> None:
    """ls without REPO lists the repositories."""
    Handmade(store).commit("audio", OLD)
    assert lodefs("ls").out == "audio\nvision/cats\n"
    assert lodefs("ls", "--json").json_lines == [{"repo": "audio"}, {"repo": "vision/cats"}]
    assert lodefs("ls", "-l").code == 2


@pytest.mark.parametrize("command", ["ls", "log"])
def test_part_of_a_repository(lodefs: Lodefs, command: str) -> None:
    """The first part of a repository's name is told what lies below it."""
    ran = lodefs(command, "vision")
    assert ran.code == 3
    assert "no repository vision that you may read; memory: has vision/cats" in ran.err


@pytest.mark.parametrize("command", ["branch", "tag", "log"])
def test_lists_of_an_unknown_repository(lodefs: Lodefs, command: str) -> None:
    """What a repository that does not exist has is no empty list."""
    for arguments in ([], ["--json"]):
        ran = lodefs(command, *arguments, "vision/dogs")
        assert (ran.code, ran.out) == (3, "")
        assert "no repository vision/dogs that you may read; memory: has vision/cats" in ran.err


@pytest.mark.parametrize("command", ["branch", "tag"])
def test_refs_of_an_unknown_repository(lodefs: Lodefs, command: str) -> None:
    """Nothing is created or deleted in it, and it is what is told."""
    for arguments in (["vision/dogs", "new"], ["--delete", "vision/dogs", "dev"]):
        ran = lodefs(command, *arguments)
        assert ran.code == 3
        assert "no repository vision/dogs" in ran.err


def test_the_default_branch_is_not_deleted_unasked(lodefs: Lodefs) -> None:
    """Where nobody can be asked, main goes with --yes alone; a tag of that name is any tag."""
    ran = lodefs("branch", "--delete", "vision/cats", "main")
    assert (ran.code, ran.out) == (2, "")
    assert "the branch that commands take by default: give --yes" in ran.err
    assert lodefs("ls", "vision/cats").code == 0
    assert lodefs("branch", "--delete", "--yes", "vision/cats", "main").code == 0
    assert lodefs("tag", "vision/cats@v1", "main").code == 0
    assert lodefs("tag", "--delete", "vision/cats", "main").code == 0


def test_a_mount_without_the_device_starts_no_proxy(
    lodefs: Lodefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /dev/fuse cannot be opened, that is told at once, by mount, run and lodefs.mount."""

    def started(*_: object) -> str:
        raise AssertionError("a proxy was started for nothing")

    monkeypatch.setattr("lodefs.api.mounting.proxy_url", started)
    monkeypatch.setattr(device, "PATH", str(tmp_path / "fuse"))
    (tmp_path / "mnt").mkdir()
    ran = lodefs("mount", "vision/cats", str(tmp_path / "mnt"))
    assert (ran.code, ran.err.count("\n")) == (12, 1)
    assert f"{tmp_path}/fuse: " in ran.err
    ran = lodefs("run", f"vision/cats:{tmp_path}/mnt", "--", "true")
    assert (ran.code, ran.err.count("\n")) == (12, 1)
    with pytest.raises(Unsupported, match="fuse"):
        api_mount("vision/cats", tmp_path / "mnt")


def test_no_tags_yet(lodefs: Lodefs, store: Store) -> None:
    """A repository that has commits and no tags has an empty list of them."""
    store.refs("vision/cats").advance("tags", "v1", None, expected_sequence=0)
    ran = lodefs("tag", "vision/cats")
    assert (ran.code, ran.out) == (0, "")


def test_names_are_taken_once(lodefs: Lodefs, store: Store) -> None:
    """No branch is created with the name of a tag or the reverse, nor with a commit's beginning;
    what exists still moves and goes."""
    commit = store.resolve("vision/cats", "main").hex()[:7]
    for arguments in (("branch", "v1"), ("tag", "main"), ("branch", commit), ("tag", commit),
                      ("branch", "HEAD"), ("tag", "HEAD"), ("tag", "0" * 64)):  # fmt: skip
        ran = lodefs(arguments[0], "vision/cats", arguments[1])
        assert ran.code == 2
        assert arguments[1] in ran.err
    store.refs("vision/cats").advance(
        "branches", "v1", store.resolve("vision/cats", "v1"), expected_sequence=None
    )
    assert lodefs("tag", "--force", "vision/cats@main", "v1").code == 0
    assert lodefs("branch", "--delete", "vision/cats", "v1").code == 0


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("init --store /s /t", "--store"),
        ("ls --proxy unix:/p vision/cats", "--proxy"),
        ("mounts --store /s", "--store"),
        ("token --file /t list --store /s", "--store"),
        ("serve --proxy unix:/p", "--proxy"),
        ("version --store /s", "--store"),
        ("ls -l --json vision/cats", "-l"),
        ("tag --force --delete vision/cats v1", "--force"),
        ("tag --undelete --delete vision/cats v1", "--delete"),
        ("branch --yes vision/cats dev", "--yes"),
        ("branch --undelete --force vision/cats main", "--force"),
        ("verify --proxy unix:/p", "--proxy"),
        ("verify --cache --cache-dir /c --store /s", "--store"),
        ("warm --null vision/cats", "--null"),
        ("warm --jobs --pin 7d", "--pin"),
        ("warm --cancel 12 --detach", "--detach"),
        ("mount --take-over /m --uid 0", "--uid"),
        ("mount --take-over /m --read-timeout 3", "--read-timeout"),
        ("mount --take-over /m --no-passthrough", "--passthrough"),
        ("mount --take-over /m --store /s", "--store"),
        ("mount --take-over /m --foreground --log /l", "--log"),
        ("mount --from /m.toml --store /s", "--store"),
    ],
)
def test_options_that_would_do_nothing(lodefs: Lodefs, line: str, option: str) -> None:
    """An option that has no effect for a command is a mistake that is told, and nothing is done."""
    ran = lodefs(*line.split())
    assert (ran.code, ran.out) == (2, "")
    assert option in ran.err
    assert ran.err.count("\n") == 1


def test_odd_paths_in_errors(lodefs: Lodefs) -> None:
    """A path that is refused is shown as it was given."""
    assert "error: '..' is not a path inside" in lodefs("ls", "vision/cats:..").err


def test_init_where_no_store_belongs(lodefs: Lodefs, tmp_path: Path) -> None:
    """init refuses an empty URL, and a directory that holds other things; both stay as they are."""
    (tmp_path / "thesis.tex").touch()
    before = os.listdir(tmp_path)
    empty = lodefs("init", "")
    assert empty.code == 2
    assert "is empty: perhaps a variable is not set" in empty.err
    full = lodefs("init", str(tmp_path))
    assert full.code == 2
    assert "needs a new or empty directory" in full.err
    assert os.listdir(tmp_path) == before
