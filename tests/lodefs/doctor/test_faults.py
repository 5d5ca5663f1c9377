"""`lodefs doctor` on nodes with one real fault each: it names the fault and the mending."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

import pytest

from lodefs.app import run
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repo.store import create_store
from lodefs.proxy.http.tokens import create_token
from lodefs.settings.session import Session
from tests.support.chunkstore.bad_server import Answer, BadServer, Request
from tests.support.chunkstore.certificates import certificate
from tests.support.chunkstore.handmade import Handmade
from tests.support.lodefs.command_line import CommandResult

HOUR_S = 3600.0
KEYS = {"check", "state", "saw", "mend"}  # docs/scripting.md


class Node:
    """A node of which nothing is wrong, so far as it can be: a store, settings, a cache."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.cache = folder / "cache"
        self.cache.mkdir()
        self.serve = [f'cache_dir = "{self.cache}"']
        self.environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
        self.store = str(folder / "store")
        self.options: list[str] = []

    def settings(self, *lines: str) -> None:
        """Lines more of the table [serve]."""
        self.serve += lines

    def write_settings(self) -> None:
        """The file that LODEFS_CONFIG names."""
        file = self.folder / "lodefs.toml"
        file.write_text("\n".join([f'store = "{self.store}"', "[serve]", *self.serve, ""]))
        self.environment["LODEFS_CONFIG"] = str(file)

    def server(self, script: Callable[[Request], Answer]) -> BadServer:
        """A server that runs until the test ends."""
        return self.stack.enter_context(BadServer(script))

    def s3(self, script: Callable[[Request], Answer]) -> None:
        """The store is on this server."""
        self.store = f"s3://bucket?endpoint_url={self.server(script).endpoint_url}"

    def mount(self, *arguments: str) -> None:
        """mount(8), undone when the test ends."""
        subprocess.run(["mount", *arguments], check=True)
        self.stack.callback(subprocess.run, ["umount", "-l", arguments[-1]], check=True)


class Expected(NamedTuple):
    """What doctor is to say."""

    check: str
    state: str
    mend: str  # a part of it


FAULTS: list[Callable[[Node], Expected]] = []


def planted(function: Callable[[Node], Expected]) -> Callable[[Node], Expected]:
    """Makes a function that plants a fault one of FAULTS."""
    FAULTS.append(function)
    return function


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@planted
def mirror_that_is_none(node: Node) -> Expected:
    node.settings(f'mirrors = ["{node.folder / "nothing"}"]')
    return Expected("mirrors", "fault", "reads cannot fail over to it")


@planted
def mirror_of_another_store(node: Node) -> Expected:
    other = create_store(open_objects(str(node.folder / "other")))
    Handmade(other).commit("r", {b"a": b"of another store"})
    node.settings(f'mirrors = ["{node.folder / "other"}"]')
    return Expected("mirrors", "warning", "is it a copy of this store?")


@planted
def mistyped_setting(node: Node) -> Expected:
    node.settings("fetch_concurency = 8")
    return Expected("settings", "fault", "docs/configuration.md")


@planted
def store_that_is_down(node: Node) -> Expected:
    node.store = f"s3://bucket?endpoint_url=http://127.0.0.1:{free_port()}"
    return Expected("store", "fault", "endpoint_url")


@planted
def store_that_was_not_made(node: Node) -> Expected:
    node.store = str(node.folder / "elsewhere")
    return Expected("store", "fault", "lodefs init")


@planted
def wrong_credentials(node: Node) -> Expected:
    body = b"<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message></Error>"
    node.s3(lambda _: Answer(403, body))
    return Expected("credentials", "fault", "AWS_SECRET_ACCESS_KEY")


@planted
def store_that_overwrites(node: Node) -> Expected:
    settings = (Path(node.store) / "store.json").read_bytes()

    def script(request: Request) -> Answer:
        if request.method != "GET":
            return Answer()
        span = f"bytes 0-{len(settings) - 1}/{len(settings)}"
        return Answer(206, settings, {"Content-Range": span})

    node.s3(script)
    return Expected("conditional writes", "fault", "another S3 server")


