"""Reads from Python: fsspec against its local file system, and DataLoader, warm."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from loadtests import examples
from loadtests.bench.origins import ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.cli import Lodefs
from loadtests.errors import LoadtestError
from loadtests.measure import load_note
from loadtests.results import Result

FILES, FILE_BYTES, FILES_IN_FOLDER = 20_000, 10_000, 1000
LARGE_BYTES = 256 << 20
MANY, MANY_IN_FOLDER = 100_000, 1000
ROUNDS = 7
RANDOM_READS, RANDOM_BYTES = 1000, 64 << 10
SMALL_READS = 2000
PIECE_BYTES = 1 << 20
MATRIX_RUNS = 100
CHILD = Path(__file__).parents[1] / "dataloader_child.py"
SECONDS_MAX = 1800.0


def python(scratch: Path) -> Result:
    """fsspec on lodefs and on the local disk, in turns; processor time, since both are in memory.
    glob against find(1) on the mount."""
    from fsspec.implementations.local import LocalFileSystem

    from lodefs.fs import LodefsFileSystem

    result = Result("python")
    source = scratch / "source"
    write_files(source)
    write_large(source)
    write_many(source)
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", lodefs.store)
    lodefs.run("push", source, REPO)
    with node(lodefs, scratch / "node") as proxy:
        lodefs.run("--proxy", proxy.url, "warm", REPO)
        fs = LodefsFileSystem(proxy=proxy.url)
        root = f"lodefs://{REPO}@main"
        sides = [(LocalFileSystem(), str(source)), (fs, root)]
        asks = {_random: 0.7, _small: 0.7, _sequential: 0.9}
        for measure, at_least in asks.items():
            ratio = _ratio(measure, sides)
            result.add(f"{measure.__doc__}: times the local disk", ratio, "", at_least=at_least)
        with mounted(lodefs, proxy, scratch / "mnt") as place:
            times: tuple[list[float], list[float]] = ([], [])
            find = ["find", str(place / "many"), "-type", "f", "-name", "*.txt"]
            for _ in range(ROUNDS):
                times[0].append(_seconds(lambda: subprocess.check_output(find)))
                fresh = LodefsFileSystem(proxy=proxy.url, skip_instance_cache=True)
                fresh.info(root)
                times[1].append(_seconds(partial(fresh.glob, f"{root}/many/**/*.txt")))
            ratio = min(times[1]) / min(times[0])
            result.add("glob of 100,000 files: times find on the mount", ratio, "", at_most=2.0)
        fs.find(root)
        result.add("a pickle after listing them", len(pickle.dumps(fs)), "B", at_most=4096)
    result.notes.append(load_note())
    return result


def dataloader(scratch: Path) -> Result:
    """torch's DataLoader with 4 workers: lodefs, ext4, s3fs on Ceph RGW; and all ways to start
    workers while the branch moves."""
    torch = examples.made("torch-s3", Path(examples.DEBIAN_PYTHON), ["s3fs"], is_debian=True)
    result = Result("dataloader")
    source = scratch / "source"
    write_files(source)
    with ceph_origin(scratch) as origin, node(origin.lodefs, scratch / "node") as proxy:
        origin.lodefs.run("push", source, REPO)
        origin.lodefs.run("--proxy", proxy.url, "warm", REPO)
        origin.client.create_bucket(Bucket="plain")
        for path in sorted(path for path in source.rglob("*") if path.is_file())[:2000]:
            origin.client.upload_file(str(path), "plain", str(path.relative_to(source)))
        env = {**os.environ, **origin.lodefs.environment()}
        found = json.loads(
            _child(torch, env, "epochs", proxy.url, str(source), origin.endpoint_url)
            .strip()
            .splitlines()[-1]
        )
        for epoch in (0, 1):
            ours, local, s3 = (max(found[side][epoch::2]) for side in ("lodefs", "ext4", "s3fs"))
            name = f"epoch {epoch + 1}, 20,000 files of 10 KB, 4 workers"
            result.add(f"{name}: lodefs", ours, "files/s")
            result.add(f"{name}: times ext4", ours / local, "", at_least=0.8)
            result.add(f"{name}: times s3fs", ours / s3, "", at_least=10.0)
        _matrix(result, origin.lodefs, torch, env, proxy.url, source)
    result.notes.append(load_note())
    return result


def _matrix(
    result: Result, lodefs: Lodefs, torch: Path, env: dict[str, str], proxy: str, source: Path
) -> None:
    command = [str(torch), str(CHILD), "matrix", proxy, str(MATRIX_RUNS)]
    began_s = time.monotonic()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        done = pushes = 0
        assert child.stdout is not None
        for _ in child.stdout:
            done += 1
            (source / "files" / "00" / "moving").write_text(str(done))
            lodefs.run("push", source, REPO)  # moves the branch
            pushes += 1
            if time.monotonic() - began_s > SECONDS_MAX:
                child.kill()
    result.add("runs of workers that ended, with one commit each", done, "", at_least=MATRIX_RUNS)
    result.add("pushes to the branch meanwhile", pushes, "")


def _child(python_path: Path, env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [str(python_path), str(CHILD), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise LoadtestError(f"the DataLoader failed: {done.stderr[-3000:]}")
    return done.stdout


def write_files(source: Path) -> None:
    """20,000 files of 10 KB."""
    maker = random.Random(1)
    for number in range(FILES):
        folder = source / "files" / f"{number // FILES_IN_FOLDER:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:05d}.bin").write_bytes(maker.randbytes(FILE_BYTES))


def write_large(source: Path) -> None:
    """A file of 256 MiB."""
    maker = random.Random(2)
    with (source / "large.bin").open("wb") as file:
        for _ in range(LARGE_BYTES // PIECE_BYTES):
            file.write(maker.randbytes(PIECE_BYTES))


def write_many(source: Path) -> None:
    """100,000 files of some bytes."""
    for number in range(MANY):
        folder = source / "many" / f"{number // MANY_IN_FOLDER:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06d}.txt").write_text(f"{number}\n")


def _random(fs: Any, root: str) -> None:
    """random 64 KiB"""
    places = random.Random(3)
    for _ in range(RANDOM_READS):
        first = places.randrange(LARGE_BYTES - RANDOM_BYTES)
        fs.cat_file(f"{root}/large.bin", first, first + RANDOM_BYTES)


def _small(fs: Any, root: str) -> None:
    """files of 10 KB"""
    places = random.Random(4)
    for _ in range(SMALL_READS):
        number = places.randrange(FILES)
        fs.cat_file(f"{root}/files/{number // FILES_IN_FOLDER:02d}/{number:05d}.bin")


def _sequential(fs: Any, root: str) -> None:
    """a large file in pieces of 1 MiB"""
    with fs.open(f"{root}/large.bin", "rb") as file:
        while file.read(PIECE_BYTES):
            pass


def _ratio(measure: Callable[[Any, str], None], sides: list[tuple[Any, str]]) -> float:
    """How many times as fast the second side is by processor time, in turn."""
    ratios = []
    for number in range(ROUNDS + 1):
        times = []
        for fs, root in sides:
            began_s = time.process_time()
            measure(fs, root)
            times.append(time.process_time() - began_s)
        if number:  # the first round opens connections and files
            ratios.append(times[0] / times[1])
    print(measure.__doc__, [round(one, 2) for one in ratios], file=sys.stderr)
    return median(ratios)


def _seconds(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s
