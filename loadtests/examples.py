"""Runs the examples of the pages for Python, with the packages that each needs: ``./run examples``.

A block begins with ``python`` and the packages that it needs. What it prints stands in the block
``text`` after it, or it prints nothing; ``…`` stands for what differs from run to run.
Environments are made below ``~/.cache/lodefs-dev/examples`` and kept; torch is Debian's
(python3-torch), and so old are the transformers. What needs a later torch, or a trainer, is not
run. A block that needs ``mpi4py`` runs on three ranks; one that needs ``runai-model-streamer`` has
a key of a proxy with an S3 endpoint in its environment.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from loadtests.cli import Lodefs
from loadtests.services import HOST, free_port
from lodefs.proxy.http.tokens import create_s3_token

ROOT = Path(__file__).parents[1]
NAMES = ("python", "fsspec", "pytorch", "weights", "many-machines")
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in NAMES)
PACKAGES = ["pandas", "pyarrow", "polars", "duckdb", "zarr", "datasets", "webdataset"]
PACKAGES += ["safetensors", "universal_pathlib", "distributed", "ray[client,data]", "mpi4py"]
PACKAGES += ["pyspark>=4"]
WITH_TORCH = ["safetensors", "transformers==4.40.2", "numpy<2", "humanize", "boto3"]
STREAMER = "runai-model-streamer"  # asks for a later torch, and works with this one
ALONE = [STREAMER, f"{STREAMER}-s3"]
NOT_RUN = frozenset({"torch2", "trainer", "lightning"})  # too large to be installed
DEBIAN_PYTHON = "/usr/bin/python3"
RANKS = ["mpiexec", "-n", "3"]
ANY_MACHINE = {  # Open MPI: also as root, and with more ranks than processors
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
TIMEOUT_S = 300.0
VARIES = "…"  # in a line of output, stands for anything


class Example(NamedTuple):
    """A block of code, the heading above it, its number below that, what it needs and prints."""

    heading: str
    number: int
    needs: frozenset[str]
    code: str
    output: str

    def __str__(self) -> str:
        return f"{self.heading.replace(' ', '-')}-{self.number}"

    def difference(self, printed: str) -> str:
        """The difference between its output and the page; "" if there is none."""
        return difference(self.output, printed)


def difference(shown: str, printed: str) -> str:
    """The difference between an output and a page; "" if there is none."""
    if re.fullmatch(".*".join(map(re.escape, shown.split(VARIES))), printed):
        return ""
    lines = difflib.unified_diff(
        shown.splitlines(), printed.splitlines(), "the page", "printed", lineterm=""
    )
    return "\n".join(lines)


def examples_of(document: str) -> list[Example]:
    """The examples of a document, in their order."""
    found: list[Example] = []
    heading, number = "", 0
    pattern = (
        r"^#+ (?P<heading>.*)$|^```python(?P<needs>.*)\n(?P<code>(?:.*\n)*?)```"
        r"(?:\n\n```text\n(?P<output>(?:.*\n)*?)```)?"
    )
    for match in re.finditer(pattern, document, re.MULTILINE):
        if match["heading"] is not None:
            heading, number = match["heading"], 0
        else:
            number += 1
            needs = frozenset(match["needs"].split())
            output = match["output"] or ""
            found.append(Example(heading, number, needs, match["code"], output))
    return found


def pages() -> str:
    """All pages, one after the other: later examples read what earlier ones have written."""
    return "\n".join(page.read_text() for page in PAGES)


def write_plain_files(folder: Path) -> None:
    """Makes data for examples that no package needs: images, captions, shards."""
    for name in ("images", "shards"):
        (folder / name).mkdir(parents=True)
    for number in range(1, 7):
        (folder / "images" / f"{number}.jpg").write_bytes(bytes([number]) * 5000 * number)
    captions = "".join(f"{number}.jpg,caption {number}\n" for number in range(1, 1000))
    (folder / "captions.csv").write_text("image,caption\n" + captions)
    for shard in range(3):
        with tarfile.open(folder / "shards" / f"{shard:03d}.tar", "w") as tar:
            for number in range(4):
                for field, data in (("jpg", b"image" * 100), ("cls", b"%d" % number)):
                    info = tarfile.TarInfo(f"{shard}-{number}.{field}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


TABLES = """
import os, sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

folder = sys.argv[1]
columns = {f"c{number}": np.random.default_rng(number).integers(0, 1 << 40, 60_000)
           for number in range(1, 10)}
