"""``lodefs import`` of a bucket on a real S3 server, and reading it through a proxy and a mount."""

from __future__ import annotations

import errno
import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

import pytest

from loadtests.bench.sides import mounted, node
from loadtests.cli import Lodefs
from loadtests.measure import CommandError, Run
from loadtests.services import S3Server
from lodefs import app
from lodefs.api.importing import SourcePlace, place_of, readable_url
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings
from lodefs.settings.session import Session

SETTINGS = """
[sources.field-7]
url = "s3://{bucket}/in put"
endpoint_url = "{endpoint_url}"
"""
LARGE_BYTES = 3 << 20


def files_of(bucket: str, rgw: S3Server) -> dict[str, bytes]:
    """Puts large and small objects into a bucket, and returns them."""
    client, random = rgw.client(), Random(5)
    files = {f"d/ü {n}": random.randbytes(LARGE_BYTES + n) for n in range(4)}
    files |= {f"d/small{n}": random.randbytes(500) for n in range(9)}
    for key, data in files.items():
        client.put_object(Bucket=bucket, Key=f"in put/{key}", Body=data)
    return files


class Here(Lodefs):
    """Runs commands in this process: others show that they are programs, and each would load a
    client of S3 first."""

    def run(self, *words: str | Path, watch_memory: bool = False) -> Run:
        """As of Lodefs. A mount comes of a program, since its processes are forks."""
        if {"mount", "unmount"} & {*words}:
            return super().run(*words, watch_memory=watch_memory)
        said, failed = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(failed):
            for name, value in self.environment().items():
                patch.setenv(name, value)
            code = app.run([str(word) for word in words], Session(dict(os.environ)))
        if code != 0:
            raise CommandError(f"{words}: exit code {code}: {failed.getvalue()}")
        return Run(0.0, 0.0, 0, said.getvalue())


def store_in(bucket: str, rgw: S3Server, folder: Path) -> Lodefs:
    """Makes a store in the same bucket, whose readers know the source."""
    environment = {**os.environ, "AWS_ENDPOINT_URL": rgw.endpoint_url}
    lodefs = Here(f"s3://{bucket}/store", folder / "home", environment)
    lodefs.home.mkdir()
    lodefs.run("init", lodefs.store)
    settings = SETTINGS.format(bucket=bucket, endpoint_url=rgw.endpoint_url)
    (lodefs.home / "lodefs.toml").write_text(settings)
    return lodefs


@pytest.mark.rgw
@pytest.mark.fuse
@pytest.mark.slow
def test_a_bucket_read_in_place(rgw: S3Server, rgw_bucket: str, tmp_path: Path) -> None:
    """A mount shows every byte, though the store has few of them; an object that is overwritten or
    deleted before it is cached is EIO, and the other files stay readable."""
    client, files = rgw.client(), files_of(rgw_bucket, rgw)
    lodefs = store_in(rgw_bucket, rgw, tmp_path)
    imported = lodefs.json("import", f"s3://{rgw_bucket}/in put/", "bench")
    assert imported["files"] == len(files)
    assert imported["stored_bytes"] < 0.02 * imported["size_bytes"]
    assert lodefs.json("import", f"s3://{rgw_bucket}/in put", "bench")["files_read"] == 0
    with (
        node(lodefs, tmp_path / "node") as proxy,
        mounted(lodefs, proxy, tmp_path / "mnt") as target,
    ):
        found = {key: (target / key).read_bytes() for key in files if key != "d/ü 3"}
        assert found == {key: files[key] for key in found}
        client.put_object(Bucket=rgw_bucket, Key="in put/d/ü 3", Body=files["d/ü 0"])
        client.delete_object(Bucket=rgw_bucket, Key="in put/d/ü 2")
        with pytest.raises(OSError) as raised:
            (target / "d/ü 3").read_bytes()
        assert raised.value.errno == errno.EIO
        assert (target / "d/ü 2").read_bytes() == files["d/ü 2"]  # from the node's cache
        assert (target / "d/small3").read_bytes() == files["d/small3"]
    with pytest.raises(CommandError, match=r"in put/d/ü 2 .*source field-7.* is gone"):
        lodefs.run("pull", "bench", tmp_path / "copy")


