"""A small server of the Hugging Face Hub's answers, for reading; its client is huggingface_hub.

Recorded from the hub's documentation (docs/hub/api) and from what huggingface_hub reads of answers.
Files of ``LFS_BYTES_MIN`` and more are in Git LFS: they lie on "another server", to which resolve
redirects.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.format.foreign.lfs import Pointer, encode_pointer

LFS_BYTES_MIN = 1000
PAGE_ENTRIES = 3
_API = re.compile(
    r"/api/(model|dataset|space)s/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.+))?)?\Z"
)
_RESOLVE = re.compile(r"/(?:(dataset|space)s/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)\Z")

Contents = Mapping[str, bytes]


@dataclass
class HubRepository:
    """A repository: its commits by id, and the commits of its branches."""

    commits: dict[str, Contents] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False

    def commit(self, files: Contents, branch: str = "main") -> str:
        """Returns the id of a new commit, which the branch is at."""
        seed = repr((sorted(files.items()), branch, len(self.commits))).encode()
        sha = hashlib.sha1(seed, usedforsecurity=False).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        return sha

    def add(self, path: str, content: bytes) -> str:
        """Returns the id of a new commit of the main branch, with one more file."""
        before = self.commits[self.branches["main"]] if self.branches else {}
        return self.commit({**before, path: content})


def etag_of(content: bytes) -> str:
    """The ETag that the hub gives a file."""
    if len(content) >= LFS_BYTES_MIN:
        return hashlib.sha256(content).hexdigest()
    return git.blob_id(content)


class HubServer:
    """The hub: its repositories by URL without scheme, such as ``datasets/org/name``; and the
    requests that it has had, by method and path."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.repositories: dict[str, HubRepository] = {}
        self.requests: Counter[str] = Counter()
        self.token = ""  # that reads what is gated
        self.is_away = False  # all requests get 503
        self.answers = threading.Event()  # while it is not set, requests wait
        self.answers.set()
        self.rest = threading.Event()  # while it is not set, only the beginnings of files are sent
        self.rest.set()
        self.ranges: Counter[tuple[str, int]] = Counter()  # by path or ETag, and first byte

    def repository(self, name: str) -> HubRepository:
        """The repository of a name, made if there is none."""
        return self.repositories.setdefault(name, HubRepository())

    def reads(self) -> Counter[str]:
        """The reads of files so far, by path."""
        found = {one: n for one, n in self.requests.items() if "/resolve/" in one}
        return Counter(found)


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    """A hub on a port of the loopback interface."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    made = HubServer(f"http://127.0.0.1:{server.server_port}")
    server.hub = made  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield made
    finally:
        made.answers.set()
        made.rest.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Missing(Exception):
    """An answer with the hub's word for what is missing."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base has it
        """Says nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    @property
    def hub(self) -> HubServer:
        found = self.server.hub  # type: ignore[attr-defined]
        assert isinstance(found, HubServer)
        return found

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        self.hub.requests[f"{self.command} {unquote(parts.path)}"] += 1
        try:
            self.hub.answers.wait()
            if self.hub.is_away:
                raise _Missing(503, "")
            if parts.path.startswith("/cdn/"):
                self._send_file(self._of_cdn(parts.path[5:]), {"ETag": '"cdn"'})
            elif found := _API.match(parts.path):
                self._api(parts.path, parse_qs(parts.query), *found.groups())
            elif found := _RESOLVE.match(parts.path):
                self._resolve(*found.groups())
            else:
                raise _Missing(404, "")
        except _Missing as error:
            self._send(error.status, {"X-Error-Code": error.code}, b'{"error": "missing"}')

    def _api(
        self, path: str, query: dict[str, list[str]], kind: str, name: str, verb: str, rev: str,
        below: str | None,
    ) -> None:  # fmt: skip
        sha, files = self._commit(kind, name, unquote(rev or "main"))
        if verb != "tree":
            siblings = [{"rfilename": one} for one in sorted(files)]
            self._json({"id": name, "sha": sha, "private": False, "siblings": siblings})
            return
        top = f"{unquote(below)}/" if below else ""
        entries = _tree(files, top, recursive=query.get("recursive", [""])[0].lower() == "true")
        if top and not entries:
            raise _Missing(404, "EntryNotFound")
        first = int(query.get("cursor", ["0"])[0])
        following = first + PAGE_ENTRIES
        link = {}
        if following < len(entries):
            recursive = query.get("recursive", ["false"])[0]
            target = f"{self.hub.url}{path}?recursive={recursive}&cursor={following}"
            link = {"Link": f'<{target}>; rel="next"'}
        self._json(entries[first:following], link)

    def _resolve(self, kind: str | None, name: str, rev: str, path: str) -> None:
        sha, files = self._commit(kind or "model", name, unquote(rev))
        content = files.get(unquote(path))
        headers = {"X-Repo-Commit": sha}
        if content is None:
            raise _Missing(404, "EntryNotFound")
        etag = f'"{etag_of(content)}"'
        if len(content) < LFS_BYTES_MIN:
            self._send_file(content, headers | {"ETag": etag})
            return
        headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content))}
        headers |= {"X-Xet-Hash": "0" * 64}  # of which lodefs takes no notice
        headers |= {"Location": f"{self.hub.url}/cdn/{quote(etag_of(content))}"}
        self._send(302, headers, b"")

    def _commit(self, kind: str, name: str, rev: str) -> tuple[str, Contents]:
        repository = self.hub.repositories.get(name if kind == "model" else f"{kind}s/{name}")
        if repository is None:
            raise _Missing(401, "RepoNotFound")
        if repository.is_gated and self.headers["Authorization"] != f"Bearer {self.hub.token}":
            raise _Missing(403, "GatedRepo")
        sha = repository.branches.get(rev, rev)
        if sha not in repository.commits:
            raise _Missing(404, "RevisionNotFound")
        return sha, repository.commits[sha]

    def _of_cdn(self, sha256: str) -> bytes:
        for repository in self.hub.repositories.values():
            for files in repository.commits.values():
                for content in files.values():
                    if etag_of(content) == sha256:
                        return content
        raise _Missing(404, "")

    def _send_file(self, content: bytes, headers: dict[str, str]) -> None:
        found = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers["Range"] or "")
        if found is None:
            self._send(200, headers, content)
            return
        first, end = int(found[1]), min(int(found[2]) + 1, len(content))
        self.hub.ranges[self.path.rpartition("/")[2], first] += 1
        if first:
            self.hub.rest.wait()
        if first >= len(content):
            self._send(416, headers | {"Content-Range": f"bytes */{len(content)}"}, b"")
            return
        headers |= {"Content-Range": f"bytes {first}-{end - 1}/{len(content)}"}
        self._send(206, headers, content[first:end])

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        headers = {"Content-Type": "application/json", **(headers or {})}
        self._send(200, headers, json.dumps(value).encode())

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tree(files: Contents, top: str, *, recursive: bool) -> list[dict[str, object]]:
    """The entries of a tree below ``top`` ("" or "a/")."""
    found: dict[str, dict[str, object]] = {}
    for path in sorted(files):
        if not path.startswith(top):
            continue
        names = path[len(top) :].split("/")
        for depth in range(1, len(names)):
            above = top + "/".join(names[:depth])
            if recursive or depth == 1:
                oid = git.blob_id(above.encode())
                found[above] = {"type": "directory", "path": above, "oid": oid, "size": 0}
        if recursive or len(names) == 1:
            found[path] = _file(path, files[path])
    return list(found.values())


def _file(path: str, content: bytes) -> dict[str, object]:
    size_bytes, etag = len(content), etag_of(content)
    if size_bytes < LFS_BYTES_MIN:
        return {"type": "file", "path": path, "oid": etag, "size": size_bytes}
    pointer = encode_pointer(Pointer(etag, size_bytes))
    lfs = {"oid": etag, "size": size_bytes, "pointerSize": len(pointer)}
    oid = git.blob_id(pointer)
    return {"type": "file", "path": path, "oid": oid, "size": size_bytes, "lfs": lfs}
