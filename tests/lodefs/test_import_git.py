"""``lodefs import-git`` and mounts by the id of Git, beside what Git and Git LFS check out."""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from loadtests.bench.sides import detach, node
from loadtests.cli import Lodefs
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.push.changes.change import Put as PutChange
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.directories import Seen, in_directory
from tests.support.chunkstore.git_repositories import (
    EXECUTABLE,
    LINK,
    GitServer,
    Put,
    Tree,
    git,
    git_server,
    make_repository,
    pointer,
)
from tests.support.lodefs.command_line import Lodefs as InMemory

REPO = "vision/cats"
FILES = 200
OBJECTS = [Random(n).randbytes(1_000_000 + n) for n in range(3)]


def commits() -> list[Tree]:
    """Three commits of many small files, symlinks, programs, and files in Git LFS."""
    small: Tree = {f"d{n % 20}/f{n}": b"%d\n" % n * (n % 40) for n in range(FILES)}
    first: Tree = {
        **small,
        ".gitattributes": b"*.bin filter=lfs diff=lfs merge=lfs -text\n",
        "w.bin": pointer(OBJECTS[0]),
        "run/x.bin": Put(pointer(OBJECTS[1]), EXECUTABLE),
        "run/me": Put(b"#!/bin/sh\n", EXECUTABLE),
        "up": Put(b"../../outside", LINK),
        "run/down": Put(b"../d1/f1", LINK),
    }
    second: Tree = {"w.bin": pointer(OBJECTS[2]), "d1/f1": None, "d2/f2": Put(b"2", EXECUTABLE)}
    return [first, second, {"w.bin": b"text now", "up": b"a file now"}]


def have_objects(store: Path, folder: Path) -> None:
    """Stores objects as the LFS server does."""
    changes = [PutChange(lfs.object_path(sha256(one).hexdigest()), one) for one in OBJECTS]
    now_s = int(time.time())
    options = PushOptions(message="", author="", time_s=now_s, index_dir=folder / "index")
    opened = open_store(DirectoryObjects(str(store)))
    commit_changes(opened, REPO, lfs.OBJECTS, changes, options)


def checked_out(origin: Path, commit: str, folder: Path) -> dict[bytes, Seen]:
    """What Git and Git LFS check out of a commit."""
    if not folder.exists():
        git(origin, "clone", "-q", "--no-checkout", origin, folder)
        for one in OBJECTS:
            place = folder / ".git/lfs/objects" / lfs.object_path(sha256(one).hexdigest())
            place.parent.mkdir(parents=True)
            place.write_bytes(one)
        git(folder, "lfs", "install", "--local", "--skip-repo")
    git(folder, "checkout", "-q", commit)
    git(folder, "lfs", "checkout")
    seen = in_directory(folder)
    return {path: one for path, one in seen.items() if path.split(b"/")[0] != b".git"}


@pytest.mark.fuse
@pytest.mark.slow
def test_mounts_equal_checkouts(tmp_path: Path) -> None:
    """A mount by the id of Git shows what Git LFS checks out at each of three commits, and imports
    move no byte of objects."""
    shas = make_repository(tmp_path / "org/r.git", commits())
    lodefs = Lodefs(str(tmp_path / "store"), tmp_path / "home", os.environ)
    lodefs.run("init", lodefs.store)
    have_objects(tmp_path / "store", tmp_path)
    (tmp_path / "mnt").mkdir()
    with git_server(tmp_path) as server:
        settings = f'[serve]\ngit_allowed = ["{server.url("org")}"]\ngit_lfs_repos = ["{REPO}"]\n'
        (tmp_path / "home/lodefs.toml").write_text(settings)
        compare(lodefs, shas, server, tmp_path)


def compare(lodefs: Lodefs, shas: list[str], server: GitServer, tmp_path: Path) -> None:
    """Imports, mounts and compares three commits, the last one by the URL of its branch."""
    target, url = tmp_path / "mnt", server.url("org/r.git")
    names = [f"{REPO}@git:{shas[0][:9]}", f"{REPO}@git:{shas[1]}", f"{url}@main"]
    with node(lodefs, tmp_path / "node") as proxy:
        for sha, name, kept in zip(shas, names, (0, FILES, FILES), strict=True):
            done = lodefs.json("import-git", f"{url}@{sha}", REPO)
            assert done["git_commit"] == sha and done["kept_files"] >= kept
            assert done["stored_bytes"] < min(map(len, OBJECTS))
            try:
                lodefs.run("--proxy", proxy.url, "mount", name, target)
                expected = checked_out(tmp_path / "org/r.git", sha, tmp_path / "clone")
                assert in_directory(target) == expected
                lodefs.run("unmount", target)
            finally:
                detach(target)


def test_places(lodefs: InMemory, tmp_path: Path) -> None:
    """A directory with a repository is a URL; what is neither is refused before a store is asked,
    and a URL with a password is not repeated."""
    [sha] = make_repository(tmp_path / "r.git", [{"a": b"1"}])
    lodefs("init", "s3://memory")
    done = lodefs("import-git", f"{tmp_path}/r.git@main", "r", "--json")
    assert done.json["git_commit"] == sha
    assert lodefs("cat", f"r@git:{sha[:7]}:a").out == "1"
    assert lodefs("log", f"r@git:{sha[:7]}", "--json").json["tags"] == [f"git-{sha}"]
    for url, said in (
        ("file:///etc", "write https://"),
        (f"ext::sh -c touch% {tmp_path}/trap", "neither a directory nor a URL"),
        ("https://me:hunter2@h/r", "no password"),
        (f"{tmp_path}/r.git@--upload-pack=x", "not a revision of Git"),
        (f"{tmp_path}/nothing", "neither a directory"),
    ):
        refused = lodefs("import-git", url, "r")
        assert refused.code and said in refused.err and "hunter2" not in refused.err
    open_file = tmp_path / "credentials"
    open_file.write_text("")
    open_file.chmod(0o644)
    refused = lodefs("import-git", "https://h/r", "r", "--credentials", str(open_file))
    assert "chmod 0600" in refused.err
