"""Which packages of others are in an artefact, read from the artefact itself."""

from __future__ import annotations

import email
import re
import subprocess
import tarfile
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement

from deploy.release.sbom import Ingredient, ingredient_of
from lodefs.chunkstore.errors import NotFound, Unsupported

DEBIAN_PACKAGES = "usr/share/doc/debian-packages"  # python-root.sh writes it
OWN = "lodefs"
SDIST = re.compile(r"lodefs-[^-]+\.tar\.gz")


def of_artefact(path: Path) -> set[Ingredient]:
    """What is in a wheel, source archive, Debian package, bundle, image or chart. Of the first two:
    what pip installs with them, in the versions of this Python's environment.

    Raises: NotFound, Unsupported.
    """
    if path.suffix == ".deb":
        return _of_debian_package(path)
    if path.suffix == ".whl" or SDIST.fullmatch(path.name):
        return _with_dependencies(OWN)
    if path.name.endswith(".tar.xz"):
        with tarfile.open(path, "r|xz") as bundle:
            return _of_tar(bundle)
    if path.name.endswith(".image.tar.gz"):
        return _of_image(path)
    if path.suffix == ".tgz":  # the chart: templates, and no packages
        return set()
    raise Unsupported(f"{path.name}: no bill of materials is known for such a file")


def _with_dependencies(name: str) -> set[Ingredient]:
    """All that a package needs, without extras, as it is installed here; without itself."""
    found: dict[str, Ingredient] = {}
    left = [name]
    while left:
        one = left.pop()
        try:
            known = distribution(one)
        except PackageNotFoundError as error:
            raise NotFound(f"the Python package {one} is not installed; ./run setup") from error
        for text in known.requires or []:
            need = Requirement(text)
            if need.name not in found and (not need.marker or need.marker.evaluate({"extra": ""})):
                found[need.name] = ingredient_of(_message(distribution(need.name).metadata))
                left.append(need.name)
    return set(found.values())


def _message(metadata: object) -> Message:
    assert isinstance(metadata, Message)
    return metadata


def _of_tar(tar: tarfile.TarFile) -> set[Ingredient]:
    """By the METADATA of Python packages, and the list of Debian's."""
    found = set()
    for entry in tar:
        place = entry.name.removeprefix("./")
        if not entry.isfile():
            continue
        if place.endswith(".dist-info/METADATA") and f"/{OWN}-" not in place:
            found.add(ingredient_of(email.message_from_bytes(_read(tar, entry))))
        if place.endswith(DEBIAN_PACKAGES):
            found |= {_debian(line) for line in _read(tar, entry).decode().splitlines()}
    return found


def _read(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    data: IO[bytes] | None = tar.extractfile(entry)
    return data.read() if data else b""


def _debian(line: str) -> Ingredient:
    name, version = line.split()
    return Ingredient("deb", name, version)


def _of_debian_package(path: Path) -> set[Ingredient]:
    command = ["dpkg-deb", "--fsys-tarfile", str(path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacked,
        tarfile.open(fileobj=unpacked.stdout, mode="r|") as tar,
    ):
        return _of_tar(tar)


def _of_image(path: Path) -> set[Ingredient]:
    with tarfile.open(path, "r:gz") as image:
        return {one for layer in _layers(image) for one in _of_tar(layer)}


def _layers(image: tarfile.TarFile) -> Iterator[tarfile.TarFile]:
    for entry in image:
        if entry.name.endswith(".tar"):
            with tarfile.open(fileobj=image.extractfile(entry), mode="r:") as layer:
                yield layer
