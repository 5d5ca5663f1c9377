"""own_proxy.py: finding a proxy, and starting one for the user."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, Unavailable
from lodefs.proxies.own_proxy import (
    OwnProxy,
    ask,
    may_end,
    own_proxy,
    plain_store,
    proxy_url,
    ready,
    running_proxy,
    serve_command,
    serves,
    start,
    start_again,
)
from lodefs.settings.session import Session
from tests.support.chunkstore.child_process import private_directory

FAKE = """
import json, socketserver, sys
from http.server import BaseHTTPRequestHandler

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def address_string(self):
        return "unix"
    def log_message(self, *_):
        pass
    def do_GET(self):
        if self.path == "/secret" and self.headers["Authorization"] != "Bearer s3cret":
            body, code = b"{}", 401
        elif self.path in ("/readyz", "/status", "/secret"):
            body, code = json.dumps({"node": {"store": "s3://b/p"}}).encode(), 200
        elif self.path == "/deep":
            body, code = b'{"node":' + b"[" * 100_000, 200
        else:
            body, code = b"[]", 404
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

with open(sys.argv[2], "a") as started:
    started.write("started\\n")
Server(sys.argv[1], Handler).serve_forever()
"""


class Place:
    """A directory for a user's own proxy, which is a fake."""

    def __init__(self, folder: Path) -> None:
        self.own = OwnProxy(folder / "proxy")
        self.started = folder / "started"
        socket = self.own.directory / "sock"
        self.command = [sys.executable, "-c", FAKE, str(socket), str(self.started)]

    def start(self) -> None:
        """Starts the fake unless it runs."""
        start(self.own, self.command, dict(os.environ))

    def end(self) -> None:
        """Ends it, if it was started."""
        if self.own.pid_file.exists():
            pid = int(self.own.pid_file.read_text())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def place() -> Iterator[Place]:
    """A place where no proxy runs yet."""
    with private_directory() as folder:
        place = Place(folder)
        yield place
        place.end()


def test_start_waits_until_it_is_ready(place: Place) -> None:
    """After start the proxy answers, and starting it again does nothing."""
    assert not ready(place.own.url)
    place.start()
    assert ready(place.own.url)
    place.start()
    assert place.started.read_text() == "started\n"


def test_many_starts_make_one_proxy(place: Place) -> None:
    """Of several that start a proxy at once one does, and all of them find it ready."""
    found: list[bool] = []

    def one() -> None:
        place.start()
        found.append(ready(place.own.url))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [True] * 4
    assert place.started.read_text() == "started\n"


def test_a_proxy_that_fails_is_told_with_its_words() -> None:
    """A proxy that ends at once is Unavailable, with its last line and the log's place."""
    with private_directory() as folder:
        own = OwnProxy(folder / "proxy")
        script = "import sys; sys.exit('lodefs: error: the cache is in use')"
        with pytest.raises(
            Unavailable, match=r"ended at once: the cache is in use \(more in .*log"
        ):
            start(own, [sys.executable, "-c", script], dict(os.environ))


@pytest.mark.parametrize("has_run", [True, False])
def test_a_store_that_is_not_there(*, has_run: bool) -> None:
    """A proxy that ends with the exit code of what is not found is NotFound, as other commands say
    it, and leaves nothing behind; of one that ran before the cache stays."""
    with private_directory() as folder:
        own = OwnProxy(folder / "proxy")
        if has_run:
            own.directory.mkdir()
            own.store_file.write_text("store")
        script = "import sys; print('lodefs: error: /nope is not a store'); sys.exit(3)"
        with pytest.raises(NotFound, match=r"^/nope is not a store$"):
            start(own, [sys.executable, "-c", script], dict(os.environ))
        assert own.directory.exists() == has_run


def test_one_lease_however_often_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that starts its proxy again and again holds one descriptor for it."""
    monkeypatch.setattr("lodefs.proxies.own_proxy.start", lambda *_: None)
    session = Session({"HOME": str(tmp_path), "LODEFS_CONFIG": os.devnull})
    own = own_proxy(session.home_cache(), "store")
    own.directory.mkdir(parents=True)
    own.store_file.write_text("store")

    def leases() -> int:
        places = Path("/proc/self/fd").iterdir()
        return sum(str(own.socket) in os.readlink(one) for one in places if one.is_symlink())

    for _ in range(3):
        start_again(session, own.url)
    assert leases() == 1
    session.close()
    assert leases() == 0


def test_the_cache_of_a_home_is_the_users_alone(tmp_path: Path) -> None:
    """With any umask: others could put their own proxy in the place of the user's."""
    session = Session({"HOME": str(tmp_path)})
    former = os.umask(0)
    try:
        made = session.make_home_cache()
    finally:
        os.umask(former)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (made, made.parent)] == [0o700] * 2
    (tmp_path / "file").write_text("")
    with pytest.raises(Denied, match="the cache cannot be created"):
        Session({"HOME": str(tmp_path / "file")}).make_home_cache()