@planted
def clock_that_is_wrong(node: Node) -> Expected:
    date = formatdate(os.stat(node.folder).st_mtime - HOUR_S, usegmt=True)
    node.s3(lambda _: Answer(403, headers={"Date": date}))
    return Expected("clock", "fault", "timedatectl set-ntp true")


@planted
def old_kernel(node: Node) -> Expected:
    node.environment["LODEFS_FUSE_WITHOUT"] = "passthrough,resend"
    return Expected("kernel", "warning", "LODEFS_FUSE_WITHOUT disables passthrough, resend")


@planted
def no_fuse_device(node: Node) -> Expected:
    (node.folder / "file").touch()
    node.mount("--bind", str(node.folder / "file"), "/dev/fuse")
    return Expected("fuse device", "fault", "mknod")


@planted
def no_fusermount(node: Node) -> Expected:
    node.environment["PATH"] = str(node.folder)
    return Expected("fusermount3", "warning", "apt-get install fuse3")


@planted
def cache_on_overlayfs(node: Node) -> Expected:
    node.mount("-t", "tmpfs", "none", str(node.cache))  # overlayfs upon overlayfs is refused
    for name in ("lower", "upper", "work", "merged"):
        (node.cache / name).mkdir()
    parts = ",".join(f"{name}dir={node.cache}/{name}" for name in ("lower", "upper", "work"))
    node.mount("-t", "overlay", "overlay", "-o", parts, str(node.cache / "merged"))
    node.serve[0] = f'cache_dir = "{node.cache}/merged"'
    return Expected("cache file system", "warning", "a disk of the host")


@planted
def cache_that_is_a_file(node: Node) -> Expected:
    node.cache.rmdir()
    node.cache.touch()
    return Expected("cache directory", "fault", "another cache_dir")


@planted
def cache_of_a_newer_lodefs(node: Node) -> Expected:
    (node.cache / "VERSION").write_text("lodefs-cache 99\n")
    return Expected("cache directory", "fault", "use another lodefs")


@planted
def full_disk(node: Node) -> Expected:
    node.mount("-t", "tmpfs", "-o", "size=16m", "none", str(node.cache))
    return Expected("free space", "fault", "make room")


@planted
def proxy_that_does_not_run(node: Node) -> Expected:
    node.options = ["--proxy", f"unix:{node.folder}/sock"]
    return Expected("proxy", "fault", "systemctl start lodefs-proxy")


@planted
def proxy_that_wants_a_token(node: Node) -> Expected:
    node.options = ["--proxy", node.server(lambda _: Answer(401)).endpoint_url]
    return Expected("proxy", "fault", "LODEFS_TOKEN")


@planted
def proxy_of_another_version(node: Node) -> Expected:
    status = json.dumps({"version": "0.0.1", "node": {"store": node.store}}).encode()
    node.options = ["--proxy", node.server(lambda _: Answer(200, status)).endpoint_url]
    return Expected("versions", "warning", "systemctl restart lodefs-proxy")


@planted
def corrupt_cache(node: Node) -> Expected:
    figures = {"store": node.store, "cache_corrupt_files": 3}
    status = json.dumps({"version": "1", "node": figures}).encode()
    node.options = ["--proxy", node.server(lambda _: Answer(200, status)).endpoint_url]
    return Expected("cache contents", "warning", "lodefs verify --cache --repair")


@planted
def data_processes_that_end(node: Node) -> Expected:
    figures = {"store": node.store, "data_processes": 0, "data_processes_restarts": 9}
    status = json.dumps({"version": "1", "node": figures}).encode()
    node.options = ["--proxy", node.server(lambda _: Answer(200, status)).endpoint_url]
    return Expected("data processes", "warning", "journalctl -u lodefs-proxy")


@planted
def port_that_is_taken(node: Node) -> Expected:
    taken = node.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = taken.getsockname()[1]
    node.settings(f'listen = "127.0.0.1:{port}"', "allow_anonymous = true")
    return Expected("ports", "fault", f"ss -ltnp sport = :{port}")


@planted
def tokens_that_others_can_read(node: Node) -> Expected:
    file = node.folder / "tokens"
    file.write_text("{}")
    file.chmod(0o644)
    node.settings(f'tokens_file = "{file}"')
    return Expected("tokens", "fault", "chmod 0640")


