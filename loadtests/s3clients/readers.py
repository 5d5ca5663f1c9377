"""How each client lists a bucket, reads an object, and reads a part of one.

Runs in a client's environment: ``python readers.py CLIENT ENDPOINT BUCKET DIRECTORY``. It compares
all of the bucket with a directory and prints what it did; keys of the client come from the
environment. Nothing but Python and the client is needed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

PARTS = 8  # of each file
BIN = Path(sys.executable).parent


class Boto3:
    def __init__(self, endpoint, bucket):
        import boto3

        self.bucket, self.s3 = bucket, boto3.client("s3", endpoint_url=endpoint)

    def keys(self):
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, PaginationConfig={"PageSize": 3}
        )
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def whole(self, key):
        with tempfile.NamedTemporaryFile() as file:  # by parts of 8 MiB, with If-Match
            self.s3.download_file(self.bucket, key, file.name)
            return Path(file.name).read_bytes()

    def part(self, key, first, size):
        wanted = f"bytes={first}-{first + size - 1}"
        return self.s3.get_object(Bucket=self.bucket, Key=key, Range=wanted)["Body"].read()


class Command:
    """A client that is a program."""

    def run(self, *words):
        done = subprocess.run(words, capture_output=True, check=False, timeout=300)
        if done.returncode:
            raise SystemExit(f"{words}: {done.stderr.decode('utf-8', 'replace')}")
        return done.stdout

    def keys(self):
        with tempfile.TemporaryDirectory() as folder:
            self.copy(folder)
            self.copied = {str(path.relative_to(folder)): path.read_bytes()
                           for path in Path(folder).rglob("*") if path.is_file()}  # fmt: skip
        return self.names()

    def whole(self, key):
        return self.copied[key]


class AwsCli(Command):
    parts = 1  # of each file: a program's start takes a second

    def __init__(self, endpoint, bucket):
        self.bucket = bucket
        self.command = (str(BIN / "python"), str(BIN / "aws"), "--endpoint-url", endpoint)

    def names(self):
        text = self.run(*self.command, "s3api", "list-objects-v2", "--bucket", self.bucket)
        return [one["Key"] for one in json.loads(text)["Contents"]]

    def copy(self, folder):
        self.run(*self.command, "s3", "cp", "--recursive", f"s3://{self.bucket}", folder)
        self.run(*self.command, "s3", "sync", f"s3://{self.bucket}", folder)

    def part(self, key, first, size):
        with tempfile.NamedTemporaryFile() as file:
            wanted = f"bytes={first}-{first + size - 1}"
            self.run(*self.command, "s3api", "get-object", "--bucket", self.bucket, "--key", key,
                     "--range", wanted, file.name)  # fmt: skip
            return Path(file.name).read_bytes()


class S5cmd(Command):
    part = None

    def __init__(self, endpoint, bucket):
        self.bucket = bucket
        self.command = (str(BIN / "s5cmd"), "--endpoint-url", endpoint)

    def names(self):
        text = self.run(*self.command, "--json", "ls", f"s3://{self.bucket}/*").decode()
        base = f"s3://{self.bucket}/"
        return [json.loads(line)["key"].removeprefix(base) for line in text.splitlines()]

    def copy(self, folder):
        self.run(*self.command, "cp", f"s3://{self.bucket}/*", folder + "/")


class Rclone(Command):
    def __init__(self, endpoint, bucket):
        self.root = f":s3,provider=Other,env_auth=true,endpoint='{endpoint}':{bucket}"
        self.command = str(BIN / "rclone")

    def names(self):
        return sorted(json_paths(self.run(self.command, "lsjson", "-R", "--files-only", self.root)))

    def copy(self, folder):
        self.run(self.command, "copy", self.root, folder)
        self.run(self.command, "check", self.root, folder)

    def part(self, key, first, size):
        place = f"{self.root}/{key}"
        return self.run(self.command, "cat", "--offset", str(first), "--count", str(size), place)


def json_paths(text):
    return [one["Path"] for one in json.loads(text)]


class PyArrow:
    def __init__(self, endpoint, bucket):
        from pyarrow import fs

        parts = urlsplit(endpoint)
        self.bucket = bucket
        self.selector = fs.FileSelector(bucket, recursive=True)
        self.kind = fs.FileType.File
        self.fs = fs.S3FileSystem(
            endpoint_override=parts.netloc, scheme=parts.scheme, region="us-east-1"
        )

    def keys(self):
        found = self.fs.get_file_info(self.selector)
        base = f"{self.bucket}/"
        return [one.path.removeprefix(base) for one in found if one.type == self.kind]

    def whole(self, key):
        with self.fs.open_input_stream(f"{self.bucket}/{key}") as file:
            return file.read()

    def part(self, key, first, size):
        with self.fs.open_input_file(f"{self.bucket}/{key}") as file:
            return file.read_at(size, first)

    def table(self, key):
        import pyarrow.parquet as pq

        return pq.read_table(f"{self.bucket}/{key}", filesystem=self.fs, columns=["b"])[
            "b"
        ].to_pylist()


class S3fs:
    def __init__(self, endpoint, bucket):
        import s3fs

        self.bucket = bucket
        self.fs = s3fs.S3FileSystem(client_kwargs={"endpoint_url": endpoint})

    def keys(self):
        return [path.removeprefix(f"{self.bucket}/") for path in self.fs.find(self.bucket)]

    def whole(self, key):
        return self.fs.cat_file(f"{self.bucket}/{key}")

    def part(self, key, first, size):
        with self.fs.open(f"{self.bucket}/{key}", block_size=1 << 20) as file:
            file.seek(first)
            return file.read(size)


class Pandas(S3fs):
    def __init__(self, endpoint, bucket):
        super().__init__(endpoint, bucket)
        self.options = {"client_kwargs": {"endpoint_url": endpoint}}

    def table(self, key):
        import pandas as pd

        found = pd.read_parquet(f"s3://{self.bucket}/{key}", storage_options=self.options)
        return list(found["b"])


class Polars:
    keys = whole = part = None

    def __init__(self, endpoint, bucket):
        self.bucket = bucket
        self.options = {
            "aws_endpoint_url": endpoint,
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
            "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        }

    def table(self, key):
        import polars as pl

        scan = pl.scan_parquet(f"s3://{self.bucket}/{key}", storage_options=self.options)
        return scan.select("b").collect()["b"].to_list()


class DuckDb:
    keys = whole = part = None

    def __init__(self, endpoint, bucket):
        import duckdb
        import duckdb_extension_httpfs as extension

        self.bucket = bucket
        self.db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        path = next(Path(extension.__file__).parent.rglob("*.duckdb_extension"))
        self.db.execute(f"LOAD '{path}'")
        self.db.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', "
            f"SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', REGION 'us-east-1', "
            f"ENDPOINT '{urlsplit(endpoint).netloc}', USE_SSL false, URL_STYLE 'path')"
        )

    def table(self, key):
        one = self.db.sql(f"SELECT b FROM 's3://{self.bucket}/{key}' ORDER BY a").fetchall()
        pattern = key.replace("table", "*")
        two = self.db.sql(f"SELECT b FROM 's3://{self.bucket}/{pattern}' ORDER BY a").fetchall()
        assert one == two
        return [row[0] for row in one]


class Obstore:
    def __init__(self, endpoint, bucket):
        from obstore.store import S3Store

        self.store = S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True},
                             region="us-east-1", virtual_hosted_style_request=False)  # fmt: skip

    def keys(self):
        return [one["path"] for batch in self.store.list() for one in batch]

    def whole(self, key):
        return bytes(self.store.get(key).bytes())

    def part(self, key, first, size):
        return bytes(self.store.get_range(key, start=first, length=size))


class TorchConnector:
    def __init__(self, endpoint, bucket):
        from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

        self.bucket = bucket
        self.s3 = MountpointS3Client(region="us-east-1", endpoint=endpoint, force_path_style=True)

    def keys(self):
        pages = self.s3.list_objects(self.bucket)
        return [one.key for page in pages for one in page.object_info]

    def whole(self, key):
        return b"".join(self.s3.get_object(self.bucket, key))

    def part(self, key, first, size):
        return b"".join(self.s3.get_object(self.bucket, key, start=first, end=first + size))


class Minio:
    def __init__(self, endpoint, bucket):
        from minio import Minio as Client

        self.bucket = bucket
        self.s3 = Client(
            endpoint=urlsplit(endpoint).netloc,
            access_key=os.environ["AWS_ACCESS_KEY_ID"],
            secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            secure=False,
        )

    def keys(self):
        return [one.object_name for one in self.s3.list_objects(self.bucket, recursive=True)]

    def whole(self, key):
        return self.part(key, 0, 0)

    def part(self, key, first, size):
        answer = self.s3.get_object(
            bucket_name=self.bucket, object_name=key, offset=first, length=size
        )
        try:
            return answer.read()
        finally:
            answer.close()
            answer.release_conn()


CLIENTS = {
    "boto3": Boto3,
    "aws-cli": AwsCli,
    "s5cmd": S5cmd,
    "pyarrow": PyArrow,
    "pandas": Pandas,
    "polars": Polars,
    "duckdb": DuckDb,
    "s3fs": S3fs,
    "obstore": Obstore,
    "s3torchconnectorclient": TorchConnector,
    "minio": Minio,
    "rclone": Rclone,
}


def main(name, endpoint, bucket, folder):
    """Compares everything; ends with an error at the first difference."""
    root = Path(folder)
    wanted = {str(path.relative_to(root)): path.read_bytes()
              for path in root.rglob("*") if path.is_file()}  # fmt: skip
    client = CLIENTS[name](endpoint, bucket)
    done = []
    if client.keys is not None:
        order = sorted(wanted, key=str.encode)
        keys = client.keys()
        ordered = keys if name not in ("pyarrow", "minio") else sorted(keys, key=str.encode)
        assert ordered == order, f"keys: {keys}, not {order}"
        done.append(f"{len(keys)} keys listed")
        for key, content in wanted.items():
            assert client.whole(key) == content, f"{key}: other bytes"
        done.append("each read whole")
    if client.part is not None:
        chance, parts = random.Random(1), 0
        for key, content in wanted.items():
            for _ in range(getattr(client, "parts", PARTS) if content else 0):
                first = chance.randrange(len(content))
                size = chance.randint(1, min(len(content) - first, 3 << 20))
                assert client.part(key, first, size) == content[first : first + size], key
                parts += 1
        done.append(f"{parts} parts read")
    if hasattr(client, "table"):
        assert client.table("tables/table.parquet") == [n * n for n in range(100_000)]
        done.append("a column of a parquet file")
    print(", ".join(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
