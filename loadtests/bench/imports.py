"""Benchmarks of an import in place: what it reads and stores, and how fast its files are read."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.cli import Lodefs
from loadtests.measure import drop_page_cache, read_compared
from loadtests.results import Result
from loadtests.services.generatedbucket import generated_bucket

OBJECTS, OBJECT_BYTES = 1250, 8 << 20  # 10 GiB
ROUNDS = 3
SIDES = ("imported", "pushed")
SETTINGS = '[sources.there]\nurl = "s3://{}"\nendpoint_url = "{}"\n'


def import_in_place(scratch: Path) -> Result:
    """10 GiB in objects of 8 MiB, made as they are read, are imported to a directory; then a file
    of 1 GiB on Ceph RGW is read cold, imported and pushed, in turns."""
    result = Result("import")
    _import(scratch, result)
    with ceph_origin(scratch / "ceph") as origin:
        _compare_reads(scratch, origin, result)
    return result


def _import(scratch: Path, result: Result) -> None:
    data_bytes = OBJECTS * OBJECT_BYTES
    with generated_bucket(OBJECTS, OBJECT_BYTES) as bucket:
        env = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        lodefs = Lodefs(str(scratch / "store"), scratch / "home", env)
        _name_source(lodefs, "data", bucket.endpoint_url)
        lodefs.run("init", lodefs.store)
        run = lodefs.run("import", "s3://data", REPO, watch_memory=True)
        read_bytes = bucket.sent_bytes()
        result.add("import: rate", data_bytes / 1e6 / run.seconds, "MB/s")
        result.add("bytes read / bytes of data", read_bytes / data_bytes, "x", at_most=1.05)
        stored = (one for one in Path(lodefs.store).rglob("*") if one.is_file())
        stored_bytes = sum(one.stat().st_size for one in stored)
        result.add("bytes stored / bytes of data", 100 * stored_bytes / data_bytes, "%", at_most=2)
        start = perf_counter()
        again = lodefs.json("import", "s3://data", REPO)
        result.add("second import", perf_counter() - start, "s")
        result.add("second import: bytes read", bucket.sent_bytes() - read_bytes, "B", at_most=0)
        result.add("second import: files read", again["files_read"], "", at_most=0)
        parts = replace(lodefs, store=str(scratch / "parts"), home=scratch / "home-parts")
        _name_source(parts, "data", bucket.endpoint_url)
        parts.run("init", parts.store)
        run = parts.run("import", "s3://data", REPO, "--executor", "processes:2")
        result.add("import by two processes: rate", data_bytes / 1e6 / run.seconds, "MB/s")
        same = parts.json("import", "s3://data", REPO)["unchanged"]
        result.add("a plain import after it finds the same", int(same), "", at_least=1)


def _compare_reads(scratch: Path, origin: Origin, result: Result) -> None:
    """The same file in a bucket, imported and pushed to one store; each node reads it from S3."""
    source = corpora.random_file()
    with source.open("rb") as file:
        origin.client.upload_fileobj(file, origin.bucket, f"plain/{source.name}")
    lodefs = replace(origin.lodefs, home=scratch / "home-ceph")
    _name_source(lodefs, f"{origin.bucket}/plain", origin.endpoint_url)
    lodefs.run("import", f"s3://{origin.bucket}/plain", f"{REPO}:imported")
    lodefs.run("push", source.parent, f"{REPO}:pushed")
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(ROUNDS):
        for side in SIDES[:: 1 if number % 2 else -1]:
            folder = scratch / f"node-{number}-{side}"
            seconds[side].append(_read_cold(lodefs, folder, f"{side}/{source.name}", source))
    size = source.stat().st_size
    rates = {side: size / 1e6 / statistics.median(found) for side, found in seconds.items()}
    for side in SIDES:
        result.add(f"cold sequential read, {side}", rates[side], "MB/s")
    result.ratio("cold read", rates["imported"], {"pushed": rates["pushed"]}, at_least=0.9)


def _name_source(lodefs: Lodefs, place: str, endpoint_url: str) -> None:
    lodefs.home.mkdir(parents=True, exist_ok=True)
    (lodefs.home / "lodefs.toml").write_text(SETTINGS.format(place, endpoint_url))


def _read_cold(lodefs: Lodefs, folder: Path, path: str, source: Path) -> float:
    """Seconds for a read by a new node, of which some bytes are compared."""
    with node(lodefs, folder) as proxy, mounted(lodefs, proxy, folder / "mnt") as target:
        drop_page_cache()
        start = perf_counter()
        read_compared(target / path, source)
        return perf_counter() - start
