"""The artefacts of a release, and what builds each: scripts of deploy/, `build` and helm."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.release.checks import debian_version
from lodefs.chunkstore.errors import Unavailable

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_OUTPUT_LINES_SHOWN = 20


@dataclass(frozen=True)
class Workshop:
    """Where a release is built.

    Attributes:
        source: a copy of the committed files.
        out: the directory of the artefacts.
        scratch: of what is gone afterwards.
        version: of lodefs.
        architecture: for which one to build: amd64 or arm64.
        time_s: of all files in artefacts, in seconds since 1970.
    """

    source: Path
    out: Path
    scratch: Path
    version: str
    architecture: str
    time_s: int

    @property
    def wheel(self) -> Path:
        """The wheel, which all other parts have in them."""
        return self.out / f"lodefs-{self.version}-py3-none-any.whl"

    @property
    def sdist(self) -> Path:
        """The source archive."""
        return self.out / f"lodefs-{self.version}.tar.gz"

    def call(self, *words: str | Path, **more: str) -> None:
        """Runs a program. Raises: Unavailable, with the end of what it said."""
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(self.time_s), **more}
        done = subprocess.run(
            words, env=environment, cwd=self.source, text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            end = " | ".join(done.stdout.strip().splitlines()[-_OUTPUT_LINES_SHOWN:])
            raise Unavailable(f"{Path(words[0]).name} failed ({done.returncode}): {end}")


@dataclass(frozen=True)
class Part:
    """One kind of artefact.

    Attributes:
        name: for --only.
        file: its name, with {version}, {debian_version} and {architecture}.
        build: makes the file.
        tools: programs that it needs, with the Debian package of each.
        for_each: whether there is one for each architecture.
        needs_root: whether only root can build it.
    """

    name: str
    file: str
    build: Callable[[Workshop, Path], None]
    tools: Mapping[str, str] = field(default_factory=dict)
    for_each: bool = False
    needs_root: bool = False

    def path(self, shop: Workshop) -> Path:
        """Where its artefact will be."""
        names = {"version": shop.version, "debian_version": debian_version(shop.version)}
        return shop.out / self.file.format(architecture=shop.architecture, **names)


def _wheel(shop: Workshop, out: Path) -> None:
    """Both from the same source archive, so that it is known to be whole; a wheel that is there
    stays."""
    kind = ["--sdist"] if out.exists() else []
    place = shop.scratch / "dist"
    shop.call(sys.executable, "-P", "-m", "build", "-n", *kind, "-o", place, shop.source)
    if not kind:
        shutil.move(place / out.name, out)
    date_archive(place / shop.sdist.name, shop.sdist, shop.time_s)
    shop.call(sys.executable, "-P", "-m", "twine", "check", "--strict", shop.wheel, shop.sdist)


def date_archive(source: Path, out: Path, time_s: int) -> None:
    """A .tar.gz with the same files, sorted, of one time and of no user: equal files give equal
    bytes, which setuptools does not do."""
    with (
        tarfile.open(source) as old,
        out.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=time_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in sorted(old, key=lambda one: one.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = time_s, 0, 0, "", ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.pax_headers = {}
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)


def _debian(shop: Workshop, _: Path) -> None:
    words = _script(shop, "debian/build.sh", "--out", shop.out)
    shop.call(*words, **_wheels_of(shop))


def _bundle(shop: Workshop, _: Path) -> None:
    shop.call(*_script(shop, "bundle/build.sh", "--out", shop.out), **_wheels_of(shop))


def _image(shop: Workshop, out: Path) -> None:
    archive = shop.scratch / "image.tar"
    shop.call(*_script(shop, "images/build.sh", archive), **_wheels_of(shop))
    with (
        archive.open("rb") as plain,
        out.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=shop.time_s) as packed,
    ):
        shutil.copyfileobj(plain, packed)
    archive.unlink()


def _script(shop: Workshop, script: str, *words: str | Path) -> list[str | Path]:
    more = ["--wheel", str(shop.wheel), "--architecture", shop.architecture]
    return [shop.source / "deploy" / script, *more, *words]


def _wheels_of(shop: Workshop) -> dict[str, str]:
    """Where pip finds wheels that its registry has not; built once for an architecture."""
    if shop.architecture == MACHINES.get(os.uname().machine):
        return {}
    place = shop.scratch / f"wheels-{shop.architecture}"
    if not place.exists():
        script = shop.source / "deploy/debian/foreign-wheels.sh"
        shop.call(script, "--architecture", shop.architecture, place)
    return {"PIP_FIND_LINKS": str(place)}


def _chart(shop: Workshop, _: Path) -> None:
    """helm writes the time of packing into the archive."""
    place = shop.scratch / "chart"
    place.mkdir()
    helm = Path(sys.executable).with_name("helm")
    shop.call(helm, "package", shop.source / "deploy/helm/lodefs", "-d", place)
    name = f"lodefs-{shop.version}.tgz"
    date_archive(place / name, shop.out / f"lodefs-chart-{shop.version}.tgz", shop.time_s)


_DEBIAN_TOOLS = {"dpkg-deb": "dpkg"}
_ROOT_TOOLS = {"mmdebstrap": "mmdebstrap", "xz": "xz-utils"}
FOREIGN_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
}
PYTHON = "python"
PARTS = (
    Part(PYTHON, "lodefs-{version}-py3-none-any.whl", _wheel, {"git": "git"}),
    Part("chart", "lodefs-chart-{version}.tgz", _chart),
    Part(
        "debian", "lodefs_{debian_version}_{architecture}.deb", _debian, _DEBIAN_TOOLS,
        for_each=True,
    ),
    Part(
        "bundle", "lodefs-{version}-linux-{architecture}.tar.xz", _bundle, _ROOT_TOOLS,
        for_each=True, needs_root=True,
    ),
    Part(
        "image", "lodefs-{version}-{architecture}.image.tar.gz", _image, _ROOT_TOOLS,
        for_each=True, needs_root=True,
    ),
)  # fmt: skip
