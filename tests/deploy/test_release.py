"""``./run release``: what it refuses, and its cheap half: wheel, source archive, sums, bills of
materials. LODEFS_TEST_PACKAGES has the rest: tests/deploy/test_release_parts.py."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import jsonschema_rs
import pytest
from cyclonedx import schema as cyclonedx_schema

from deploy.release import checks
from deploy.release.__main__ import check_tools, selected
from deploy.release.parts import date_archive
from deploy.release.sbom import Ingredient, describe, ingredient_of
from lodefs.chunkstore.errors import AlreadyExists, InvalidInput, LodefsError, NotFound
from tests.support.chunkstore.child_process import run

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000
CHANGES = "# Changelog\n\n## 1.2.0 (2026-01-31)\n\n- News.\n\n## 1.1.0 (not released)\n\n## 1.0.0\n"
CHART = 'name: lodefs\nversion: 1.2.0\nappVersion: "1.2.0"\n'
SCHEMAS = Path(str(cyclonedx_schema.__file__)).parent / "_res"


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (
            lambda: checks.version_of('[project]\nversion = "1.2"'),
            InvalidInput,
            "'1.2' is not like",
        ),
        (lambda: checks.version_of(""), InvalidInput, "correct it"),
        (lambda: checks.check_clean(" M run\n?? a b\n"), InvalidInput, "run, a b; commit them"),
        (lambda: checks.check_clean("?? a\n?? b\n?? c\n?? d\n"), InvalidInput, "c and 1 more"),
        (
            lambda: checks.check_tag("1.2.0", ["v1.2.0"], []),
            AlreadyExists,
            "raise the version in pyproject.toml",
        ),
        (
            lambda: checks.check_changelog(CHANGES, "1.3.0", is_rehearsal=True),
            InvalidInput,
            "no section `## 1.3.0 ",
        ),
        (
            lambda: checks.check_changelog(CHANGES, "1.1.0", is_rehearsal=True),
            InvalidInput,
            "the section of 1.1.0 is empty",
        ),
        (
            lambda: checks.check_changelog(
                CHANGES.replace("2026-01-31", "not released"), "1.2.0", is_rehearsal=False
            ),
            InvalidInput,
            "or add --rehearsal",
        ),
        (lambda: checks.check_chart(CHART, "1.3.0"), InvalidInput, "version is 1.2.0, but"),
        (lambda: checks.check_chart("version: 1.3.0\n", "1.3.0"), InvalidInput, "is missing"),
        (lambda: selected("python,rpm", "amd64"), InvalidInput, "no part 'rpm'; known are"),
        (lambda: selected("python", "riscv64"), InvalidInput, "no 'riscv64'; known are"),
    ],
)
def test_what_cannot_be_released(
    call: Callable[[], object], kind: type[LodefsError], told: str
) -> None:
    """Each thing that is wrong is named in one line, with the way out."""
    with pytest.raises(kind) as caught:
        call()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_can_be_released() -> None:
    """A section needs a day, but not in a rehearsal; a tag of this commit is its own."""
    assert checks.version_of('[project]\nversion = "1.2.0rc1"') == "1.2.0rc1"
    assert checks.debian_version("1.2.0rc1") == "1.2.0~rc1"
    checks.check_clean("")
    checks.check_changelog(CHANGES, "1.2.0", is_rehearsal=False)
    checks.check_changelog(
        CHANGES.replace("2026-01-31", "not released"), "1.2.0", is_rehearsal=True
    )
    checks.check_tag("1.2.0", ["v1.1.0", "v1.2.0"], ["v1.2.0"])
    checks.check_tag("1.2.0", ["v1.1.0"], [])
    checks.check_chart(CHART, "1.2.0")


def test_this_checkout_can_be_released() -> None:
    """Its version, changelog and chart agree."""
    version = checks.version_of((ROOT / "pyproject.toml").read_text())
    checks.check_changelog((ROOT / "CHANGELOG.md").read_text(), version, is_rehearsal=True)
    checks.check_chart((ROOT / "deploy/helm/lodefs/Chart.yaml").read_text(), version)


def test_missing_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Programs that are missing are told before anything is built, all at once, by their packages;
    the wheel comes with each part."""
    wanted = selected("bundle,debian", "amd64,arm64")
    assert [part.name for part, _ in wanted] == ["python", *["debian"] * 2, *["bundle"] * 2]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFound) as caught:
        check_tools(wanted)
    cross = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    told = f"apt-get install dpkg {cross} git mmdebstrap xz-utils"
    assert str(caught.value).endswith(told)


