"""The managed plugin: its description, its root file system, its volumes in a real dockerd."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest

from loadtests.services import S3Server
from loadtests.services.dockerd import IMAGE, Dockerd
from tests.deploy.conftest import DEPLOY, Report, build
from tests.deploy.dataset import Dataset, push
from tests.deploy.node_processes import NodeProcesses, check_reads
from tests.docs.pages import block, typed
from tests.support.chunkstore.child_process import ChildError, run
from tests.support.mount.mounts import until

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

NAME = "lodefs:try"
SIZE_MB_MAX = 200
VOLUME = "cats"
READ = """
n=0
while (cd /data && sha256sum -s -c /sums); do
  echo read; n=$((n + 1)); echo $n >/rounds; sleep 0.1
done
echo FAILED
"""
UNTIL_S = 60.0
POLL_S = 0.2  # each try takes a tenth of a second of a processor


@pytest.fixture(scope="session")
def plugin(workshop: Path, wheels: Path) -> Path:
    """The directory that `docker plugin create` takes."""
    directory = workshop / "plugin"
    (own,) = wheels.glob("lodefs-*.whl")
    build(DEPLOY / "docker-plugin/build.sh", "--wheel", own, directory, wheels=wheels)
    return directory


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """config.json."""
    found = json.loads((DEPLOY / "docker-plugin/config.json").read_text())
    assert isinstance(found, dict)
    return found


def test_what_it_asks_for(config: dict[str, Any]) -> None:
    """Of the host it gets one capability, one device and two directories, all but one read-only."""
    assert config["interface"] == {"types": ["docker.volumedriver/1.0"], "socket": "lodefs.sock"}
    assert config["linux"]["capabilities"] == ["CAP_SYS_ADMIN"]
    assert [one["path"] for one in config["linux"]["devices"]] == ["/dev/fuse"]
    assert not {"allowAllDevices"} & set(config["linux"])
    assert not {"pidhost", "ipchost"} & set(config)
    writable = [one["name"] for one in config["mounts"] if "ro" not in one["options"]]
    assert writable == ["cache"]
    assert all(one["settable"] == ["source"] for one in config["mounts"])


def test_no_setting_is_a_secret(config: dict[str, Any]) -> None:
    """Settings are seen by `docker plugin inspect`: none is for a credential."""
    names = [one["name"] for one in config["env"]]
    assert "AWS_SHARED_CREDENTIALS_FILE" in names
    words = ("SECRET", "TOKEN", "PASSWORD", "ACCESS_KEY")
    assert not [name for name in names if any(word in name for word in words)]


def test_root_file_system(plugin: Path, config: dict[str, Any]) -> None:
    """It runs lodefs, holds nothing that needs no place there, and no file raises privileges."""
    root = plugin / "rootfs"
    assert run(["chroot", root, "/usr/bin/lodefs", "version"]).startswith("lodefs ")
    files = [Path(place, name) for place, _, names in os.walk(root) for name in names]
    assert {one.name for one in (root / "usr/bin").iterdir()} == {"lodefs", "python3.11"}
    assert not [one for one in files if one.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert not list((root / "dev").iterdir())
    assert sum(one.lstat().st_size for one in files) < SIZE_MB_MAX << 20
    for place in (*config["entrypoint"][:1], config["entrypoint"][-1]):
        assert (root / place.lstrip("/")).is_file()
    for mount in config["mounts"]:
        assert (root / mount["destination"].lstrip("/")).is_dir()
    bundle = (root / "etc/ssl/certs/ca-certificates.crt").read_text()
    assert bundle.count("BEGIN CERTIFICATE") > 50


class Plugin:
    """The plugin in a dockerd."""

    def __init__(self, dockerd: Dockerd, dataset: Dataset, config: Path, cache: Path) -> None:
        self.dockerd = dockerd
        self.dataset = dataset
        self.config = config
        self.cache = cache

    def children(self) -> dict[int, str]:
        """The children of the plugin's first process, with their command lines."""
        processes = table()
        init = next(
            pid
            for pid, (parent, argv) in processes.items()
            if "lodefs-init.py" in argv and str(self.dockerd.directory) in processes[parent][1]
        )
        return {pid: argv for pid, (parent, argv) in processes.items() if parent == init}

    def processes(self) -> NodeProcesses:
        """Those of the proxy."""
        return NodeProcesses(self.services()[0])

    def services(self) -> list[int]:
        """The proxy and the plugin, as they run now."""
        children = self.children()
        return [
            min(pid for pid, argv in children.items() if f"lodefs {command} " in argv)
            for command in ("serve", "docker-plugin")
        ]

    def until_it_answers(self, *words: str) -> None:
        """Waits until `docker` does it."""
        deadline, pause = monotonic() + UNTIL_S, Event()
        while (done := self.dockerd.try_docker(*words)).returncode != 0:
            if monotonic() > deadline:
                raise ChildError(f"docker {words}: {done.stderr}\n{self.dockerd.log[-5000:]}")
            pause.wait(POLL_S)


