"""Buckets of another S3: read through the proxy with the node's credentials, by who may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from loadtests.services import S3Server
from lodefs.chunkstore.objects.s3.sigv4 import Credentials
from lodefs.proxy.http.tokens import create_s3_token
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.s3.forwarding import RawS3
from tests.support.proxy.fake_node import DictNode, RunningProxy, start_proxy

BIG = bytes(range(256)) * 9000
OBJECTS = {"a/x": b"1", "é +%@": b"special", "zero": b"", "big": BIG}


def client(proxy: RunningProxy, name: str, secret: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{proxy.s3_port}",
        region_name="eu-west-1",
        aws_access_key_id=name,
        aws_secret_access_key=secret,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
        ),
    )


@contextmanager
def forwarding(tmp_path: Path, server: S3Server, *patterns: str, secret: str = "") -> Iterator[Any]:
    """A client of a proxy that passes reads on to a server; its key has these patterns."""
    path = tmp_path / "tokens"
    key = create_s3_token(path, "team", [*patterns], now_s=1).s3_secret
    credentials = Credentials(server.access_key, secret or server.secret_key)
    other = RawS3(server.endpoint_url, "us-east-1", lambda: credentials)
    settings = S3Settings(other=other, withheld="the-store")
    with start_proxy(DictNode({b"f": b"own"}), tokens_file=path, s3=settings) as proxy:
        yield client(proxy, "team", key)
        proxy.until(lambda: proxy.server.metrics.total("streams") == 0)


def filled(server: S3Server) -> str:
    """A bucket with the objects."""
    bucket = server.make_bucket()
    for key, content in OBJECTS.items():
        server.client().put_object(Bucket=bucket, Key=key, Body=content)
    return bucket


def code_of(call: Any, **arguments: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    found = caught.value.response
    return found["Error"]["Code"], found["ResponseMetadata"]["HTTPStatusCode"]


def check_reads(s3: Any, bucket: str, plain: Any) -> None:
    """What the other S3 answers comes as it is; what is no read does not get there."""
    found = s3.list_objects_v2(Bucket=bucket, MaxKeys=2)
    assert [one["Key"] for one in found["Contents"]] == ["a/x", "big"]
    found = s3.list_objects_v2(Bucket=bucket, ContinuationToken=found["NextContinuationToken"])
    assert [one["Key"] for one in found["Contents"]] == ["zero", "é +%@"]
    assert s3.list_objects(Bucket=bucket, Delimiter="/")["CommonPrefixes"] == [{"Prefix": "a/"}]
    for key, content in OBJECTS.items():
        got = s3.get_object(Bucket=bucket, Key=key)
        assert (got["Body"].read(), got["ContentLength"]) == (content, len(content))
        head = s3.head_object(Bucket=bucket, Key=key)
        assert (head["ContentLength"], head["ETag"]) == (len(content), got["ETag"])
    part = s3.get_object(Bucket=bucket, Key="big", Range="bytes=5-700000")
    assert part["Body"].read() == BIG[5:700_001]
    assert code_of(s3.get_object, Bucket=bucket, Key="big", IfNoneMatch=part["ETag"])[1] == 304
    assert code_of(s3.get_object, Bucket=bucket, Key="big", IfMatch='"x"')[1] == 412
    assert code_of(s3.get_object, Bucket=bucket, Key="none") == ("NoSuchKey", 404)
    assert code_of(s3.head_object, Bucket=bucket, Key="none")[1] == 404
    assert s3.head_bucket(Bucket=bucket)
    url = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "a/x"})
    with urlopen(url, timeout=60) as got:
        assert got.read() == b"1"
    # nothing that writes, no settings of buckets, no path out of the bucket
    assert code_of(s3.put_object, Bucket=bucket, Key="new", Body=b"x")[1] == 405
    assert code_of(s3.delete_object, Bucket=bucket, Key="big")[1] == 405
    assert code_of(s3.get_bucket_policy, Bucket=bucket) == ("NotImplemented", 501)
    assert code_of(s3.get_object_acl, Bucket=bucket, Key="big") == ("NotImplemented", 501)
    assert code_of(s3.get_object, Bucket=bucket, Key="../other/x")[1] == 400
    assert [one["Key"] for one in plain.list_objects_v2(Bucket=bucket)["Contents"]] == sorted(
        OBJECTS, key=str.encode
    )


def test_reads_of_memory(tmp_path: Path, moto: S3Server) -> None:
    """Reads come through as moto answers them."""
    bucket = filled(moto)
    with forwarding(tmp_path, moto, "*", f"s3://{bucket}") as s3:
        check_reads(s3, bucket, moto.client())


@pytest.mark.rgw
def test_reads_of_ceph(tmp_path: Path, rgw: S3Server) -> None:
    """Reads come through as Ceph answers them."""
    bucket = filled(rgw)
    with forwarding(tmp_path, rgw, f"s3://{bucket[:8]}*") as s3:
        check_reads(s3, bucket, rgw.client())


def test_who_may_read_other_buckets(tmp_path: Path, moto: S3Server) -> None:
    """A key needs a pattern that says s3://; '*' is of repositories alone. Others learn nothing."""
    bucket = filled(moto)
    moto.client().create_bucket(Bucket="the-store")
    with forwarding(tmp_path, moto, "*", "s3://another-*", "s3://the-*") as s3:
        assert code_of(s3.list_objects_v2, Bucket="the-store") == ("NoSuchBucket", 404)
        assert code_of(s3.get_object, Bucket=bucket, Key="a/x") == ("NoSuchBucket", 404)
        assert code_of(s3.list_objects_v2, Bucket=bucket) == ("NoSuchBucket", 404)
        assert code_of(s3.list_objects_v2, Bucket="another-one") == ("NoSuchBucket", 404)
        assert s3.get_object(Bucket="lodefs", Key="demo@main/f")["Body"].read() == b"own"
        assert [one["Name"] for one in s3.list_buckets()["Buckets"]] == ["lodefs"]


@pytest.mark.rgw
def test_credentials_that_are_refused(tmp_path: Path, rgw: S3Server) -> None:
    """The client is told, and not which credentials the node has."""
    bucket = filled(rgw)
    with (
        forwarding(tmp_path, rgw, "s3://*", secret="wrong") as s3,
        pytest.raises(ClientError) as caught,
    ):
        s3.get_object(Bucket=bucket, Key="a/x")
    assert caught.value.response["Error"]["Code"] == "AccessDenied"
    assert rgw.access_key not in str(caught.value.response)


def test_an_endpoint_that_is_not_there(tmp_path: Path, moto: S3Server) -> None:
    """It costs an error that clients repeat, and not the proxy."""
    gone = S3Server("http://127.0.0.1:1", "key", "secret")
    with forwarding(tmp_path, gone, "s3://*") as s3:
        assert code_of(s3.get_object, Bucket="any-bucket", Key="x") == ("SlowDown", 503)
        assert s3.list_buckets()
