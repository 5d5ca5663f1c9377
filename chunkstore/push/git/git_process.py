"""Runs git on repositories that nobody vouches for: no hooks, no filters, no settings of this
machine, no prompts, and limits for time, memory and what it writes.

Sources: git-config(1), git(1) and gitprotocol-v2(5).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from lodefs.chunkstore.errors import (
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    TooLarge,
    Unavailable,
)
from lodefs.chunkstore.format.foreign.git import IMPORT_BYTES_MAX

MEMORY_BYTES_MAX = 4 << 30
SLOW_BYTES_S, SLOW_S = 1000, 60  # a server that sends less for so long has stopped
PRINTED_BYTES_MAX = 256 << 20  # of a server's branches and tags, say
SAID_BYTES_MAX, _SAID_S_MAX = 64 << 10, 5.0
_KEPT = ("PATH", "HOME", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO")
_PROXIES = ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy")
_NULL = "/dev/null"
# Limits, unless this process has lower ones, then the command. The shell counts blocks of 512
# bytes, and KiB of memory
_LIMITED = (
    'ulimit -f "$1" 2>/dev/null; ulimit -d "$2" 2>/dev/null; limit_s=$3; shift 3; '
    'exec timeout -k 5 "$limit_s" git "$@"'
)
_TIMED_OUT = 124
_NO_REPOSITORY = re.compile(r"repository '[^']*' not found|Repository not found")
_TOLD_CHARS_MAX = 600
_NO_PASSWORD = ("could not read Username", "could not read Password", "Authentication failed")


class Said:
    """What a process writes to its standard error. Servers and files of others can have git say
    things without end, and a pipe that nobody reads stops it: so all is read, and only the
    beginning is kept. In a ``with`` block a process is started."""

    def __init__(self) -> None:
        self._kept = b""
        self._source, self._target = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Said:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._target)

    def fileno(self) -> int:
        """Returns the descriptor that the process writes to."""
        return self._target

    def beginning(self) -> bytes:
        """Returns the beginning, after the process has ended."""
        self._thread.join(_SAID_S_MAX)  # what git has started may live on
        return self._kept

    def _read(self) -> None:
        while block := os.read(self._source, SAID_BYTES_MAX):
            self._kept += block[: SAID_BYTES_MAX - len(self._kept)]
        os.close(self._source)


@dataclass(frozen=True, slots=True)
class GitLimits:
    """What one import may take: bytes that a fetch brings, and of all files of a commit without
    those of Git LFS; files; seconds."""

    size_bytes_max: int = IMPORT_BYTES_MAX
    files_max: int = 2_000_000
    fetch_s_max: int = 3600


@dataclass(frozen=True, slots=True)
class GitProcess:
    """How to run git in the bare repository ``directory``. ``credentials_file`` has lines as
    git-credential-store(1) reads them. ``protocols`` are those that git may use."""

    directory: Path
    limits: GitLimits
    protocols: Sequence[str]
    credentials_file: Path | None = None

    def run(self, *words: str, index: Path | None = None, stdin: IO[bytes] | None = None) -> bytes:
        """Returns what a command prints. Raises: as ``error_of``; TooLarge."""
        with self.started(*words, stdin=stdin or subprocess.DEVNULL, index=index) as running:
            process, said = running
            assert process.stdout is not None
            printed = process.stdout.read(PRINTED_BYTES_MAX + 1)
            if len(printed) > PRINTED_BYTES_MAX:
                raise TooLarge(f"git {words[0]} prints more than {PRINTED_BYTES_MAX:,} bytes")
            code = process.wait()
        if code:
            raise self.error_of(words[0], code, said.beginning())
        return printed

    @contextmanager
    def started(
        self, *words: str, stdin: IO[bytes] | int = subprocess.DEVNULL, index: Path | None = None
    ) -> Iterator[tuple[subprocess.Popen[bytes], Said]]:
        """Yields a command that runs, and what it says. The end of the block ends it."""
        with Said() as said:
            process = subprocess.Popen(
                self._command(words),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=said.fileno(),
                env=self._environment(index),
                cwd="/",
            )
        with process:
            try:
                yield process, said
            finally:
                process.terminate()  # timeout(1) passes it on; nobody would pass on SIGKILL

    def lines(
        self, *words: str, stdin: IO[bytes] | int = subprocess.DEVNULL, index: Path | None = None
    ) -> Iterator[bytes]:
        """Yields what a command prints, without the NULs between. Raises: Unavailable."""
        with self.started(*words, stdin=stdin, index=index) as (process, said):
            assert process.stdout is not None
            yield from _split(process.stdout)
            if code := process.wait():
                raise self.error_of(words[0], code, said.beginning())

    def error_of(self, word: str, code: int, stderr: bytes) -> LodefsError:
        """Returns the error of a command that failed: Denied, NotFound, InvalidInput,
        Unavailable."""
        said = " ".join(stderr.decode("utf-8", "replace").split())
        if code == _TIMED_OUT:
            return Unavailable(f"git {word} took more than {self.limits.fetch_s_max:,} s")
        if any(one in said for one in _NO_PASSWORD) or "terminal prompts disabled" in said:
            return Denied(
                "the Git server asks for a password: credentials are lines "
                "https://USER:TOKEN@HOST in a file (--credentials, git_credentials_file)"
            )
        if "redirect" in said or "error: 30" in said:
            return Denied(f"the Git server redirects, and no redirect is followed: {_told(said)}")
        if "not allowed" in said and "transport" in said:
            return Denied(f"git refuses this kind of URL: {_told(said)}")
        if "not our ref" in said or "couldn't find remote ref" in said:
            return NotFound(f"the repository has no such commit: {_told(said)}")
        if "dubious ownership" in said:
            return Denied(
                "the repository belongs to another user, and git does not read it: run the import "
                "as that user, or from a clone"
            )
        if "not appear to be a git repository" in said or _NO_REPOSITORY.search(said):
            return NotFound("there is no such Git repository, or its server does not show it")
        if "fsck" in said:
            return InvalidInput(f"the repository is malformed: {_told(said)}")
        return Unavailable(f"git {word} failed: {_told(said) or f'exit code {code}'}")

    def _command(self, words: Sequence[str]) -> list[str]:
        limits = self.limits
        blocks = max(1, limits.size_bytes_max // 512)
        # What serves our own questions ends with its input; 0 is no limit
        limit_s = 0 if words[0] == "cat-file" else limits.fetch_s_max
        numbers = (blocks, MEMORY_BYTES_MAX // 1024, limit_s)
        return ["/bin/sh", "-c", _LIMITED, "sh", *map(str, numbers), *words]

    def _environment(self, index: Path | None) -> dict[str, str]:
        kept = {name: os.environ[name] for name in (*_KEPT, *_PROXIES) if name in os.environ}
        config = [*_config(self.protocols), *_credentials(self.credentials_file)]
        numbered = {
            f"GIT_CONFIG_{part}_{number}": text
            for number, pair in enumerate(config)
            for part, text in zip(("KEY", "VALUE"), pair, strict=True)
        }
        environment: Mapping[str, str] = {
            "LC_ALL": "C",
            "GIT_DIR": str(self.directory),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": _NULL,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20",
            "GIT_ALLOW_PROTOCOL": ":".join(self.protocols),
            "GIT_CONFIG_COUNT": str(len(config)),
        }
        of_index = {} if index is None else {"GIT_INDEX_FILE": str(index)}
        return {**kept, **environment, **numbered, **of_index}


def _config(protocols: Sequence[str]) -> list[tuple[str, str]]:
    return [
        ("protocol.allow", "never"),
        *((f"protocol.{one}.allow", "always") for one in protocols),
        ("core.hooksPath", _NULL),
        ("core.attributesFile", _NULL),
        ("core.fsmonitor", "false"),
        ("core.bigFileThreshold", "64m"),
        ("fetch.unpackLimit", "1"),  # one pack, since files have a limit
        ("fetch.fsckObjects", "true"),
        ("fetch.fsck.zeroPaddedFilemode", "ignore"),  # harmless, and common in old histories
        ("fetch.fsck.badTimezone", "ignore"),
        ("fetch.fsck.missingSpaceBeforeDate", "ignore"),
        ("http.followRedirects", "false"),
        ("http.lowSpeedLimit", str(SLOW_BYTES_S)),
        ("http.lowSpeedTime", str(SLOW_S)),
        ("submodule.recurse", "false"),
        ("maintenance.auto", "false"),
        ("gc.auto", "0"),
        ("credential.helper", ""),
    ]


def _credentials(file: Path | None) -> list[tuple[str, str]]:
    """Git may read the file, but not change it: the store of Git forgets what a server refused."""
    if file is None:
        return []
    get = f"git credential-store --file={shlex.quote(str(file))} get"
    return [("credential.helper", f'!f() {{ test "$1" = get && {get}; }}; f')]


def _split(stream: BinaryIO | IO[bytes]) -> Iterator[bytes]:
    left = b""
    while block := stream.read(1 << 20):
        *whole, left = (left + block).split(b"\0")
        yield from whole
    if left:
        yield left


def _told(said: str) -> str:
    return said[:_TOLD_CHARS_MAX]
