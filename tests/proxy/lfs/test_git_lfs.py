"""Git and Git LFS, as distributions have them, against a proxy over TLS with tokens."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.history import find
from tests.support.proxy.lfs_site import REPO, LfsSite, lfs_site

LARGE = random.Random(1).randbytes(3_000_000)


def test_git_lfs(tmp_path: Path) -> None:
    """What was pushed is what another clone gets; only a token that may write pushes; a lock of one
    stops another; objects are files of a branch."""
    with lfs_site(tmp_path) as site:
        work, remote = _repository(site)
        git = site.git
        site.use(work, site.reader)
        assert "may not write" in git(work, "push", "origin", "main", fails=True)
        site.use(work, site.writer)
        git(work, "push", "origin", "main")
        store = site.store()
        for path in work.glob("*.bin"):
            content = path.read_bytes()
            oid = hashlib.sha256(content).hexdigest()
            spec = Spec(REPO, lfs.OBJECTS, lfs.object_path(oid).encode())
            entry = find(store, spec)
            assert store.packs.read_range(entry, 0, entry.size_bytes) == content

        clone = _clone(site, remote, site.reader)
        for path in work.glob("*.bin"):
            assert (clone / path.name).read_bytes() == path.read_bytes()

        (work / "0.bin").write_bytes(LARGE[:1_000_000] + b"new" + LARGE[1_000_000:])
        git(work, "commit", "-qam", "second")
        git(work, "push", "origin", "main")
        git(clone, "pull", "-q", "origin", "main")
        git(clone, "lfs", "fetch", "--all")
        assert (clone / "0.bin").read_bytes() == (work / "0.bin").read_bytes()
        assert "Deleting objects" in git(work, "lfs", "prune", "--verify-remote", "--recent")

        git(work, "lfs", "lock", "0.bin")
        site.use(clone, site.other)
        assert "locked by writer" in git(clone, "lfs", "lock", "0.bin", fails=True)
        assert "0.bin\twriter" in git(clone, "lfs", "locks")
        (clone / "0.bin").write_bytes(b"mine")
        git(clone, "commit", "-qam", "third")
        assert "0.bin" in git(clone, "push", "origin", "main", fails=True)
        assert "locked by writer" in git(clone, "lfs", "unlock", "0.bin", fails=True)
        git(clone, "lfs", "unlock", "--force", "0.bin")
        git(clone, "push", "origin", "main")


def _repository(site: LfsSite) -> tuple[Path, Path]:
    """A working copy with files in Git LFS, and the bare repository that it pushes to."""
    remote, work = site.folder / "remote.git", site.folder / "work"
    site.git(site.folder, "init", "-q", "--bare", "-b", "main", remote)
    site.git(site.folder, "init", "-q", "-b", "main", work)
    site.git(work, "remote", "add", "origin", remote)
    site.git(work, "lfs", "install", "--local")
    site.git(work, "lfs", "track", "*.bin")
    (work / "0.bin").write_bytes(LARGE)
    for number in range(1, 20):
        (work / f"{number}.bin").write_bytes(b"%d" % number * number)
    site.git(work, "add", ".")
    site.git(work, "commit", "-qm", "first")
    return work, remote


def _clone(site: LfsSite, remote: Path, token: str) -> Path:
    clone = site.folder / "clone"
    config = ["-c", f"lfs.url={site.url(token)}"]
    site.git(site.folder, *config, "clone", "-q", remote, clone)
    site.use(clone, token)
    site.git(clone, "lfs", "pull")
    return clone
