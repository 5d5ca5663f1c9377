"""lodefs is installed, used, upgraded and removed in a fresh Debian with a real systemd."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from loadtests.services.machine import Machine
from tests.deploy.conftest import Packages, Report
from tests.deploy.node_processes import NodeProcesses, check_reads, write_files
from tests.support.chunkstore.child_process import ChildError

pytestmark = [pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(600)]

MOUNT = "lodefs-mount@try.service"
UNITS = ["lodefs-proxy.service", "lodefs-proxy.socket", "lodefs-docker.service"]
READ = """
while sha256sum /data/try/data.bin; do sleep 0.1; done >>/shared/seen
echo failed >>/shared/seen"""
HOLD = "cd /data/try; mkfifo /shared/hold; cat /shared/hold"
WAIT = "mkfifo /shared/box; exec cat /shared/box"
MAP = """
import ctypes, os
fd = os.open("/data/try/data.bin", os.O_RDONLY)
ctypes.CDLL(None).mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0))
os.close(fd)
os.mkfifo("/shared/box")
open("/shared/box").read()"""
USERS = {
    "a container": ["unshare", "--mount", "--propagation", "private", "sh", "-c", WAIT],
    "a container that follows": ["unshare", "--mount", "--propagation", "slave", "sh", "-c",
                                 f"mount --bind /data/try /mnt; umount /data/try; {WAIT}"],
    "a mapped file": ["python3", "-c", MAP],
}  # fmt: skip
CALL = """
import http.client, json, socket, sys, time
method, body = sys.argv[1:]
for _ in range(100):
    plugin = http.client.HTTPConnection("plugin")
    plugin.sock = socket.socket(socket.AF_UNIX)
    plugin.sock.connect("/run/docker/plugins/lodefs.sock")
    plugin.request("POST", "/VolumeDriver." + method, body)
    answer = json.loads(plugin.getresponse().read())
    if "try again" not in answer.get("Err", ""):
        break
    time.sleep(0.1)