def test_no_place_for_a_proxy(tmp_path: Path) -> None:
    """A cache directory that cannot be made is Denied, and names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Denied, match="the proxy's cache cannot be created"):
        start(OwnProxy(tmp_path / "file" / "proxy"), ["false"], {})


def test_ask(place: Place) -> None:
    """ask gives the JSON of an answer; refusals and other answers are errors."""
    place.start()
    assert ask(place.own.url, "/status") == {"node": {"store": "s3://b/p"}}
    assert ask(place.own.url, "/secret", "s3cret")
    with pytest.raises(Denied, match="LODEFS_TOKEN"):
        ask(place.own.url, "/secret", "wrong")
    with pytest.raises(Denied, match="needs a token"):
        ask(place.own.url, "/secret")
    with pytest.raises(Unavailable, match="answers 404"):
        ask(place.own.url, "/none")
    with pytest.raises(Unavailable, match="answers 200"):
        ask(place.own.url, "/deep")


def test_serves(place: Place) -> None:
    """A proxy counts as the one for a store when it says so; settings in the URL do not matter."""
    assert not serves(place.own.url, None)
    place.start()
    assert serves(place.own.url, None)
    assert serves(place.own.url, "s3://b/p/?region=x")
    assert not serves(place.own.url, "s3://b/other")


def test_paths_with_question_marks_are_different_stores() -> None:
    """Settings belong to URLs: two paths that differ after a '?' are two stores."""
    assert plain_store("/data?1/s") != plain_store("/data?2/s")
    assert plain_store("s3://b/p?region=x") == plain_store("s3://b/p/")


def test_each_store_has_its_own_proxy(tmp_path: Path) -> None:
    """Two stores never share a user's proxy; its command names store, socket and cache."""
    first, second = own_proxy(tmp_path, "/a"), own_proxy(tmp_path, "/b")
    assert first.directory != second.directory
    assert first == own_proxy(tmp_path, "/a")
    command = serve_command(first, "/a")
    assert command[command.index("--store") + 1] == "/a"
    assert command[command.index("--cache") + 1] == str(first.directory / "cache")


def test_which_of_the_users_own_proxies_end_by_themselves() -> None:
    """Those whose settings say nothing of it; over TCP and in a cluster users cannot be seen."""
    assert may_end({"cache_size_bytes_max": "1GiB"})
    for name in ("unused_timeout_s", "listen", "peers_dns"):
        assert not may_end({name: "0"})


def test_the_proxy_that_is_asked_for(tmp_path: Path) -> None:
    """--proxy and LODEFS_PROXY are taken as they are; without proxy and store there is an error."""
    assert proxy_url(Session({"LODEFS_PROXY": "http://node:7440"})) == "http://node:7440"
    session = Session({"LODEFS_PROXY": "http://node:7440"})
    session.apply_options(proxy="unix:/other")
    assert proxy_url(session) == "unix:/other"
    with pytest.raises(InvalidInput, match="LODEFS_PROXY"):
        proxy_url(Session({"HOME": str(tmp_path)}))


def test_no_running_proxy(tmp_path: Path) -> None:
    """Where no proxy is found, the error names the store, or says that none is given; an address
    where nobody listens is told with what starts a proxy."""
    session = Session({"HOME": str(tmp_path), "LODEFS_CONFIG": os.devnull})
    with pytest.raises(Unavailable, match="no store is given: use --store"):
        running_proxy(session)
    session.apply_options(store="/srv/s")
    with pytest.raises(Unavailable, match="no proxy for /srv/s runs here"):
        running_proxy(session)
    with pytest.raises(Unavailable, match=r"No such file or directory; .*`lodefs serve` starts"):
        ask(f"unix:{tmp_path}/none", "/status")


def test_finding_a_proxy_loads_no_store() -> None:
    """What each mount and status begin with does not wait for the code of stores."""
    stores = "lodefs.chunkstore.objects.open_url"
    code = f"import sys, lodefs.proxies.own_proxy; sys.exit({stores!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
