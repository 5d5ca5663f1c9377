"""Repositories of DVC as sources of a push, made by hand in the layouts of its versions 2 and 3."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from random import Random

import pytest

import lodefs
from lodefs.chunkstore.errors import Corrupt, InvalidInput, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.push.dvc.dvc_files import DvcFiles, dvc_url, open_dvc_files
from lodefs.chunkstore.push.dvc.pointers import object_path, outs_of, settings_of
from lodefs.chunkstore.push.remote.remote_files import Listing
from lodefs.chunkstore.repo.store import create_store
from lodefs.settings.session import Session
from tests.support.chunkstore.remote_files_suite import Put, RemoteFilesSuite

LARGE = Random(1).randbytes(9_000_000)  # more than one read


class DvcRepository:
    """A repository with objects in its cache, or in ``place``."""

    def __init__(self, root: Path, version: int = 3) -> None:
        self.root = root
        self.is_legacy = version < 3
        self.place = root / ".dvc" / "cache"
        self.place.mkdir(parents=True)
        (root / ".dvc" / "config").write_text("[core]\n    remote = far\n")

    def object(self, data: bytes, md5: str = "", *, is_directory: bool = False) -> str:
        md5 = md5 or hashlib.md5(data, usedforsecurity=False).hexdigest()
        path = object_path(md5, is_directory=is_directory, is_legacy=self.is_legacy)
        file = self.place / os.fsdecode(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return md5

    def add(self, path: str, data: bytes, md5: str = "") -> Path:
        """Has ``dvc add`` made of a file; returns the object."""
        md5 = self.object(data, md5)
        self.write(f"{path}.dvc", self.outs(md5, path.rpartition("/")[2]))
        at = object_path(md5, is_legacy=self.is_legacy)
        return self.place / os.fsdecode(at)

    def add_directory(self, path: str, files: dict[str, bytes]) -> str:
        rows = [{"md5": self.object(data), "relpath": name} for name, data in files.items()]
        md5 = self.object(json.dumps(rows).encode(), is_directory=True)
        self.write(f"{path}.dvc", self.outs(f"{md5}.dir", Path(path).name))
        return md5

    def outs(self, md5: str, path: str) -> str:
        kind = "" if self.is_legacy else "  hash: md5\n"
        return f"outs:\n- md5: {md5}\n  size: 1\n{kind}  path: {path}\n"

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    create_store(DirectoryObjects(str(tmp_path / "store")))
    home = {"HOME": str(tmp_path), "LODEFS_STORE": str(tmp_path / "store")}
    return Session(home)


def pushed(session: Session, source: Path | str) -> dict[str, bytes]:
    """Pushes a repository; all files that the commit has."""
    lodefs.push(source, "r", session=session, workers=0)
    store = session.store
    commit = store.commit("r", store.resolve("r", "main"))
    return {
        path.decode(): store.packs.read_range(entry, 0, entry.size_bytes)
        for path, entry in store.packs.walk(commit.root)
        if entry.kind is not Kind.DIRECTORY
    }


@pytest.mark.parametrize("version", [2, 3])
def test_pointers_become_files(tmp_path: Path, session: Session, version: int) -> None:
    """Files, directories and outputs of stages are what their pointers say, whatever lies in the
    directory; other files stay, and what is DVC's and Git's own is left out."""
    repository = DvcRepository(tmp_path / "repo", version)
    repository.add("data/large.bin", LARGE)
    repository.add_directory("images", {"a.png": b"a", "sub/b.png": b"b", "empty": b""})
    model = repository.object(b"model")
    kind = "" if version < 3 else "      hash: md5\n"
    repository.write(
        "dvc.lock",
        "schema: '2.0'\nstages:\n  train:\n    cmd: python train.py\n    params:\n      p.yaml:\n"
        f"        lr: 0.1\n    outs:\n    - path: out/model.pt\n      md5: {model}\n{kind}"
        "      size: 5\n  report:\n    cmd: x\n",
    )
    repository.write("images/a.png", "changed, and not added")
    repository.write("images/new", "not added")
    repository.write("train.py", "pass")
    repository.write(".git/HEAD", "x")
    found = pushed(session, repository.root)
    assert found.pop("dvc.lock").startswith(b"schema")
    assert found == {
        "data/large.bin": LARGE,
        "images/a.png": b"a",
        "images/sub/b.png": b"b",
        "images/empty": b"",
        "images/new": b"not added",
        "out/model.pt": b"model",
        "train.py": b"pass",
    }


def test_unchanged_objects_are_not_read(tmp_path: Path, session: Session) -> None:
    """A second push reads only what has another MD5."""
    repository = DvcRepository(tmp_path / "repo")
    repository.add("a", LARGE)
    repository.add("b", b"1")
    pushed(session, repository.root)
    repository.add("b", b"2")
    result = lodefs.push(repository.root, "r", session=session, workers=0)
    assert result.files_read == 1


def test_a_remote(tmp_path: Path, session: Session) -> None:
    """What the cache lacks comes from the default remote, or from that which the pointer names."""
    repository = DvcRepository(tmp_path / "repo")
    repository.add("here", b"here")
    repository.place = tmp_path / "far"
    repository.add("there", b"there")
    repository.place = tmp_path / "named"
    repository.add("elsewhere", b"elsewhere")
    text = (repository.root / "elsewhere.dvc").read_text()
    repository.write("elsewhere.dvc", f"{text}  remote: named\n")
    repository.write(
        ".dvc/config", "[core]\n    remote = far\n['remote \"far\"']\n    url = nowhere\n"
    )
    repository.write(
        ".dvc/config.local",
        "['remote \"far\"']\n    url = ../../far\n"
        f"['remote \"named\"']\n    url = {tmp_path}/named\n",
    )
    found = pushed(session, repository.root)
    assert found == {"here": b"here", "there": b"there", "elsewhere": b"elsewhere"}


def test_missing_objects_are_named(tmp_path: Path, session: Session) -> None:
    """An object that is nowhere is an error with the path of its file; so is a list of files."""
    repository = DvcRepository(tmp_path / "repo")
    repository.add("data/a", b"a").unlink()
    with pytest.raises(InvalidInput, match=r"data/a: DVC's object .* dvc fetch"):
        pushed(session, repository.root)
    repository.add("data/a", b"a")
    repository.add_directory("images", {"x": b"x"})
    for file in repository.place.rglob("*.dir"):
        file.unlink()
    with pytest.raises(InvalidInput, match="images: DVC's object"):
        pushed(session, repository.root)


@pytest.mark.parametrize("data", [b"small", LARGE])
def test_damaged_objects(tmp_path: Path, session: Session, data: bytes) -> None:
    """Bytes that do not have their MD5 are not committed, however many reads they take."""
    repository = DvcRepository(tmp_path / "repo")
    repository.add("a", data).write_bytes(data[:-1] + b"x")
    with pytest.raises(Exception, match=r"a: DVC's object .* other bytes"):
        pushed(session, repository.root)
    with pytest.raises(NotFound):
        session.store.resolve("r", "main")


def test_text_of_dvc_2(tmp_path: Path, session: Session) -> None:
    """DVC 2 made the MD5 of text without the CR of its line ends, block by block; in DVC 3 that is
    an error."""
    text = b"a\r\nb\r\n" * 400_000  # a line end lies across two blocks
    blocks = [text[start : start + (1 << 20)] for start in range(0, len(text), 1 << 20)]
    plain = b"".join(block.replace(b"\r\n", b"\n") for block in blocks)
    md5 = hashlib.md5(plain, usedforsecurity=False).hexdigest()
    DvcRepository(tmp_path / "old", 2).add("a", text, md5)
    assert pushed(session, tmp_path / "old") == {"a": text}
    DvcRepository(tmp_path / "new", 3).add("a", text, md5)
    with pytest.raises(Exception, match="other bytes"):
        pushed(session, tmp_path / "new")


def test_a_damaged_list_of_files(tmp_path: Path, session: Session) -> None:
    """The list of a directory's files is checked, too."""
    repository = DvcRepository(tmp_path / "repo")
    repository.add_directory("images", {"x": b"x"})
    for file in repository.place.rglob("*.dir"):
        file.write_bytes(b"[]")
    with pytest.raises(Corrupt, match="images"):
        pushed(session, repository.root)


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "outs: 5",
        "outs: [5]",
        "a: [",
        "outs: [{md5: x, path: a}]",
        f"outs: [{{md5: {'a' * 32}}}]",
        f"outs: [{{md5: {'a' * 32}, path: /etc/passwd}}]",
        f"outs: [{{md5: {'a' * 32}, path: ../../x}}]",
        f"wdir: ../../..\nouts: [{{md5: {'a' * 32}, path: x}}]",
        "!!python/object/apply:os.system [true]",
    ],
)
def test_bad_pointers(text: str) -> None:
    """What DVC does not write is an error that names the file."""
    with pytest.raises(InvalidInput, match=r"sub/a\.dvc"):
        outs_of(b"sub/a.dvc", text.encode())