sys.exit(answer.get("Err") or print(answer.get("Mountpoint", "")))"""
OTHERS = "/var/lib/lodefs/mounter/proxies/*"  # proxies of other stores
OURS = "find / -xdev -name '*lodefs*'" + "".join(
    f" -not -path '/{place}/*'" for place in ("opt", "proc", "root", "shared")
)
INSTALL = """
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/shared/wheels
/opt/lodefs/deploy/install.sh --yes --wheel /shared/wheels/lodefs-*.whl"""
SIZES = {"data.bin": 8 << 20, "more.bin": 8 << 20}
CONFIGURE = """rm -rf /srv/*; echo 'store = "/srv/store"' >/etc/lodefs/lodefs.toml"""
STALE = "/usr/share/doc/lodefs/old.md"  # as if an earlier version had it


class Way:
    """One way to install: scripts that install, upgrade, remove, and remove with all data."""

    name = "Debian package"
    install = "dpkg -i /shared/first.deb"
    upgrade = "dpkg -i /shared/later.deb"
    remove = "dpkg -r lodefs"
    purge = "dpkg -P lodefs"


class ScriptWay(Way):
    """install.sh and uninstall.sh."""

    name = "install.sh"
    install = INSTALL
    upgrade = f"touch {STALE}; echo {STALE} >>/usr/lib/lodefs/manifest; {INSTALL}"
    remove = "/usr/lib/lodefs/uninstall.sh --yes"
    purge = "/opt/lodefs/deploy/uninstall.sh --yes --purge"


@pytest.fixture(params=["package", "script"])
def way(request: pytest.FixtureRequest, debian: Machine) -> Way:
    """The Debian package, or install.sh."""
    shared = debian.root / "shared"
    for name in ("seen", "hold", "box"):
        (shared / name).unlink(missing_ok=True)
    if request.param == "script":
        wheels: Path = request.getfixturevalue("wheels")
        shutil.copytree(wheels, shared / "wheels")
        return ScriptWay()
    packages: Packages = request.getfixturevalue("packages")
    shutil.copy(packages.first, shared / "first.deb")
    shutil.copy(packages.later, shared / "later.deb")
    return Way()


def test_life(debian: Machine, way: Way, report: Report) -> None:
    """Installation starts nothing; then data processes fetch, and the kernel reads by itself; an
    upgrade changes the programs and neither a mount nor its reader; removal waits for readers and
    keeps settings and cache; purge leaves nothing."""
    debian.shell(way.install, timeout_s=120)
    units = " ".join(UNITS)
    assert set(debian.shell(f"systemctl is-active {units} || true").split()) == {"inactive"}
    assert set(debian.shell(f"systemctl is-enabled {units} || true").split()) == {"disabled"}
    assert debian.run("id", "-un", "lodefs").strip() == "lodefs"
    assert debian.run("lodefs", "version").startswith("lodefs ")

    if isinstance(way, ScriptWay):
        debian.shell(CONFIGURE)
    else:
        told_too_early(debian)
    digests = set_up(debian)
    report(way.name, check_reads(NodeProcesses(debian.init_pid), digests, partial(read, debian)))
    assert re.search(r"data processes\W+\d+ live", debian.shell("lodefs doctor || true"))
    digest = digests["data.bin"]
    volume = add_volume(debian)
    (other,) = debian.shell(f"cat {OTHERS}/pid").split()
    device = debian.run("stat", "-c", "%d", "/data/try")
    pids = [debian.show(unit, "MainPID") for unit in (UNITS[0], MOUNT)]
    with debian.start("sh", "-c", READ) as reader, debian.start("sh", "-c", HOLD) as holder:
        debian.until("a whole read", "[ -p /shared/hold ] && grep -q data.bin /shared/seen")
        debian.shell(way.upgrade, timeout_s=120)
        now = f"$(systemctl show --value -p MainPID {MOUNT})"
        debian.until("another process", f"[ {now} != {pids[1]} ] && systemctl is-active {MOUNT}")
        assert not debian.shell(f"ls {STALE} 2>/dev/null || true")
        assert debian.show(UNITS[0], "MainPID") not in ("0", pids[0])
        assert debian.run("stat", "-c", "%d", "/data/try") == device
        debian.until("the other proxy", f"grep -qs proxies /proc/$(cat {OTHERS}/pid)/cmdline")
        assert debian.shell(f"cat {OTHERS}/pid").split() != [other]
        assert debian.run("sha256sum", f"{volume}/data.bin").split()[0] == digest
        with pytest.raises(ChildError, match="/data/try is used by process"):
            debian.shell(way.remove)
        assert debian.run("systemctl", "is-active", MOUNT).strip() == "active"
        assert reader.process.poll() is None
        debian.shell("echo >/shared/hold")
        holder.wait()
    seen = (debian.root / "shared/seen").read_text().splitlines()
    assert {line.split()[0] for line in seen} == {digest}

    free = "! /usr/lib/lodefs/services.sh in-use | grep used"
    for what, words in USERS.items():
        with debian.start(*words) as user:
            debian.until(what, f"[ -p /shared/box ] && ! ({free})")
            with pytest.raises(ChildError, match="/data/try is used by process"):
                debian.shell(way.remove)
            debian.shell("echo >/shared/box; rm /shared/box")
            user.wait()
        debian.until("nobody", free)
    debian.shell(way.remove, timeout_s=120)
    assert "fuse.lodefs" not in debian.run("cat", "/proc/self/mountinfo")
    debian.until("no process", "! grep -lsa lodefs.mai[n] /proc/[0-9]*/cmdline")
    assert debian.shell("find /etc/lodefs -type f").split() == [
        "/etc/lodefs/lodefs.toml",
        "/etc/lodefs/mounts.d/try.toml",
    ]
    assert debian.run("cat", "/etc/lodefs/lodefs.toml") == 'store = "/srv/store"\n'
    assert debian.shell("find /var/cache/lodefs -type f")
    assert debian.shell("find /usr -path '*lodefs*'") == ""
    debian.shell("rm -r /var/cache/lodefs/*; mount -t tmpfs none /var/cache/lodefs")
    debian.shell("touch /var/cache/lodefs/slab /etc/default/lodefs-docker")
    debian.shell(way.purge, timeout_s=120)
    assert debian.shell("ls -A /var/cache/lodefs") == ""
    debian.shell("umount /var/cache/lodefs; rmdir /var/cache/lodefs")
    assert debian.shell(OURS).split() == []
    assert debian.shell("grep -lsa bin/lodef[s] /proc/[0-9]*/cmdline || true") == ""


def told_too_early(debian: Machine) -> None:
    """A proxy that is started before its store is made says what is missing."""
    assert debian.shell("ls -A /etc/lodefs/mounts.d") == ""
    debian.shell(CONFIGURE)
    with pytest.raises(ChildError):
        debian.run("systemctl", "start", UNITS[0])
    with pytest.raises(ChildError, match=r"cannot start: .*`lodefs init /srv/store`"):
        debian.run("lodefs", "status")


def read(debian: Machine, name: str) -> str:
    """The SHA-256 of a file of the mount."""
    return debian.run("sha256sum", f"/data/try/{name}").split()[0]


def set_up(debian: Machine) -> dict[str, str]:
    """A store, a proxy of it, and a mount with two files; the SHA-256 of each."""
    digests = write_files(debian.root / "srv/in", SIZES)
    debian.shell("""
        lodefs init /srv/store
        lodefs --store /srv/store push /srv/in try
        cp -R /srv/store /srv/other
        chmod -R a+rX /srv/store
        cd /etc/lodefs/mounts.d
        printf 'spec = "try"\\ndir = "/data/try"\\ncreate_dir = true\\n' >try.toml
        systemctl enable lodefs-proxy.service
        systemctl restart lodefs-proxy.service
        systemctl daemon-reload
        systemctl start lodefs-mount@try.service
        """)
    return digests


def add_volume(debian: Machine) -> str:
    """A mounted volume of Docker's plugin, of another store than the node's; where it is."""
    debian.shell("systemctl start lodefs-docker.socket")
    options = {"repo": "try", "store": "/srv/other"}
    call(debian, "Create", Name="v", Opts=options)
    return call(debian, "Mount", Name="v", ID="one").strip()


def call(debian: Machine, method: str, **body: object) -> str:
    """What the plugin tells dockerd, once it is not late any more."""
    return debian.run("python3", "-c", CALL, method, json.dumps(body))
