"""What fsspec writes becomes commits: in a transaction, and with autocommit."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import lodefs
from lodefs.chunkstore.errors import Conflict
from lodefs.fs import LodefsFileSystem
from tests.support.chunkstore.child_process import private_directory
from tests.support.lodefs.dataset_node import DatasetNode
from tests.support.proxy.node_process import REPO

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home() -> Iterator[None]:
    """An own one, for the push index."""
    with private_directory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        yield


def file_system(node: DatasetNode, **options: Any) -> LodefsFileSystem:
    """A new one."""
    return LodefsFileSystem(node.address, str(node.store), skip_instance_cache=True, **options)


@pytest.fixture
def fs(node: DatasetNode) -> LodefsFileSystem:
    """A file system."""
    return file_system(node)


@pytest.fixture
def root() -> str:
    """A branch that is not there yet."""
    return f"{REPO}@b{uuid4().hex[:8]}x"


def commits(node: DatasetNode, root: str) -> list[str]:
    """Messages of a branch's commits, the newest first."""
    return [entry.commit.message for entry in lodefs.log(root, store=str(node.store))]


def test_one_commit_of_all_that_is_written(
    node: DatasetNode, fs: LodefsFileSystem, root: str, tmp_path: Path
) -> None:
    """Inside of the block it is read as it is staged, also from the middle; after it, from the
    commit, which has all of it."""
    (tmp_path / "local").write_bytes(b"local")
    main = f"{REPO}@main"
    with fs.transaction as transaction:
        transaction.message = "by fsspec"
        with fs.open(f"{root}/text", "wt") as text:
            text.write("é\n")
        fs.pipe({f"{root}/a": b"1" * 5000, f"{root}/b": b"2"})
        fs.put(str(tmp_path / "local"), f"{root}/local")
        fs.mv(f"{root}/b", f"{root}/c")
        fs.cp(f"{main}/large", f"{root}/copies/large")
        fs.rm(f"{root}/a")
        fs.pipe(f"{root}/a", b"1")
        with fs.open(f"{root}/text") as file:
            file.seek(2)
            assert file.read() == b"\n"
        assert fs.cat_ranges([f"{root}/copies/large"] * 2, [0, 10], [3, 12]) == fs.cat_ranges(
            [f"{main}/large"] * 2, [0, 10], [3, 12]
        )
        assert fs.info(f"{root}/a")["size"] == 1
        assert fs.isdir(root) and not fs.exists(f"{root}/b")
        assert fs.modified(f"{root}/a").year > 2000
        with pytest.raises(FileNotFoundError):
            fs.info(f"{root}/b")
        with pytest.raises(FileExistsError):
            fs.mkdir(f"{root}/copies")
    assert commits(node, root) == ["by fsspec"]
    assert fs.cat(root, recursive=True) == {
        f"{root}/a": b"1", f"{root}/c": b"2", f"{root}/local": b"local",
        f"{root}/text": "é\n".encode(), f"{root}/copies/large": fs.cat(f"{main}/large"),
    }  # fmt: skip
    with pytest.raises(OSError, match=r"with fs\.transaction") as found:
        fs.pipe(f"{root}/d", b"")
    assert found.value.errno == errno.EROFS


def test_an_error_leaves_all_as_it_was(node: DatasetNode, fs: LodefsFileSystem, root: str) -> None:
    """No branch is written to; the file system can begin another transaction; a file whose block
    raises is not staged."""
    before = commits(node, f"{REPO}@main")
    with pytest.raises(KeyError):  # noqa: PT012, SIM117
        with fs.transaction:
            fs.pipe(f"{root}/a", b"1")
            fs.rm(f"{REPO}@main/a", recursive=True)
            raise KeyError
    assert not fs.exists(root)
    assert commits(node, f"{REPO}@main") == before
    with fs.transaction:
        with pytest.raises(KeyError), fs.open(f"{root}/b", "wb"):
            raise KeyError
        fs.pipe(f"{root}/c", b"3")
    assert fs.find(root) == [f"{root}/c"]


