"""Real Git repositories for tests, made quickly, and a server that has them over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

EXECUTABLE, FILE, LINK, MODULE = "100755", "100644", "120000", "160000"
USER, PASSWORD = "reader", "a-secret-of-git"


class Put(NamedTuple):
    """A file of a commit, or the id of a submodule's commit."""

    content: bytes
    mode: str = FILE


Tree = Mapping[str, Put | bytes | None]  # by path; None removes the file


def git(directory: Path, *words: str | Path) -> str:
    """What git prints in a directory. It has to succeed."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    done = subprocess.run(
        ["git", *words], cwd=directory, env=env, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def make_repository(directory: Path, commits: list[Tree]) -> list[str]:
    """Makes a bare repository whose branch main has these commits, each a change of the one
    before; returns their ids. Servers let it be read by any id."""
    directory.mkdir(parents=True)
    git(directory, "init", "-q", "--bare", "-b", "main", ".")
    stream = b"".join(_commit(number, tree) for number, tree in enumerate(commits, start=1))
    subprocess.run(
        ["git", "fast-import", "--quiet"], cwd=directory, input=stream, check=True, timeout=120
    )
    return git(directory, "rev-list", "--reverse", "main").split()


def _commit(number: int, tree: Tree) -> bytes:
    message = f"commit {number}\n\nwith ü".encode()
    head = f"commit refs/heads/main\ncommitter Ann <ann@example.com> {number} +0000\n"
    parts = [head.encode(), b"data %d\n%s\n" % (len(message), message)]
    for path, put in tree.items():
        name = path.encode()
        if put is None:
            parts.append(b"D %s\n" % name)
            continue
        content, mode = put if isinstance(put, Put) else Put(put)
        if mode == MODULE:
            parts.append(b"M 160000 %s %s\n" % (content, name))
        else:
            parts.append(b"M %s inline %s\n" % (mode.encode(), name))
            parts.append(b"data %d\n%s\n" % (len(content), content))
    return b"".join(parts)


def pointer(content: bytes) -> bytes:
    """The pointer that Git has in place of an object of Git LFS."""
    oid = sha256(content).hexdigest()
    lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{oid}")
    return "\n".join([*lines, f"size {len(content)}\n"]).encode()


class GitServer(NamedTuple):
    """A server of the repositories below a directory, and of objects of Git LFS by id. ``state``
    may get ``password`` and ``lfs_password`` (what clients must send), ``redirect`` (the URL that
    they are sent to) and ``href`` (where objects are said to be); ``asked`` are the paths of
    requests."""

    port: int
    state: dict[str, str]
    asked: list[str]
    objects: dict[str, bytes]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


@contextmanager
def git_server(below: Path) -> Iterator[GitServer]:
    """Serves over HTTP: Git by git's own program for it, and Git LFS."""
    with _Listener(("127.0.0.1", 0), _Handler) as listener:
        listener.below = below
        listener.world = GitServer(listener.server_address[1], {}, [], {})
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield listener.world
        finally:
            listener.shutdown()
            thread.join()


class _Listener(ThreadingHTTPServer):
    below: Path
    world: GitServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    server: _Listener

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        world, sent = self.server.world, self.headers.get("Authorization")
        world.asked.append(self.path)
        is_lfs = self.path.endswith("/info/lfs/objects/batch")
        password = world.state.get("lfs_password" if is_lfs else "password", sent)
        if "redirect" in world.state:
            self._tell(302, b"", Location=world.state["redirect"] + self.path)
        elif password != sent:
            self._tell(401, b"", **{"WWW-Authenticate": 'Basic realm="git"'})
        elif is_lfs:
            own = f"http://{self.headers['Host']}/lfs-objects/"
            self._tell(200, _batch(body, world.objects, world.state.get("href", own)))
        elif self.path.startswith("/lfs-objects/"):
            self._tell(200, world.objects[self.path.rpartition("/")[2]])
        else:
            self._git(body)

    def _tell(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _git(self, body: bytes) -> None:
        path, _, query = self.path.partition("?")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.below),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        words = ["git", "http-backend"]
        done = subprocess.run(
            words, input=body, capture_output=True, check=False, timeout=60, env=env
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        headers = [line.split(b": ", 1) for line in head.split(b"\r\n") if b": " in line]
        found = {name.decode(): value.decode() for name, value in headers}
        self._tell(int(found.pop("Status", "200 OK").split()[0]), answer, **found)


def _batch(body: bytes, objects: Mapping[str, bytes], href: str) -> bytes:
    """The answer of a Git LFS server to a batch of downloads."""
    answers: list[dict[str, object]] = []
    for one in json.loads(body)["objects"]:
        told: dict[str, object] = {"error": {"code": 404, "message": "not here"}}
        if one["oid"] in objects:
            told = {"actions": {"download": {"href": href + one["oid"]}}}
        answers.append(one | told)
    return json.dumps({"transfer": "basic", "objects": answers}).encode()
