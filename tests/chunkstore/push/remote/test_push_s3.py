"""A push of a bucket by worker processes, which open it by its URL."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random

import pytest

from loadtests.services import S3Server
from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.objects.s3.boto import S3Options
from lodefs.chunkstore.objects.s3.bucket import S3Bucket
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.store import Store, create_store
from tests.support.chunkstore.child_process import Child
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.memory_objects import MemoryObjects


@pytest.mark.rgw
@pytest.mark.slow
def test_push_of_a_bucket(rgw: S3Server, rgw_bucket: str, tmp_path: Path) -> None:
    """Every byte of every object is in the commit; an object that is overwritten is read again, and
    alone."""
    random = Random(3)
    files = {f"d {n % 3}/ü{n}": random.randbytes(n) for n in range(30)}
    files["large"] = random.randbytes(9 << 20)
    store = create_store(MemoryObjects())
    bucket = S3Bucket(rgw_bucket, "", S3Options(endpoint_url=rgw.endpoint_url))

    def pushed() -> PushResult:
        options = PushOptions("", "", 0, tmp_path / "index", workers=2)
        return push(store, f"s3://{rgw_bucket}/in?{query}", "r", "main", options)

    query = f"endpoint_url={rgw.endpoint_url}"
    for key, data in files.items():
        bucket.put(f"in/{key}", [data])
    first = pushed()
    assert contents(store, first) == {key.encode(): data for key, data in files.items()}
    assert pushed().files_read == 0
    bucket.put("in/large", [b"other"])
    again = pushed()
    assert again.files_read == 1
    assert contents(store, again)[b"large"] == b"other"
    bucket.close()


@pytest.mark.rgw
@pytest.mark.slow
def test_killed_push(rgw: S3Server, rgw_bucket: str, tmp_path: Path) -> None:
    """A push from a bucket that was killed between two packs goes on: what was stored is not sent
    again, and every byte is there."""
    random = Random(4)
    files = {f"{n}": random.randbytes(5 << 20) for n in range(6)}
    bucket = S3Bucket(rgw_bucket, "", S3Options(endpoint_url=rgw.endpoint_url))
    for key, data in files.items():
        bucket.put(f"in/{key}", [data])
    bucket.close()
    store = create_store(DirectoryObjects(tmp_path / "store"))

    def pushed(when: str, number: int) -> Child:
        url = f"s3://{rgw_bucket}/in?endpoint_url={rgw.endpoint_url}"
        places: list[str | Path] = [
            url,
            tmp_path / "store",
            tmp_path / "index",
            when,
            str(number),
            "packs/",
        ]
        argv = [sys.executable, "-m", "tests.support.chunkstore.pusher", *places]
        with Child(argv, cwd=Path(__file__).parents[4]) as child:
            child.wait()
            return child

    assert "commit" not in pushed("before", 3).output
    with pytest.raises(NotFound):
        store.resolve("r", "main")
    found = re.search(r"commit ([0-9a-f]{64}) new (\d+)", pushed("never", 0).output)
    assert found is not None and int(found[2]) < 25 << 20
    commit = in_commit(store, "r", found[1])
    assert {path: one.content for path, one in commit.items() if path} == {
        key.encode(): data for key, data in files.items()
    }


def contents(store: Store, result: PushResult) -> dict[bytes, bytes]:
    """The bytes of all files of a commit."""
    found = in_commit(store, "r", result.commit)
    return {path: seen.content for path, seen in found.items() if seen.kind is Kind.FILE}