def proxy_with(node: Node, tokens: list[dict[str, str]]) -> None:
    """A proxy that says this of its tokens."""
    status = json.dumps({"version": "1", "tokens": tokens, "node": {"store": node.store}})
    node.options = ["--proxy", node.server(lambda _: Answer(200, status.encode())).endpoint_url]


def tokens_file(node: Node) -> Path:
    """The node's, with one token."""
    file = node.folder / "tokens"
    create_token(file, "ci", ["*"], now_s=1)
    node.settings(f'tokens_file = "{file}"')
    return file


@planted
def tokens_that_the_proxy_cannot_read(node: Node) -> Expected:
    file = str(tokens_file(node))
    proxy_with(node, [{"file": file, "digest": "ab", "problem": "Permission denied"}])
    return Expected("tokens", "fault", f"chown root:lodefs {file}")


@planted
def tokens_that_the_proxy_has_not_read(node: Node) -> Expected:
    proxy_with(node, [{"file": str(tokens_file(node)), "digest": "ab", "problem": ""}])
    return Expected("tokens", "warning", "journalctl")


@planted
def peer_that_is_down(node: Node) -> Expected:
    node.settings(f'peers = ["127.0.0.1:{free_port()}"]', "peer_allow_anonymous = true")
    return Expected("peers", "fault", "start lodefs-proxy there")


@planted
def secret_that_is_too_short(node: Node) -> Expected:
    file = node.folder / "secret"
    file.write_text("short")
    file.chmod(0o600)
    node.settings(f'peer_secret_file = "{file}"')
    return Expected("peer secret", "fault", "openssl rand")


@planted
def certificate_that_has_expired(node: Node) -> Expected:
    file = certificate(node.folder, days=-1)
    node.settings(f'tls_cert_file = "{file}"', f'tls_key_file = "{file}"')
    return Expected("certificates", "fault", "renew it")


@planted
def certificate_that_expires_soon(node: Node) -> Expected:
    file = certificate(node.folder, days=2)
    node.settings(f'tls_cert_file = "{file}"', f'tls_key_file = "{file}"')
    return Expected("certificates", "warning", "renew it")


AS_ROOT = {old_kernel, no_fuse_device, no_fusermount, cache_on_overlayfs, full_disk}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node with a store."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "B")
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        assert run(["init", made.store], Session(made.environment)) == 0
        yield made


def doctor(node: Node, capfdbinary: pytest.CaptureFixture[bytes], *more: str) -> CommandResult:
    """Runs it."""
    node.write_settings()
    capfdbinary.readouterr()
    code = run([*node.options, "doctor", *more], Session(node.environment))
    out, err = capfdbinary.readouterr()
    return CommandResult(code, out.decode(), err.decode())


@pytest.mark.fuse
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_fault(
    plant: Callable[[Node], Expected], node: Node, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A fault that was set up on purpose is found, with its state and its mending; faults, and
    nothing less, make the exit code 1."""
    if plant in AS_ROOT and os.geteuid() != 0:
        pytest.skip("it takes root to set this up")
    expected = plant(node)
    result = doctor(node, capfdbinary, "--json")
    found = [one for one in result.json_lines if one["check"] == expected.check]
    assert all(one.keys() == KEYS for one in result.json_lines)
    assert [(one["state"], expected.mend in (one["mend"] or "")) for one in found] == [
        (expected.state, True)
    ], found
    faulty = any(one["state"] == "fault" for one in result.json_lines)
    assert result.code == int(faulty)


def test_few_open_files(node: Node) -> None:
    """A process that may open few files says so."""
    node.write_settings()
    command = f"ulimit -n 200; exec {sys.executable} -m lodefs.main doctor --json"
    done = subprocess.run(
        ["bash", "-c", command], env=node.environment, capture_output=True, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    files = next(one for one in found if one["check"] == "open files")
    assert files["state"] == "fault" and "LimitNOFILE" in files["mend"]
    assert done.returncode == 1


def test_sound_node(node: Node, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Where nothing is wrong there is no fault, and the last line says so; nothing stays behind."""
    result = doctor(node, capfdbinary)
    assert result.code == 0, result.out
    assert result.out.splitlines()[-1].startswith("0 faults, ")
    assert not list(node.cache.iterdir())
