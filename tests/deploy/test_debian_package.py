"""The Debian package: its contents, and that two builds are equal."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.deploy.conftest import EPOCH, Packages
from tests.support.chunkstore.child_process import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLURM = ["burst_buffer.lua", "cli_filter.lua", "lodefs_spank.c", "Makefile"]
UNITS = ["lodefs-proxy.service", "lodefs-proxy.socket", "lodefs-docker.service"]


@pytest.fixture(scope="module")
def members(packages: Packages) -> dict[str, tarfile.TarInfo]:
    """The files of the package by path."""
    tar = packages.first.with_suffix(".tar")
    with tar.open("wb") as out:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", packages.first], stdout=out, check=True)
    with tarfile.open(tar) as archive:
        return {one.name.removeprefix("."): one for one in archive}


def test_two_builds_are_equal(packages: Packages) -> None:
    """Equal sources and SOURCE_DATE_EPOCH give equal bytes."""
    if packages.first.read_bytes() != packages.again.read_bytes():
        tree = packages.again.with_suffix(".contents")
        run(["dpkg-deb", "-R", packages.again, tree])
        first, again = (_contents(one) for one in (packages.tree, tree))
        pytest.fail(f"{[name for name in first | again if first.get(name) != again.get(name)]}")


def _contents(tree: Path) -> dict[str, bytes]:
    """The digest of each file of a package, its control files included."""
    return {
        str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).digest()
        for path in tree.rglob("*")
        if path.is_file()
    }


def test_control_fields(packages: Packages) -> None:
    """The package says for which machine, which Python and which settings it is."""

    def field(name: str) -> str:
        return run(["dpkg-deb", "-f", packages.first, name]).strip()

    assert field("Package") == "lodefs"
    assert field("Architecture") == run(["dpkg", "--print-architecture"]).strip()
    assert {"python3 (>= 3.11)", "python3 (<< 3.12)"} <= set(field("Depends").split(", "))
    assert packages.first.name == f"lodefs_{field('Version')}_{field('Architecture')}.deb"
    conffiles = run(["dpkg-deb", "-I", packages.first, "conffiles"]).split()
    hook = "/etc/enroot/hooks.d/50-lodefs.sh"
    assert conffiles == ["/etc/default/lodefs", hook, "/etc/lodefs/lodefs.toml"]


def test_files_and_modes(members: dict[str, tarfile.TarInfo]) -> None:
    """Everything is root's, nothing is writable by others, programs alone are executable."""
    assert {(one.uid, one.gid) for one in members.values()} == {(0, 0)}
    assert max(one.mtime for one in members.values()) == EPOCH
    programs = {name for name, one in members.items() if one.isfile() and one.mode & 0o111}
    assert programs == {
        "/etc/enroot/hooks.d/50-lodefs.sh",
        "/usr/bin/lodefs",
        "/usr/lib/lodefs/services.sh",
        "/usr/lib/systemd/system-generators/lodefs-mounts-generator",
        "/usr/share/lodefs/slurm/epilog.d/50-lodefs.sh",
        "/usr/share/lodefs/slurm/health.sh",
        "/usr/share/lodefs/slurm/prolog.d/50-lodefs.sh",
        "/usr/share/lodefs/slurm/task_prolog.sh",
    }
    modes = {one.mode for one in members.values() if one.isfile()}
    assert modes == {0o644, 0o755, 0o600}
    assert members["/etc/default/lodefs"].mode == 0o600  # credentials
    assert {one.mode for one in members.values() if one.isdir()} == {0o755}
    for place in (
        *(f"/usr/lib/systemd/system/{unit}" for unit in UNITS),
        "/usr/lib/systemd/system/lodefs-mount@.service",
        "/usr/lib/sysusers.d/lodefs.conf",
        "/usr/lib/tmpfiles.d/lodefs.conf",
        "/usr/share/man/man1/lodefs.1.gz",
        "/usr/share/doc/lodefs/copyright",
        "/usr/share/doc/lodefs/docs/install.md",
        "/usr/share/doc/lodefs/grafana/rules/alerts.yaml",
        "/usr/share/doc/lodefs/grafana/dashboards/lodefs-node.json",
        "/usr/share/doc/lodefs/changelog.gz",
        *(f"/usr/share/lodefs/slurm/{name}" for name in SLURM),
        *(f"/usr/lib/lodefs/{name}/__init__.py" for name in ("google/auth", "azure/identity")),
    ):
        assert members[place].isfile()
    assert members["/etc/lodefs/mounts.d"].isdir()


def test_links_of_documents_lead_somewhere(packages: Packages) -> None:
    """Every relative link of an installed page for users leads to an installed file or directory,
    and every unit names a page that is there."""
    tree = packages.tree
    doc = tree / "usr/share/doc/lodefs"
    pages = {page for page in doc.rglob("*.md") if page.relative_to(doc).parts[0] != "loadtests"}
    assert len(pages) > 50
    assert not [
        (page.relative_to(doc), link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    named = {
        path
        for unit in (tree / "usr/lib/systemd/system").iterdir()
        for path in re.findall("^Documentation=file:(.*)", unit.read_text(), re.MULTILINE)
    }
    assert len(named) > 2
    assert not [path for path in named if not (tree / path[1:]).is_file()]


def test_every_module_is_compiled(members: dict[str, tarfile.TarInfo]) -> None:
    """No program writes compiled files below /usr, or compiles again at each start."""
    code = {name for name in members if re.fullmatch(r"/usr/lib/lodefs/.*\.py", name)}
    compiled = {
        re.sub(r"__pycache__/([^/]*)\.cpython-\d+\.pyc$", r"\1.py", name)
        for name in members
        if name.endswith(".pyc")
    }
    assert "/usr/lib/lodefs/lodefs/main.py" in code
    assert code == compiled


def test_nothing_tells_where_it_was_built(packages: Packages) -> None:
    """No file names a directory of the machine that built it, or whence Python packages came."""
    tree = packages.tree
    found = subprocess.run(
        ["grep", "-rlaE", "/tmp/tmp\\.|ldb-[a-z0-9_]+/", tree],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
    assert not list(tree.glob("usr/lib/lodefs/*/direct_url.json"))
    sums = (tree / "DEBIAN/md5sums").read_text().splitlines()
    assert run(["md5sum", "-c", "--quiet", "DEBIAN/md5sums"], cwd=tree) == ""
    assert len(sums) == sum(len(files) for _, _, files in os.walk(tree)) - len(
        list((tree / "DEBIAN").iterdir())
    )
    changelog = gzip.decompress((tree / "usr/share/doc/lodefs/changelog.gz").read_bytes())
    assert changelog.startswith(b"lodefs (")
