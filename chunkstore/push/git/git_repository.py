"""A bare repository of this machine that keeps what it has fetched from one URL: single commits,
without their history, so that the next fetch brings only what changed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lodefs.chunkstore.errors import (
    Corrupt,
    InvalidInput,
    LodefsError,
    NotFound,
    TooLarge,
    Unavailable,
)
from lodefs.chunkstore.format.commit import TEXT_CHARS_MAX
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.format.foreign.git_url import HEAD, SCHEMES
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.push.git.blobs import SHA1_CHARS, BlobReader
from lodefs.chunkstore.push.git.git_process import GitLimits, GitProcess
from lodefs.chunkstore.system.safe_open import PATH_BYTES_MAX

SYMLINK, SUBMODULE = 0o120000, 0o160000  # modes
_EXECUTABLE = 0o100
_KEPT_COMMITS = 64  # above this, a repository of this machine begins anew
_NAMED_FIRST = ("refs/heads/", "refs/tags/", "")  # the places of a name, in their order
_RAISE_LIMIT = "raise the limit (--size-max, git_size_bytes_max), or keep large files in Git LFS"
_FORMAT = "--format=%H%x00%an <%ae>%x00%B"


class GitFile(NamedTuple):
    """A file, symlink or submodule of a commit. A submodule has no size."""

    mode: int
    oid: str
    size_bytes: int

    @property
    def executable(self) -> bool:
        return bool(self.mode & _EXECUTABLE) and self.mode not in (SYMLINK, SUBMODULE)


class GitCommit(NamedTuple):
    """A commit: its id, and the texts that a commit of a store takes over."""

    id: str
    author: str
    message: str


@dataclass(frozen=True, slots=True)
class GitAccess:
    """How this machine reads Git repositories. ``below`` is the directory of the bare ones."""

    below: Path
    limits: GitLimits = field(default_factory=GitLimits)
    credentials_file: Path | None = None


class GitRepository:
    """The repository of one URL, or of one local directory. One process at a time fetches."""

    def __init__(self, url: str, access: GitAccess) -> None:
        """Raises: InvalidInput for a URL of another scheme than git_url.SCHEMES."""
        scheme, mark, _ = url.partition("://")
        if mark and scheme not in SCHEMES:
            raise InvalidInput(
                f"{url}: Git repositories are read over {', '.join(SCHEMES)}, or from a directory"
            )
        self.url = url
        self.limits = access.limits
        self.directory = access.below / digest_of(os.fsencode(url)).hex()[:32]
        self._git = GitProcess(
            self.directory, access.limits, [scheme if mark else "file"], access.credentials_file
        )

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Keeps the fetches of other processes away for a block, and as long as a process lives
        that has the yielded file open."""
        self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(f"{self.directory}.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock

    def resolve(self, rev: str) -> str:
        """Returns the commit that a branch, a tag or HEAD is now; an id is itself. Raises:
        NotFound, which names what there is; Denied, Unavailable."""
        if git.is_id(rev):
            return rev
        listed = self._git.run("ls-remote", "--quiet", "--", self.url)
        rows = (line.split("\t") for line in listed.decode("utf-8", "replace").splitlines())
        found = {row[1]: row[0] for row in rows if len(row) == 2 and git.is_id(row[0])}
        for name in [HEAD] if rev == HEAD else [f"{place}{rev}" for place in _NAMED_FIRST]:
            if name in found:
                return found.get(f"{name}^{{}}", found[name])  # of a tag with a message
        names = [name.partition("/")[2].partition("/")[2] for name in found if "/" in name]
        raise NotFound(
            f"{self.url} has no branch or tag {rev}; a commit is named by its whole id. It has "
            f"{', '.join([*dict.fromkeys(names)][:8]) or 'none'}"
        )

    def fetch(self, commit_id: str) -> GitCommit:
        """Returns a commit, whose files are on this machine then. Raises: NotFound, Denied,
        TooLarge, Unavailable."""
        ref = f"refs/lodefs/{commit_id}"
        with self._locked() as lock:
            if not self._has(ref):
                self._remove_locks()
                self._prepare(commit_id)
                self._fetch(commit_id, ref, lock)
        said = self._git.run("log", "-1", "--no-show-signature", "--no-decorate", _FORMAT, ref)
        found, author, message = said.decode("utf-8", "replace").split("\0", 2)
        return GitCommit(found, author[:TEXT_CHARS_MAX], message.strip()[:TEXT_CHARS_MAX])

    def has(self, commit_id: str) -> bool:
        """Whether a commit was fetched."""
        return self._has(f"refs/lodefs/{commit_id}")

    def files(self, commit_id: str) -> dict[bytes, GitFile]:
        """Returns the files of a fetched commit by path. Raises: TooLarge for more than the
        limits; InvalidInput for what no system can have."""
        found: dict[bytes, GitFile] = {}
        size_bytes = 0
        for row in self._git.lines("ls-tree", "-r", "-z", "-l", "--full-tree", commit_id):
            facts, _, path = row.partition(b"\t")
            mode, _, oid, size = facts.split()
            one = GitFile(int(mode, 8), oid.decode(), int(size) if size != b"-" else 0)
            is_long_link = one.mode == SYMLINK and one.size_bytes >= PATH_BYTES_MAX
            if len(path) >= PATH_BYTES_MAX or is_long_link:
                shown = path[:200].decode("utf-8", "backslashreplace")
                raise InvalidInput(
                    f"{shown} of {self.url} has a path, or is a symlink, of {PATH_BYTES_MAX:,} "
                    "bytes or more"
                )
            found[path] = one
            size_bytes += one.size_bytes
            if len(found) > self.limits.files_max or size_bytes > self.limits.size_bytes_max:
                raise TooLarge(
                    f"{self.url}@{commit_id[:12]} has more than {self.limits.files_max:,} files, "
                    f"or more than {self.limits.size_bytes_max:,} bytes in Git itself: "
                    f"{_RAISE_LIMIT}"
                )
        return found

    def attributes(
        self, commit_id: str, paths: Iterable[bytes], names: Iterable[str]
    ) -> dict[bytes, dict[bytes, bytes]]:
        """Returns the values of attributes for paths; a directory's ends with a slash. Those that
        are unspecified are left out."""
        found: dict[bytes, dict[bytes, bytes]] = {}
        with tempfile.TemporaryDirectory(dir=self.directory) as folder:
            index = Path(folder) / "index"
            self._git.run("read-tree", commit_id, index=index)
            with open(Path(folder) / "paths", "w+b") as asked:
                asked.writelines(path + b"\0" for path in paths)
                asked.seek(0)
                words = ("check-attr", "--cached", "-z", "--stdin", *names)
                rows = self._git.lines(*words, stdin=asked, index=index)
                for path, name, value in zip(rows, rows, rows, strict=True):
                    if value != b"unspecified":
                        found.setdefault(path, {})[name] = value
        return found

    def submodules(self, commit_id: str) -> Mapping[bytes, str]:
        """Returns the URLs of submodules by their paths. Raises: InvalidInput."""
        try:
            said = self._git.run(
                "config", "-z", "--no-includes", f"--blob={commit_id}:.gitmodules", "--list"
            )
        except LodefsError as error:
            raise InvalidInput(
                f"the .gitmodules of {self.url}@{commit_id[:12]} cannot be read: {error}"
            ) from error
        urls: dict[bytes, str] = {}
        paths: dict[bytes, bytes] = {}
        for row in said.split(b"\0"):
            key, _, value = row.partition(b"\n")
            name, _, what = key.rpartition(b".")
            if what == b"url":
                urls[name] = value.decode("utf-8", "replace")
            elif what == b"path":
                paths[name] = value
        return {path: urls[name] for name, path in paths.items() if name in urls}

    @contextmanager
    def blobs(self) -> Iterator[BlobReader]:
        """Reads contents for a block."""
        words = ("cat-file", "--batch")
        with self._git.started(*words, stdin=subprocess.PIPE) as (process, _):
            try:
                yield BlobReader(self.url, process)
            except Corrupt:
                self.forget()
                raise

    @property
    def ca_file(self) -> str | None:
        """The file with certificates that git trusts, if the environment names one."""
        return os.environ.get("GIT_SSL_CAINFO")

    def credentials(self, url: str) -> tuple[str, str] | None:
        """Returns user and password for a URL, from the file of credentials; None without."""
        if self._git.credentials_file is None:
            return None
        with tempfile.TemporaryFile(dir=self.directory) as asked:
            asked.write(f"url={url}\n\n".encode())
            asked.seek(0)
            try:
                said = self._git.run("credential", "fill", stdin=asked)
            except LodefsError:
                return None
        found = dict(line.partition("=")[::2] for line in os.fsdecode(said).split("\n"))
        return found.get("username", ""), found.get("password", "")

    def forget(self) -> None:
        """Removes what this machine has of the repository: it is damaged, or has grown."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _has(self, ref: str) -> bool:
        if not (self.directory / "HEAD").exists():
            return False
        try:
            self._git.run("rev-parse", "--quiet", "--verify", f"{ref}^{{commit}}")
        except LodefsError:
            return False
        return True

    def _fetch(self, commit_id: str, ref: str, lock: BinaryIO) -> None:
        """Fetches a commit. git, which reads no input here, keeps the lock if it outlives us."""
        options = ("--depth=1", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
        words = ("fetch", "--quiet", *options, "--no-recurse-submodules", "--", self.url)
        refspec = f"+{commit_id}:{ref}"
        try:
            self._git.run(*words, refspec, stdin=lock)
        except Unavailable as error:
            left = self.directory.glob("objects/pack/tmp_pack_*")
            if any(one.stat().st_size > self.limits.size_bytes_max - 4096 for one in left):
                raise TooLarge(
                    f"{self.url} sends more than {self.limits.size_bytes_max:,} bytes for one "
                    f"commit: {_RAISE_LIMIT}"
                ) from error
            raise
        finally:
            for one in self.directory.glob("objects/pack/tmp_*"):
                one.unlink(missing_ok=True)

    def _remove_locks(self) -> None:
        """Removes the locks of a git that was killed. Folders of indexes are others' own."""
        for pattern in ("*.lock", "refs/**/*.lock"):
            for one in self.directory.glob(pattern):
                one.unlink(missing_ok=True)

    def _prepare(self, commit_id: str) -> None:
        """Makes the repository, anew if it has grown or has ids of the other kind."""
        kind = "sha1" if len(commit_id) == SHA1_CHARS else "sha256"
        if (self.directory / "HEAD").exists():
            kept = self._kept()
            is_alike = kept is not None and (not kept or len(kept[0]) == len(commit_id))
            packs = self.directory.glob("objects/pack/*")
            size_bytes = sum(pack.stat().st_size for pack in packs)
            is_small = size_bytes < self.limits.size_bytes_max
            if kept is not None and is_alike and is_small and len(kept) < _KEPT_COMMITS:
                return
            self.forget()
        words = ("init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
        self._git.run(*words, str(self.directory))

    def _kept(self) -> list[str] | None:
        """Returns the ids of the fetched commits; None if one of them cannot be read."""
        try:
            said = self._git.run("for-each-ref", "--format=%(objectname) %(tree)")
        except LodefsError:
            return None
        return [line.split()[0] for line in said.decode().splitlines()]
