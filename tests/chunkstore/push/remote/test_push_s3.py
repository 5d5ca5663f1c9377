"""A push of a bucket by worker processes, which open it by its URL."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from loadtests.services import S3Server
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.objects.s3_boto import S3Options
from lodefs.chunkstore.objects.s3_bucket import S3Bucket
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.store import Store, create_store
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


def contents(store: Store, result: PushResult) -> dict[bytes, bytes]:
    """The bytes of all files of a commit."""
    found = in_commit(store, "r", result.commit)
    return {path: seen.content for path, seen in found.items() if seen.kind is Kind.FILE}