def table() -> dict[int, tuple[int, str]]:
    """Parent and command line of each process."""
    found = {}
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            argv = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            parent = (one / "stat").read_text().rpartition(") ")[2].split()[1]
            found[int(one.name)] = (int(parent), argv)
    return found


@pytest.fixture(scope="module")
def node(
    plugin: Path,
    dockerd: Dockerd,
    moto: S3Server,
    workshop: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Plugin]:
    """The plugin, enabled, with credentials of S3 in a file."""
    config, cache = workshop / "config", workshop / "cache"
    config.mkdir()
    cache.mkdir()
    dataset = push(moto, tmp_path_factory.mktemp("source"))
    keys = f"aws_access_key_id={moto.access_key}\naws_secret_access_key={moto.secret_key}\n"
    (config / "aws").write_text(f"[default]\n{keys}")
    (config / "aws").chmod(0o600)
    (config / "lodefs.toml").write_text('[serve]\ncache_size_bytes_max = "256MiB"\n')
    dockerd.docker("plugin", "create", NAME, plugin)
    sources = [f"{name}.source={config}" for name in ("config", "proxy")]
    settings = [f"LODEFS_STORE={dataset.store}", f"AWS_ENDPOINT_URL={moto.endpoint_url}"]
    more = [f"cache.source={cache}", "AWS_DEFAULT_REGION=us-east-1"]
    dockerd.docker("plugin", "set", NAME, *sources, *settings, *more)
    dockerd.docker("plugin", "enable", NAME)
    try:
        yield Plugin(dockerd, dataset, config, cache)
    finally:
        dockerd.try_docker("volume", "rm", "--force", VOLUME)
        dockerd.try_docker("plugin", "rm", "--force", NAME)


def test_its_processes_work(node: Plugin, report: Report) -> None:
    """The data processes live and fetch, and complete files are read by the kernel alone."""
    node.until_it_answers("volume", "create", "-d", NAME, "-o", "repo=cats", VOLUME)
    words = ("--network", "none", "-v", f"{VOLUME}:/data:ro", IMAGE, "sleep", "600")
    box = node.dockerd.docker("run", "-d", "--stop-timeout", "1", *words)
    large = {name: node.dataset.sha256[name] for name in ("b", "c")}

    def read(name: str) -> str:
        return node.dockerd.docker("exec", box, "sha256sum", f"/data/{name}").split()[0]

    report("managed plugin", check_reads(node.processes(), large, read))
    node.dockerd.docker("rm", "--force", box)
    node.until_it_answers("volume", "rm", VOLUME)


def test_a_volume_in_a_container(node: Plugin, moto: S3Server) -> None:
    """Containers read what was pushed to S3, by the kernel alone where files are complete; the
    credentials are nowhere to be seen; processes have what they need and no more."""
    node.until_it_answers("volume", "create", "-d", NAME, "-o", "repo=cats", VOLUME)
    sums = "".join(f"{digest}  {name}\n" for name, digest in node.dataset.sha256.items())
    script = f"cd /data && printf '{sums}' | sha256sum -c && touch x"
    words = ("run", "--rm", "--network", "none", "-v", f"{VOLUME}:/data:ro", IMAGE, "sh", "-c")
    done = node.dockerd.try_docker(*words, script)
    assert "Read-only file system" in done.stderr
    assert done.stdout.split() == [
        word for name in node.dataset.sha256 for word in (f"{name}:", "OK")
    ]
    unknown = node.dockerd.try_docker("volume", "create", "-d", NAME, "-o", "repo=dogs", "dogs")
    assert "no repository dogs" in unknown.stderr
    seen = [node.dockerd.docker(*what) for what in (("plugin", "inspect", NAME),
                                                    ("volume", "inspect", VOLUME))]  # fmt: skip
    assert not [text for text in (*seen, node.dockerd.log) if moto.secret_key in text]
    proxy, service = node.services()
    assert capabilities(proxy) == "000000000000000b"
    assert capabilities(service) == "000000000020002b"