def test_pointers_that_contradict_each_other(tmp_path: Path) -> None:
    """Two pointers that name other data for one path, or a file below a file, are refused: one of
    both files would be missing."""
    twice, below = DvcRepository(tmp_path / "twice"), DvcRepository(tmp_path / "below")
    for number in (1, 2):
        twice.write(f"{number}.dvc", twice.outs(twice.object(b"%d" % number), "same"))
    below.add("a", b"1")
    below.add("a/b", b"2")
    with pytest.raises(InvalidInput, match="same is named twice by pointers"):
        DvcFiles(twice.root)
    with pytest.raises(InvalidInput, match="a/b and a are both named by pointers"):
        DvcFiles(below.root)


def test_a_deep_repository(tmp_path: Path) -> None:
    """Directories may lie deeper in each other than functions can call each other."""
    repository = DvcRepository(tmp_path / "repo")
    folder = repository.root
    for _ in range(1200):
        folder /= "d"
        folder.mkdir()
    path = str(folder.relative_to(repository.root) / "x")
    repository.add(path, b"1")
    try:
        assert DvcFiles(repository.root).find(path.encode()) is not None
    finally:  # pytest could not
        subprocess.run(["rm", "-r", repository.root], check=True)


def test_pointers_without_data() -> None:
    """Outputs that Git keeps, or that were never made, are none; a working directory counts."""
    md5 = "a" * 32
    outs = f"{{md5: {md5}, cache: false, path: a}}, {{path: b}}, {{md5: {md5}, path: c}}"
    text = f"wdir: ../x\nouts: [{outs}]"
    [out] = outs_of(b"sub/a.dvc", text.encode())
    assert (out.path, out.is_legacy) == (b"x/c", True)
    assert outs_of(b"a.dvc", b"") == []
    assert settings_of(["[cache]\ndir = /c\n"]).cache == "/c"
    with pytest.raises(InvalidInput):
        settings_of(["x"])