pq.write_table(pa.table(columns), f"{folder}/table.parquet", row_group_size=15_000)
os.makedirs(f"{folder}/tables", exist_ok=True)
for part in range(3):
    pq.write_table(pa.table(columns), f"{folder}/tables/{part}.parquet")
group = zarr.open_group(f"{folder}/weather.zarr", mode="w")
group.create_array("temperature", data=np.arange(10_000).reshape(100, 100), chunks=(10, 10))
"""


def main(*only: str) -> int:
    """Runs all examples, or those whose names have a prefix. Returns 1 if one fails."""
    with_packages = made("packages", Path(sys.executable), PACKAGES)
    with_torch = made_with_torch()
    failed = []
    with tempfile.TemporaryDirectory(
        prefix="lodefs-examples-", ignore_cleanup_errors=True
    ) as place:
        folder = Path(place)
        environment = {
            **os.environ,
            **ANY_MACHINE,
            "HOME": place,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "LODEFS_STORE": str(folder / "store"),
            "LODEFS_CONFIG": os.devnull,
        }
        write_plain_files(folder / "flickr30k")
        data = str(folder / "flickr30k")
        if run([str(with_packages)], TABLES, folder, environment, data) is None:
            return 1
        init = [str(with_packages), "-m", "lodefs.main", "init", environment["LODEFS_STORE"]]
        subprocess.run(init, check=True, env=environment, stdout=subprocess.DEVNULL)
        try:
            for number, example in enumerate(examples_of(pages())):
                if number and only and not str(example).startswith(only):
                    continue  # the first one pushes what the others read
                if example.needs & NOT_RUN:
                    print(f"not run {example}", flush=True)
                    continue
                python = with_torch if "torch" in example.needs else with_packages
                start = [str(python)]
                if "mpi4py" in example.needs:
                    start = [*RANKS, str(python), "-m", "mpi4py.futures"]
                with s3_client(example, folder) as more:
                    printed = run(start, example.code, folder, {**environment, **more})
                differs = "it failed" if printed is None else example.difference(printed)
                print(f"{'FAILED' if differs else 'ok    '}  {example}", flush=True)
                if differs:
                    print(differs)
                    failed.append(example)
        finally:
            for path in folder.glob("cache/lodefs/*/pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(path.read_text()), signal.SIGTERM)
    return 1 if failed else 0


@contextmanager
def s3_client(example: Example, folder: Path) -> Iterator[dict[str, str]]:
    """Serves the store in ``folder`` by S3 if an example needs it. Yields a client's variables."""
    if STREAMER not in example.needs:
        yield {}
        return
    tokens, port = folder / "tokens", free_port()
    key = create_s3_token(tokens, "team-a", ["models/*"], now_s=1)
    lodefs = Lodefs(str(folder / "store"), folder / "s3-home", {})
    words = ("--s3-listen", f"{HOST}:{port}", "--tokens", str(tokens))
    with lodefs.proxy(folder / "s3-node", *words):
        yield {
            "AWS_ACCESS_KEY_ID": "team-a",
            "AWS_SECRET_ACCESS_KEY": key.s3_secret,
            "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        }


def made_with_torch() -> Path:
    """The interpreter of the environment with Debian's torch, and what goes with it."""
    return made("torch", Path(DEBIAN_PYTHON), WITH_TORCH, ALONE, is_debian=True)


def made(
    name: str,
    base: Path,
    packages: list[str],
    alone: Sequence[str] = (),
    *,
    is_debian: bool = False,
) -> Path:
    """The interpreter of an environment with packages and this checkout, made if it is not there.
    The packages of ``alone`` come without what they ask for."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    env = home / "lodefs-dev" / "examples" / name
    stamp, python = env / "lodefs-packages", env / "bin" / "python"
    wanted = " ".join([str(ROOT), *packages, *alone])
    if not stamp.exists() or stamp.read_text() != wanted:
        site = ["--system-site-packages"] if is_debian else []
        subprocess.run([str(base), "-m", "venv", "--clear", *site, str(env)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "-e", f"{ROOT}[fsspec]", *packages], check=True)
        if alone:
            subprocess.run([*pip, "--no-deps", *alone], check=True)
        stamp.write_text(wanted)
    return python


def run(
    start: list[str], code: str, folder: Path, environment: dict[str, str], *arguments: str
) -> str | None:
    """The output of a script that a command starts; None, with its errors shown, if it fails."""
    script = folder / "example.py"  # a file, since spawned workers import it
    script.write_text(code)
    done = subprocess.run(
        [*start, str(script), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        print(done.stdout + done.stderr)
        return None
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