def test_as_the_page_has_it(node: Plugin) -> None:
    """The first commands of the page on Docker make a volume and read it."""
    script = typed(block("docker.md#volumes-for-docker-1"))
    ours = {"--driver lodefs": f"--driver {NAME}", "repo=vision/flickr30k": "repo=cats"}
    ours |= {"docker run": "docker run --network none", " IMAGE ": f" {IMAGE} "}
    for theirs, here in ours.items():
        assert theirs in script
        script = script.replace(theirs, here)
    environment = {**os.environ, **node.dockerd.environment()}
    try:
        out = run(["sh", "-euc", script], env=environment)
        assert out.split() == ["flickr30k", *node.dataset.sha256]
    finally:
        node.dockerd.try_docker("volume", "rm", "--force", "flickr30k")


def capabilities(pid: int) -> str:
    """What a process may do, as the kernel writes it (capabilities(7))."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = {line.split()[1] for line in status if line.startswith(("CapPrm", "CapBnd"))}
    return found


def test_readers_do_not_see_its_processes_die(node: Plugin) -> None:
    """kill -9 of the proxy and of the plugin, while a container reads: both come again, no read
    fails, and the volume is used and removed as before."""
    node.until_it_answers("volume", "create", "-d", NAME, "-o", "repo=cats", VOLUME)
    sums = "".join(f"{digest}  {name}\\n" for name, digest in node.dataset.sha256.items())
    words = ("--network", "none", "-v", f"{VOLUME}:/data:ro", IMAGE, "sh", "-c")
    reader = node.dockerd.docker("run", "-d", *words, f"printf '{sums}' >/sums; {READ}")
    before = node.services()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    node.until_it_answers("run", "--rm", *words, "cat /data/b >/dev/null")
    assert not set(before) & set(node.services())
    rounds = node.dockerd.docker("logs", reader).split().count("read")
    node.until_it_answers("exec", reader, "sh", "-c", f"[ $(cat /rounds) -gt {rounds + 1} ]")
    assert "FAILED" not in node.dockerd.docker("logs", reader).split()
    assert node.dockerd.docker("inspect", "-f", "{{.State.Running}}", reader) == "true"
    node.dockerd.docker("rm", "--force", reader)
    node.until_it_answers("volume", "rm", VOLUME)
    table = Path("/proc/self/mountinfo")
    until(lambda: not any("fuse.lodefs" in line and str(node.dockerd.directory) in line
                          for line in table.read_text().splitlines()))  # fmt: skip


def test_a_killed_dockerd_leaves_no_volume_in_use(node: Plugin) -> None:
    """kill -9 of dockerd, under a container that reads: dockerd ends both when it starts again and
    loses the Unmount, but the volume can be used and removed."""
    node.until_it_answers("volume", "create", "-d", NAME, "-o", "repo=cats", VOLUME)
    words = ("--network", "none", "-v", f"{VOLUME}:/data:ro", IMAGE)
    reader = node.dockerd.docker("run", "-d", "--stop-timeout", "1", *words, "sleep", "600")
    node.dockerd.restart(signal.SIGKILL)
    assert node.dockerd.docker("inspect", "-f", "{{.State.Running}}", reader) == "false"
    node.until_it_answers("run", "--rm", *words, "cat", "/data/a")
    node.dockerd.docker("rm", "--force", reader)
    node.until_it_answers("volume", "rm", VOLUME)


def test_disabled_it_leaves_nothing(node: Plugin) -> None:
    """Mounts and processes go with the plugin, in the time that dockerd gives it."""
    node.until_it_answers("volume", "create", "-d", NAME, "-o", "repo=cats", VOLUME)
    children = node.children()
    started = monotonic()
    node.dockerd.docker("plugin", "disable", "--force", NAME)
    assert monotonic() - started < 9.0  # after 10 s dockerd kills
    assert not set(children) & set(table())
    assert "fuse.lodefs" not in " ".join(node.dockerd.mounts_left())
    node.dockerd.docker("plugin", "enable", NAME)
    node.until_it_answers("volume", "inspect", VOLUME)  # its state outlives the plugin