def test_an_archive_is_dated(tmp_path: Path) -> None:
    """Archives of equal files have equal bytes, whoever packed them, when and in which order."""
    made = []
    for turn in (0, 1):
        plain, dated = tmp_path / f"plain{turn}.tar.gz", tmp_path / f"dated{turn}.tar.gz"
        with tarfile.open(plain, "w:gz") as tar:
            for name in ("a/b", "a/c")[:: 1 if turn else -1]:
                file = tmp_path / f"{turn}{name.replace('/', '')}"
                file.write_text(name)
                os.utime(file, (turn, turn))
                tar.add(file, name)
        date_archive(plain, dated, EPOCH)
        made.append(dated.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(dated) as tar:
        assert [(one.name, one.mtime, one.mode) for one in tar] == [
            ("a/b", EPOCH, 0o644),
            ("a/c", EPOCH, 0o644),
        ]


def test_a_bill_of_materials() -> None:
    """It fits the schema of CycloneDX 1.6, has each package once with its address and license, and
    is the same each time."""
    metadata = (
        b"Name: Some_Thing\nVersion: 1\nClassifier: License :: OSI Approved :: MIT License\n\n"
    )
    python = ingredient_of(message_from_bytes(metadata))
    assert python == Ingredient("pypi", "some-thing", "1", "MIT License")
    debian = Ingredient("deb", "glibc", "2.36-9")
    text = describe("lodefs.deb", "1.2.0", [debian, python, debian], EPOCH)
    assert text == describe("lodefs.deb", "1.2.0", [python, debian], EPOCH)
    check_schema(text)
    found = {one["purl"]: one for one in json.loads(text)["components"]}
    assert list(found) == ["pkg:deb/debian/glibc@2.36-9", "pkg:pypi/some-thing@1"]
    assert found["pkg:pypi/some-thing@1"]["licenses"] == [{"license": {"name": "MIT License"}}]
    assert json.loads(text)["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")


def check_schema(text: str) -> None:
    """Fails if a document is not CycloneDX 1.6."""
    resources = []
    for name in ("bom-1.6", "spdx", "jsf-0.82"):
        (path,) = SCHEMAS.glob(f"{name}.*schema.json")
        resources.append((f"http://cyclonedx.org/schema/{path.name}", json.loads(path.read_text())))
    registry = jsonschema_rs.Registry(resources)
    checker = jsonschema_rs.Draft7Validator(resources[0][1], registry=registry)
    assert [str(one) for one in checker.iter_errors(json.loads(text))] == []


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What is in this checkout, also what is not committed yet, as a clean git checkout."""
    place = tmp_path / "clone"
    place.mkdir()
    listed = run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT)
    (tmp_path / "files").write_text(listed)
    archive = tmp_path / "files.tar"
    run(
        ["tar", "--ignore-failed-read", "--null", "-T", tmp_path / "files", "-cf", archive],
        cwd=ROOT,
    )
    run(["tar", "-xf", archive, "-C", place])
    git = ["git", "-C", str(place), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        run([*git, *words])
    return place


def released(source: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    module = ("-P", "-m", "deploy.release", "--source")
    command: list[str | Path] = [sys.executable, *module, source, *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
def test_wheel_and_source_archive(clone: Path, wheels: Path, tmp_path: Path) -> None:
    """A rehearsal from a clean checkout makes both, which twine takes, with sums and bills of
    materials, and leaves nothing in the checkout; a second one does not overwrite them, and a
    changed checkout is refused."""
    (wheel,) = wheels.glob("lodefs-*.whl")
    out = tmp_path / "out"
    words = ("--out", out, "--only", "python,chart", "--wheel", wheel)
    done = released(clone, *words, "--rehearsal")
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert run(["git", "-C", clone, "status", "--porcelain", "--ignored"]) == ""
    version = checks.version_of((clone / "pyproject.toml").read_text())
    names = [f"lodefs-{version}-py3-none-any.whl", f"lodefs-{version}.tar.gz"]
    names.append(f"lodefs-chart-{version}.tgz")
    documents = [f"{name}.cdx.json" for name in names]
    assert {path.name for path in out.iterdir()} == {*names, *documents, "SHA256SUMS"}
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    for document in documents:
        check_schema((out / document).read_text())
    needed = {one["name"] for one in json.loads((out / documents[0]).read_text())["components"]}
    assert {"boto3", "botocore", "aiohttp", "fastcdc"} <= needed
    assert not needed & {"pytest", "mypy", "lodefs"}
    check_contents(out / names[0], out / names[1], f"lodefs-{version}")

    again = released(clone, *words, "--rehearsal")
    assert again.returncode == 1
    assert again.stderr.endswith("has a release already; remove it, or give another --out\n")
    shutil.copy(clone / "LICENSE", clone / "more")
    assert "more; commit them" in released(clone, *words, "--rehearsal").stderr


def check_contents(wheel: Path, sdist: Path, name: str) -> None:
    """Both have the same modules, and the source archive has what users see."""
    with tarfile.open(sdist) as tar:
        inside = {one.name.removeprefix(f"{name}/") for one in tar if one.isfile()}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "constraints.txt", "pyproject.toml"} <= inside
    assert not [one for one in inside if one.startswith("tests")]
    with zipfile.ZipFile(wheel) as packed:
        modules = {one for one in packed.namelist() if ".dist-info/" not in one}
        metadata = message_from_bytes(packed.read(f"{name}.dist-info/METADATA"))
    assert modules == {one for one in inside if one.startswith("lodefs/")}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in metadata.get_all("Classifier", [])
