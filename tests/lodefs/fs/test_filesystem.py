"""LodefsFileSystem against a real proxy and a copy of the dataset."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.metadata import entry_points
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from lodefs.fs import LodefsFileSystem
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.mount.mounts import until
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow


@pytest.fixture
def fs(node: DatasetNode) -> LodefsFileSystem:
    """A new file system."""
    return LodefsFileSystem(proxy=node.address, skip_instance_cache=True)


def files_below(source: Path) -> list[str]:
    """The files that ``find`` must give: also symlinks to files, and those that lead nowhere."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), source)
        for folder, _, names in os.walk(source)
        for name in names
    )


def test_every_byte(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """Whole files, cold and from the cache, are what was pushed."""
    for _ in range(2):
        for name in files_below(node.source):
            if name not in ("loop", "out"):
                assert fs.cat_file(f"{node.root}/{name}") == (node.source / name).read_bytes()


def test_find_is_one_walk(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """find gives what a walk of the directory gives, and sizes with it."""
    found = fs.find(node.root, detail=True)
    root = f"{REPO}@main"
    assert list(found) == [f"{root}/{name}" for name in files_below(node.source)]
    assert found[f"{root}/large"]["size"] == (node.source / "large").stat().st_size
    assert found[f"{root}/a/up"] == fs.info(f"{root}/a/up")
    assert {name for name, info in found.items() if info["type"] == "other"} == {
        f"{root}/loop", f"{root}/out"
    }  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["**", "a/*.bin", "**/a*", "*/b/*", "a/0[1-3].bin", "a/b/x[[]1]*", "nothing*", "*", "a/**/p*n"],
)
def test_glob(node: DatasetNode, fs: LodefsFileSystem, pattern: str) -> None:
    """Patterns mean what they mean on the local disk."""
    local = LocalFileSystem()
    expected = [
        os.path.relpath(path, node.source) for path in local.glob(f"{node.source}/{pattern}")
    ]
    found = [path.removeprefix(f"{REPO}@main").strip("/") or "." for path in
             fs.glob(f"{node.root}/{pattern}")]  # fmt: skip
    nowhere = {"loop", "out"}  # which fsspec's local file system may leave out
    assert [name for name in found if name not in nowhere] == [
        name for name in expected if name not in nowhere
    ]


def test_symlinks(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """Symlinks are followed inside the snapshot; one to a directory is listed and not walked
    into."""
    assert fs.info(f"{node.root}/to-file")["size"] == (node.source / "a/01.bin").stat().st_size
    assert fs.info(f"{node.root}/to-file")["destination"] == "a/01.bin"
    assert fs.isdir(f"{node.root}/to-directory")
    assert fs.cat_file(f"{node.root}/to-directory/up") == (node.source / "large").read_bytes()
    assert "to-directory" in next(fs.walk(node.root))[1]
    assert not [path for path, _, _ in fs.walk(node.root) if "to-directory" in path]


def test_slices(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """cat_file and cat_ranges take slices as Python does, beyond the end, too."""
    data = (node.source / "large").read_bytes()
    url = f"{node.root}/large"
    spans: list[tuple[int | None, int | None]] = [
        (0, 10), (5, None), (-7, None), (100, 50), (2_999_990, 9_000_000),
        (None, -5), (9_000_000, None),
    ]  # fmt: skip
    for start, end in spans:
        assert fs.cat_file(url, start, end) == data[start:end]
        assert fs.cat(url, start=start, end=end) == data[start:end]
    starts, ends = [list(each) for each in zip(*spans, strict=True)]
    assert fs.cat_ranges([url] * len(spans), starts, ends) == [data[a:b] for a, b in spans]
    assert fs.cat([url], start=2, end=5) == {fs._strip_protocol(url): data[2:5]}


def test_cat_ranges_says_which_failed(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """A missing file costs its own range only, unless errors are to be raised."""
    paths = [f"{node.root}/large", f"{node.root}/missing", f"{node.root}/a"]
    found = fs.cat_ranges(paths, 0, 4)
    assert found[0] == (node.source / "large").read_bytes()[:4]
    assert isinstance(found[1], FileNotFoundError)
    assert isinstance(found[2], IsADirectoryError)
    with pytest.raises(FileNotFoundError, match="missing"):
        fs.cat_ranges(paths, 0, 4, on_error="raise")


def test_files_are_files(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """An open file reads by lines, seeks, fills buffers, and travels by pickle with its place."""
    with fs.open(f"{node.root}/text", "rt") as text:
        assert list(text) == (node.source / "text").read_text().splitlines(keepends=True)
    with fs.open(f"{node.root}/text") as file:
        assert list(file) == (node.source / "text").read_bytes().splitlines(keepends=True)
    with fs.open(f"{node.root}/large") as file:
        data = (node.source / "large").read_bytes()
        file.seek(1_000_000)
        buffer = bytearray(10)
        assert file.readinto(buffer) == 10
        assert buffer == data[1_000_000:1_000_010]
        other = pickle.loads(pickle.dumps(file))
        assert other.read(5) == file.read(5) == data[1_000_010:1_000_015]
        file.seek(-3, os.SEEK_END)
        assert file.read() == data[-3:]


def test_info_asks_nobody_again(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """After a listing, entries are known without proxy and cache."""
    fs.find(node.root)
    snapshot = fs.snapshot(node.root)
    snapshot.entries._clients = snapshot.entries._cache = None  # type: ignore[assignment]
    assert fs.info(f"{node.root}/a/01.bin")["size"] == 1300
    assert not fs.exists(f"{node.root}/a/missing")
    assert fs.isdir(f"{node.root}/a/b")


def test_facts_of_a_file(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """The key of a file is its content's digest, and its time that of the commit, in a zone."""
    url = f"{node.root}/a/01.bin"
    assert fs.ukey(url) == fs.info(url)["ETag"] == fs.snapshot(url).digest("a/01.bin")
    assert fs.checksum(url) == int(fs.ukey(url), 16)
    assert fs.modified(url).tzinfo is not None
    assert fs.resolve(url) == f"lodefs://{REPO}@{node.commit}/a/01.bin"


def test_missing(node: DatasetNode, fs: LodefsFileSystem) -> None:
    """What is not there is FileNotFoundError with the name of what is missing."""
    for tail in ("@main/missing", "@main/a/missing/x", "@unknown/a", "x@main/a"):
        with pytest.raises(FileNotFoundError):
            fs.info(f"lodefs://{REPO}{tail}")
        assert not fs.exists(f"lodefs://{REPO}{tail}")
    with pytest.raises(NotADirectoryError):
        fs.info(f"{node.root}/large/x")
    with pytest.raises(OSError, match="names no revision"):
        fs.info(f"lodefs://{REPO}/large")
    with pytest.raises(IsADirectoryError):
        fs.cat_file(f"{node.root}/a")


def test_nothing_writes(node: DatasetNode, fs: LodefsFileSystem, tmp_path: Path) -> None:
    """Whatever would write says that it cannot, and what does."""
    url = f"{node.root}/new"
    (tmp_path / "x").write_text("x")
    attempts: list[Any] = [
        lambda: fs.open(url, "wb"),
        lambda: fs.open(url, "w"),
        lambda: fs.pipe(url, b""),
        lambda: fs.mkdir(url),
        lambda: fs.rm(f"{node.root}/a", recursive=True),
        lambda: fs.touch(url),
        lambda: fs.put(str(tmp_path / "x"), url),
        lambda: fs.mv(f"{node.root}/large", url),
        lambda: fs.cp(f"{node.root}/large", url),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"lodefs\.transaction") as found:
            attempt()
        assert found.value.errno == errno.EROFS


def test_one_commit_for_a_job(node: DatasetNode, fs: LodefsFileSystem, tmp_path: Path) -> None:
    """A file system stays at the commit that it saw first, also where it travels, and when the
    branch moves or is deleted; a new look is asked for."""
    (tmp_path / "text").write_text("first")
    node.push(tmp_path, "moving")
    url = f"lodefs://{REPO}@moving/text"
    before = fs.info(url)
    (tmp_path / "text").write_text("changed")
    node.push(tmp_path, "moving")
    traveller = pickle.loads(pickle.dumps(fs))

    def seen_anew() -> bytes:
        return LodefsFileSystem(proxy=node.address, skip_instance_cache=True).cat_file(url)

    until(lambda: seen_anew() == b"changed")
    assert fs.cat_file(url) == traveller.cat_file(url) == b"first"
    node.delete("moving")
    assert traveller.info(url) == fs.info(url) == before
    fs.invalidate_cache(url)
    until(lambda: not LodefsFileSystem(proxy=node.address, skip_instance_cache=True).exists(url))


def test_one_commit_for_threads_and_children(node: DatasetNode, tmp_path: Path) -> None:
    """fsspec's instances of other threads, and of a child that was forked, read the commit that
    the process saw first."""
    (tmp_path / "text").write_text("first")
    node.push(tmp_path, "shared")
    url = f"lodefs://{REPO}@shared/text"
    options: dict[str, Any] = {"proxy": node.address, "timeout_s": 59.0}
    assert LodefsFileSystem(**options).cat_file(url) == b"first"
    (tmp_path / "text").write_text("changed")
    node.push(tmp_path, "shared")

    def seen_anew() -> bytes:
        return LodefsFileSystem(**options, skip_instance_cache=True).cat_file(url)

    until(lambda: seen_anew() == b"changed")

    def seen() -> bytes:
        return LodefsFileSystem(**options).cat_file(url)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(seen).result(60) == b"first"
    with ProcessPoolExecutor(1, get_context("fork")) as children:
        assert children.submit(_text_of, url, options).result(60) == b"first"


def _text_of(url: str, options: dict[str, Any]) -> bytes:
    return LodefsFileSystem(**options).cat_file(url)


def test_names_without_a_revision(fs: LodefsFileSystem) -> None:
    """Nothing is there for programs that go up from a path; asked for by name, they are told."""
    assert not fs.isdir(REPO)
    assert not fs.isfile(REPO)
    with pytest.raises(OSError, match="names no revision"):
        fs.info(REPO)


def test_a_restart_of_the_proxy(node: DatasetNode) -> None:
    """Reads of an open file go on when the proxy was killed and started anew."""
    fs = LodefsFileSystem(proxy=node.address, skip_instance_cache=True)
    with fs.open(f"{node.root}/large") as file:
        assert file.read(10) == (node.source / "large").read_bytes()[:10]
        node.restart()
        fs.snapshot(node.root).cache._next_turn_s = 1e18  # without the cache's files
        fs.snapshot(node.root).cache.view = None
        assert file.read() == (node.source / "large").read_bytes()[10:]


def test_get_leaves_no_part(node: DatasetNode, fs: LodefsFileSystem, tmp_path: Path) -> None:
    """A copy gets its name when it is complete, and a failed one leaves nothing."""
    target = tmp_path / "deep" / ("é" * 127)
    fs.get_file(f"{node.root}/large", str(target))
    assert target.read_bytes() == (node.source / "large").read_bytes()

    class Full:
        def set_size(self, _: int) -> None: ...
        def relative_update(self, _: int) -> None:
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        fs.get_file(f"{node.root}/large", str(tmp_path / "other"), callback=Full())
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_import_is_light() -> None:
    """Importing the file system brings none of the large libraries."""
    heavy = "boto3 botocore aiohttp rocksdict grpc click rich uvloop fastcdc prometheus_client"
    script = f"import lodefs.fs, sys; print(sorted(set({heavy.split()}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_fsspec_finds_it(node: DatasetNode) -> None:
    """fsspec opens a URL of lodefs by the entry point of the package."""
    if "lodefs" not in {one.name for one in entry_points(group="fsspec.specs")}:
        pytest.fail("this environment was installed before there was an entry point: ./run setup")
    with fsspec.open(f"{node.root}/a/01.bin", proxy=node.address) as file:
        assert file.read() == (node.source / "a/01.bin").read_bytes()


def test_unknown_options_are_refused() -> None:
    """An option that nobody knows, as a misspelt one, is named and not ignored; fsspec's own are
    taken."""
    with pytest.raises(TypeError, match="'prox', 'tokn'"):
        fsspec.filesystem("lodefs", prox="unix:/p", tokn="t")
    fsspec.filesystem("lodefs", proxy="unix:/p", use_listings_cache=False, max_paths=5)
