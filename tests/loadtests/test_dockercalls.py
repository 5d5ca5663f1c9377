"""The emulated dockerd asks a plugin as the real one does, and so does a relay pass it on."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from threading import Thread
from typing import Any

import pytest

from loadtests.services.dockercalls import RETRIES_S, DockerCalls, PluginError
from loadtests.services.dockerd import IMAGE, Dockerd
from loadtests.services.pluginrelay import Calls, relayed

Body = dict[str, Any]


class FakePlugin:
    """A volume plugin whose volumes are empty directories. ``hang_up``: this many calls are lost
    after they were done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.volumes: dict[str, Body | None] = {}
        self.hang_up = 0

    def answer(self, method: str, asked: Body) -> Body:
        name = asked.get("Name", "")
        match method:
            case "Activate":
                return {"Implements": ["VolumeDriver"]}
            case "Capabilities":
                return {"Capabilities": {"Scope": "local"}}
            case "Create":
                self.volumes[name] = asked.get("Opts")
            case "Get" if name not in self.volumes:
                return {"Err": f"no volume {name}"}
            case "Get":
                return {"Volume": {"Name": name, "Status": {"commit": "abc"}}}
            case "List":
                return {"Volumes": [{"Name": name} for name in self.volumes]}
            case "Mount":
                place = self._folder / name
                place.mkdir(exist_ok=True)
                return {"Mountpoint": str(place)}
            case "Remove":
                del self.volumes[name]
        return {}


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[tuple[FakePlugin, Path]]:
    """A fake plugin and its socket."""
    fake, path = FakePlugin(tmp_path), tmp_path / "plugin.sock"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = fake.answer(self.path.rpartition(".")[2], json.loads(raw or b"{}"))
            if fake.hang_up:
                fake.hang_up -= 1
                self.close_connection = True
                return
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return ""

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingUnixStreamServer):
        daemon_threads = True
        block_on_close = False

    with Server(str(path), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield fake, path
        server.shutdown()
        thread.join()


def told(calls: Calls, act: Callable[[], object]) -> list[tuple[str, Body]]:
    """What is asked while ``act`` runs; mount IDs by the order of their coming."""
    before = len(calls.seen)
    act()
    ids: dict[str, str] = {}
    found = []
    for call in calls.seen[before:]:
        asked = dict(call.asked)
        if "ID" in asked:
            asked["ID"] = ids.setdefault(asked["ID"], f"id {len(ids)}")
        found.append((call.method, asked))
    return found


@pytest.mark.docker
@pytest.mark.slow
def test_the_emulated_dockerd_asks_what_the_real_one_asks(
    dockerd: Dockerd, plugin: tuple[FakePlugin, Path], tmp_path: Path
) -> None:
    """Each command of docker makes the same calls, in the same order, as its emulation."""
    fake, path = plugin
    emulated = DockerCalls(path)
    name, box = f"v-{secrets.token_hex(4)}", f"box-{secrets.token_hex(4)}"
    run = ("run", "-d", "--stop-timeout", "0", "--network", "none", "--name", box)
    with relayed(tmp_path / "own.sock", path) as real, dockerd.plugin(tmp_path / "own.sock") as d:
        options = {"repo": "demo"}
        pairs: list[tuple[tuple[str, ...], Callable[[], object]]] = [
            (
                ("volume", "create", "-d", d, "-o", "repo=demo", name),
                lambda: emulated.volume_create(name, options),
            ),
            (("volume", "create", "-d", d, name), lambda: emulated.volume_create(name)),
            (("volume", "inspect", name), lambda: emulated.volume_inspect(name)),
            (("volume", "ls"), emulated.volume_ls),
            ((*run, "-v", f"{name}:/data", IMAGE, "sleep", "60"), lambda: run_and_keep(True)),
            (("cp", f"{box}:/data", "-"), lambda: emulated.cp(kept[-1])),
            (("rm", "-f", box), lambda: emulated.stop(kept[-1])),
            ((*run, "-v", f"{name}:/new", IMAGE, "sleep", "60"), lambda: run_and_keep(False)),
            (("stop", box), lambda: emulated.stop(kept[-1])),
            (("rm", box), lambda: None),
        ]
        kept = []

        def run_and_keep(copies_up: bool) -> None:
            kept.append(emulated.run(name, copies_up=copies_up))

        for words, emulation in pairs:
            asked = told(real, lambda words=words: dockerd.docker(*words))
            if words[1] == "create" and "-o" in words:
                fake.volumes.clear()  # the emulation makes it, too
            assert told(emulated.calls, emulation) == asked, words
        asked = told(real, lambda: dockerd.docker("volume", "rm", name))
        fake.volumes[name] = None
        assert told(emulated.calls, lambda: emulated.volume_rm(name)) == asked


def test_a_lost_connection_is_tried_again(plugin: tuple[FakePlugin, Path]) -> None:
    """A call whose answer is lost comes again, later each time; without its body, as dockerd's."""
    fake, path = plugin
    waits: list[float] = []
    docker = DockerCalls(path, waits.append)
    docker.volume_create("v")
    fake.hang_up = 3
    mounted = docker.mount("v")
    assert waits == [1, 2, 4]
    tries = docker.calls.seen[-4:]
    assert [call.asked for call in tries] == [{"Name": "v", "ID": mounted.id}, {}, {}, {}]
    assert [call.error for call in tries] == ["no answer"] * 3 + [""]


@pytest.mark.docker
@pytest.mark.slow
def test_dockerd_forgets_what_it_asked_when_the_connection_is_lost(
    dockerd: Dockerd, plugin: tuple[FakePlugin, Path], tmp_path: Path
) -> None:
    """The real dockerd, too, asks again without a body."""
    fake, path = plugin
    own = tmp_path / "own.sock"
    with relayed(own, path) as real, dockerd.plugin(own) as driver:
        dockerd.docker("volume", "create", "-d", driver, "lost")
        fake.hang_up = 1
        asked = told(real, lambda: dockerd.try_docker("volume", "inspect", "lost"))
        dockerd.docker("volume", "rm", "lost")
    assert asked == [("VolumeDriver.Get", {"Name": "lost"}), ("VolumeDriver.Get", {})]


def test_a_plugin_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """Where nobody listens the call fails after as many tries as dockerd makes."""
    waits: list[float] = []
    with pytest.raises(OSError, match=r"Plugin\.Activate"):
        DockerCalls(tmp_path / "nobody.sock", waits.append).volume_ls()
    assert tuple(waits) == RETRIES_S


def test_what_the_plugin_refuses_is_raised_with_its_words(
    plugin: tuple[FakePlugin, Path],
) -> None:
    """An answer with Err raises it."""
    with pytest.raises(PluginError, match="no volume other"):
        DockerCalls(plugin[1]).volume_inspect("other")


def test_a_relay_hangs_up_where_the_plugin_is_gone(tmp_path: Path) -> None:
    """Behind a relay, too, a caller sees a lost connection, and the relay has written it down."""
    own = tmp_path / "own.sock"
    gone = pytest.raises(OSError, match=r"Plugin\.Activate")
    with relayed(own, tmp_path / "nobody.sock") as calls, gone:
        DockerCalls(own, lambda _: None).volume_ls()
    assert {call.error for call in calls.seen} == {"no answer"}