def test_a_conflict_is_an_oserror(node: DatasetNode, fs: LodefsFileSystem, root: str) -> None:
    """It is based on the commit that the file system has read, and what is staged can be had."""
    with fs.transaction:
        fs.pipe(f"{root}/a", b"1")
    assert fs.cat(f"{root}/a") == b"1"
    with lodefs.transaction(root, store=str(node.store)) as other:
        other.put("a", b"other")
    writes = fs.transaction
    with pytest.raises(OSError, match="both sides changed a") as found, writes:
        fs.pipe(f"{root}/a", b"2")
    assert isinstance(found.value.__cause__, Conflict)
    with writes.branches[root] as again:
        again.rebase(ours=[""])
    fs.invalidate_cache()
    assert fs.cat(f"{root}/a") == b"2"


def test_autocommit(node: DatasetNode, root: str) -> None:
    """Each call is a commit, and each file when it is closed; it is read at once."""
    fs = file_system(node, autocommit=True)
    fs.pipe(f"{root}/a", b"1")
    with fs.open(f"{root}/b", "wb") as file:
        file.write(b"2")
        assert not fs.exists(f"{root}/b")
    assert fs.cat(f"{root}/b") == b"2"
    with pytest.raises(KeyError), fs.open(f"{root}/c", "wb"):
        raise KeyError
    fs.rm(f"{root}/a")
    assert fs.find(root) == [f"{root}/b"]
    assert len(commits(node, root)) == 3
    assert pickle.loads(pickle.dumps(fs)).find(root) == [f"{root}/b"]


def test_what_is_refused(fs: LodefsFileSystem, root: str) -> None:
    """Modes that change a file in place, no revision, what leads through a file, a directory that
    is not empty, the root, and a file that is open at the end."""
    with fs.transaction:
        fs.pipe({f"{root}/d/a": b"", f"{root}/f": b""})
        for mode in ("ab", "r+b"):
            with pytest.raises(OSError, match="mode") as found:
                fs.open(f"{root}/f", mode)
            assert found.value.errno == errno.EINVAL
        with pytest.raises(OSError, match="names no revision"):
            fs.pipe(f"{REPO}/f", b"")
        with pytest.raises(NotADirectoryError):
            fs.pipe(f"{root}/f/g", b"")
        with pytest.raises(OSError, match="not empty"):
            fs.rm(f"{root}/d")
        with pytest.raises(OSError, match="delete the branch"):
            fs.rm(root, recursive=True)
        with pytest.raises(OSError, match="is a directory"):
            fs.pipe(f"{root}/d", b"")
        with pytest.raises(FileNotFoundError):
            fs.rm(f"{root}/none")
    with pytest.raises(OSError, match="g is still open for writing"), fs.transaction:
        fs.open(f"{root}/g", "wb").write(b"half")
    assert sorted(fs.find(root)) == [f"{root}/d/a", f"{root}/f"]


def test_pyarrow_writes(node: DatasetNode, fs: LodefsFileSystem, root: str) -> None:
    """A table and a dataset in parts, which threads of pyarrow's write, are read back."""
    table = pa.table({"part": [n % 3 for n in range(3000)], "x": range(3000)})
    with fs.transaction:
        pq.write_table(table, f"{root}/table.parquet", filesystem=fs)
        ds.write_dataset(
            table, f"{root}/parts", filesystem=fs, format="parquet", partitioning=["part"]
        )
    assert pq.read_table(f"{root}/table.parquet", filesystem=fs).equals(table)
    found = ds.dataset(f"{root}/parts", filesystem=fs, partitioning=["part"])
    assert found.to_table().sort_by("x")["x"].to_pylist() == list(range(3000))


def test_urls_find_the_transaction(
    node: DatasetNode, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What opens a URL in the same thread writes in the transaction of that file system."""
    options = {"proxy": node.address, "store": str(node.store)}
    fs = fsspec.filesystem("lodefs", **options)
    with fs.transaction, fsspec.open(f"lodefs://{root}/a", "wb", **options) as file:
        file.write(b"1")
    assert commits(node, root) == [""]
