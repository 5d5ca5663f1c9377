"""A hub with one repository, which answers as Hugging Face's does to what its library asks.

Source: Hugging Face Hub API, https://huggingface.co/docs/hub/api, and the client's own requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class HfHub:
    """The repository ``org/model``: one list of files for each commit."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._commits: dict[str, dict[str, bytes]] = {}
        self.heads: list[str] = []
        self.commit("README.md", b"# a model")

    def commit(self, path: str, data: bytes) -> None:
        """Adds a commit with one more file."""
        files = {**(self._commits[self.heads[-1]] if self.heads else {}), path: data}
        head = sha1(repr([self.heads, path, data]).encode(), usedforsecurity=False).hexdigest()
        self._commits[head] = files
        self.heads.append(head)

    def files(self, revision: str) -> tuple[str, dict[str, bytes]]:
        """The commit of a revision, and its files."""
        head = self.heads[-1] if revision == "main" else revision
        return head, self._commits[head]

    def tree(self, revision: str, directory: str) -> list[dict[str, object]] | None:
        """What a directory holds, as the hub lists it; None if there is none."""
        start = f"{directory}/" if directory else ""
        found: dict[str, dict[str, object]] = {}
        for path, data in self.files(revision)[1].items():
            name, slash, _ = path.removeprefix(start).partition("/")
            if path.startswith(start):
                oid = sha1(b"" if slash else data, usedforsecurity=False).hexdigest()
                kind, size = ("directory", 0) if slash else ("file", len(data))
                found[name] = {"type": kind, "oid": oid, "size": size, "path": start + name}
        return list(found.values()) or None


class _Handler(BaseHTTPRequestHandler):
    hub: HfHub

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = [unquote(part) for part in parts.path.strip("/").split("/")]
        match path:
            case ["api", "models", "org", "model", "tree", revision, *below]:
                found = self.hub.tree(unquote(revision), "/".join(below))
                self._answer(200 if found else 404, json.dumps(found or {}).encode())
            case ["api", "models", "org", "model", "revision", revision]:
                head = self.hub.files(unquote(revision))[0]
                self._answer(200, json.dumps({"id": "org/model", "sha": head}).encode())
            case ["api", "models", "org", "model"]:
                head = self.hub.files("main")[0]
                self._answer(200, json.dumps({"id": "org/model", "sha": head}).encode())
            case ["org", "model", "resolve", revision, *below]:
                self._file(self.hub.files(unquote(revision))[1].get("/".join(below)))
            case _:
                self._answer(404, b"{}")

    def _file(self, data: bytes | None) -> None:
        if data is None:
            self._answer(404, b"")
            return
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        self._answer(206, data[int(first) : int(last) + 1])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def hf_hub() -> Iterator[HfHub]:
    """Runs a hub on loopback until the end of the block."""
    handler = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub = HfHub(f"http://127.0.0.1:{server.server_port}")
        handler.hub = hub  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