def test_symlinks_lead_nowhere(tmp_path: Path) -> None:
    """A symlink in the directory or the cache is not followed."""
    repository = DvcRepository(tmp_path / "repo")
    (tmp_path / "secret").write_bytes(b"secret")
    (repository.root / "link").symlink_to(tmp_path / "secret")
    object_ = repository.add("a", b"secret")
    object_.unlink()
    object_.symlink_to(tmp_path / "secret")
    listing = DvcFiles(repository.root).list(b"")
    assert sorted(one.name for one in listing.unreadable) == [b"a", b"link"]


def test_what_is_no_repository(tmp_path: Path) -> None:
    """Only a directory with the settings of DVC is one."""
    (tmp_path / ".dvc").mkdir()
    assert dvc_url(tmp_path) is None
    (tmp_path / ".dvc" / "config").touch()
    assert dvc_url(tmp_path) == f"dvc://{tmp_path}"


class TestContract(RemoteFilesSuite):
    """The contract, with each second file behind a pointer."""

    @pytest.fixture
    def repository(self, tmp_path: Path) -> DvcRepository:
        return DvcRepository(tmp_path / "repo #1")

    @pytest.fixture
    def source(self, repository: DvcRepository) -> _Reopened:
        return _Reopened(repository.root)

    @pytest.fixture
    def put(self, repository: DvcRepository) -> Put:
        def put(path: bytes, data: bytes) -> None:
            name = os.fsdecode(path)
            if len(data) % 2:
                md5 = repository.object(data)
                repository.write(
                    f"{name}.dvc",
                    json.dumps({"outs": [{"md5": md5, "hash": "md5", "path": Path(name).name}]}),
                )
            else:
                (repository.root / name).parent.mkdir(parents=True, exist_ok=True)
                (repository.root / name).write_bytes(data)

        return put


class _Reopened:
    """A source that is opened anew for each request, since it reads pointers when it is opened."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getattr__(self, name: str) -> object:
        return getattr(open_dvc_files(str(dvc_url(self._root))), name)

    def list(self, path: bytes) -> Listing:
        return open_dvc_files(str(dvc_url(self._root))).list(path)