@pytest.mark.rgw
@pytest.mark.slow
def test_an_import_by_many_processes(rgw: S3Server, rgw_bucket: str, tmp_path: Path) -> None:
    """An executor's and an array's commits have the tree of a plain import, and as few bytes."""
    files_of(rgw_bucket, rgw)
    lodefs, url = store_in(rgw_bucket, rgw, tmp_path), f"s3://{rgw_bucket}/in put"
    imported = lodefs.json("import", url, "executor", "--executor", "processes:2")
    assert imported["stored_bytes"] < 0.02 * imported["size_bytes"]
    assert lodefs.json("import", url, "executor")["unchanged"]
    lodefs.run("plan", "create", "p", url, "array", "--in-place")
    for task in ("2/2", "1/2", "2/2"):
        lodefs.run("plan", "part", "p", task, "--source", url)
    finished = lodefs.json("plan", "finish", "p")
    assert (finished["files"], finished["size_bytes"]) == (13, imported["size_bytes"])
    assert lodefs.json("import", url, "array")["unchanged"]
    lodefs.run("pull", "array", tmp_path / "copy")


@pytest.mark.rgw
@pytest.mark.fuse
@pytest.mark.slow
def test_a_bucket_that_is_adopted_and_deleted(
    rgw: S3Server, rgw_bucket: str, tmp_path: Path
) -> None:
    """Every byte is there afterwards, also for a proxy and a mount that know where it lay."""
    client, files = rgw.client(), files_of(rgw_bucket, rgw)
    lodefs = store_in(rgw_bucket, rgw, tmp_path)
    lodefs.run("import", f"s3://{rgw_bucket}/in put/", "bench")
    assert lodefs.json("verify", "--sources", "bench")["source_objects"] == 4
    with (
        node(lodefs, tmp_path / "node") as proxy,
        mounted(lodefs, proxy, tmp_path / "mnt") as target,
    ):
        with (target / "d/ü 0").open("rb", buffering=0) as file:
            assert file.read(9) == files["d/ü 0"][:9]
        adopted = lodefs.json("adopt", "bench")
        assert adopted["lost"] == []
        assert adopted["size_bytes"] == sum(map(len, files.values())) - 9 * 500
        for key in files:
            client.delete_object(Bucket=rgw_bucket, Key=f"in put/{key}")
        assert {key: (target / key).read_bytes() for key in files} == files
    (lodefs.home / "lodefs.toml").unlink()
    checked = lodefs.json("verify", "--data", "--sources")
    assert (checked["problems"], checked["source_objects"]) == ([], 0)


SOURCES = {
    "all": SourceSettings("s3://lake"),
    "cats": SourceSettings("s3://lake/a b/cats/", "http://h:1", None, "me & you"),
}


@pytest.mark.parametrize(
    ("url", "name", "place"),
    [
        ("s3://lake", None, ("all", "")),
        ("s3://lake/dogs/", None, ("all", "dogs/")),
        ("s3://lake/a b/cats", None, ("cats", "")),
        ("s3://lake/a b/cats/x%3Fy/", None, ("cats", "x?y/")),
        ("s3://lake/a b/cats2", None, ("all", "a b/cats2/")),
        ("s3://lake/a b/cats/x", "all", ("all", "a b/cats/x/")),
    ],
)
def test_the_source_of_a_url(url: str, name: str | None, place: tuple[str, str]) -> None:
    """It is the one that is named, or the one with the longest URL above."""
    assert place_of(url, SOURCES, name) == SourcePlace(*place)


@pytest.mark.parametrize(
    ("url", "name", "match"),
    [
        ("s3://other/x y", None, r"\[sources.other-x-y\] and below it url = \"s3://other/x y\""),
        ("s3://lake/x", "new", r"\[sources.new\]"),
        ("s3://lake/x", "cats", "not below s3://lake/a b/cats"),
        ("gs://lake/x", None, "lodefs push"),
        ("s3://lake/x?region=eu", None, "in the settings of its source"),
        ("./cats", None, "only s3://"),
    ],
)
def test_urls_without_a_source(url: str, name: str | None, match: str) -> None:
    """The error says which lines are to be added, or what can be done instead."""
    with pytest.raises(InvalidInput, match=match):
        place_of(url, SOURCES, name)


def test_the_url_that_is_read() -> None:
    """A source's endpoint and credentials are in it, and nothing secret."""
    url = "s3://lake/a b/cats?endpoint_url=http%3A%2F%2Fh%3A1&profile=me%20%26%20you"
    assert readable_url("s3://lake/a b/cats/", SOURCES["cats"]) == url
    assert readable_url("s3://lake/x", SOURCES["all"]) == "s3://lake/x"
