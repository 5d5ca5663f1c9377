"""What checks judge, and how they run: side by side, each within its time."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.doctor import cache_checks, cluster_checks, proxy_checks, store_checks
from lodefs.doctor.cache_checks import DiskSpeed
from lodefs.doctor.check import Check, Finding, State, ok, run
from lodefs.doctor.subject import ProxySeen, Subject, may_read, subject_of, unreadable
from lodefs.mount.kernel import mount_table
from lodefs.proxy.peers.security.tls import expiries_s
from lodefs.settings.config import S3Config
from lodefs.settings.session import Session
from tests.support.chunkstore.certificates import certificate

TABLE = b"""1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:40 / /var/cache rw - nfs4 server:/cache rw
3 1 0:41 / /var/cachefiles rw - tmpfs none rw
"""


def test_late_check_holds_up_nobody() -> None:
    """A check that does not end in time is a fault with its mending; those after it are heard."""
    never = Event()

    def hang() -> list[Finding]:
        never.wait()
        return []

    hanging = Check("a", hang, "look at dmesg", timeout_s=0.05)
    found = list(run([hanging, Check("b", lambda: [ok("b", "fine")], "")]))
    never.set()
    assert found[0] == Finding("a", State.FAULT, "no answer within 0.05 s", "look at dmesg")
    assert found[1:] == [ok("b", "fine")]


def test_broken_check_is_no_fault_of_the_node() -> None:
    """An error that a check did not expect, or a right that it lacks, is no fault of the node."""

    def broken() -> list[Finding]:
        raise KeyError("x")

    def denied() -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/x")

    found = list(run([Check("a", broken, ""), Check("b", denied, "")]))
    assert [one.state for one in found] == [State.UNCHECKED, State.UNCHECKED]
    assert found[1].mend == "run it as root"


@pytest.mark.parametrize(
    ("place", "kind", "state"),
    [
        ("/var/cache/lodefs", "nfs4", State.FAULT),
        ("/var/cachefiles", "tmpfs", State.WARNING),
        ("/srv", "ext4", State.OK),
    ],
)
def test_file_system(place: str, kind: str, state: State) -> None:
    """The mount that a directory is below is the nearest, and a network is refused."""
    found = cache_checks.kind_of(Path(place), mount_table.parse(TABLE))
    assert found == kind
    assert cache_checks.judged_kind(found, Path(place)).state == state


@pytest.mark.parametrize(
    ("running", "ended", "state", "saw"),
    [
        (None, None, State.OK, "fetches without them: data_processes is 0, or there is one"),
        (0, 0, State.OK, "the first large fetch will start them"),
        (2, 1, State.OK, "2 live"),
        (0, 3, State.WARNING, "none runs, 3 ended"),
    ],
)
def test_data_processes(running: int | None, ended: int | None, state: State, saw: str) -> None:
    """Doctor says whether data processes live, or why there are none."""
    figures = {"data_processes": running, "data_processes_restarts": ended}
    node = {name: value for name, value in figures.items() if value is not None}
    found = proxy_checks.data_processes(node)
    assert found.state == state
    assert saw in found.saw


@pytest.mark.parametrize(
    ("skew_s", "in_cluster", "state"),
    [
        (1, True, State.OK),
        (-20, False, State.WARNING),
        (40, False, State.WARNING),
        (-40, True, State.FAULT),
        (901, False, State.FAULT),
    ],
)
def test_clock(skew_s: float, in_cluster: bool, state: State) -> None:
    """The clock may be off by as much as S3 allows, in a cluster by as much as nodes allow."""
    assert store_checks.judged(skew_s, in_cluster=in_cluster).state == state


def test_slow_disk() -> None:
    """A disk that is slow in one direction is warned of."""
    assert cache_checks.judged_speed(DiskSpeed(1e9, 1e7)).state == State.WARNING
    assert cache_checks.judged_speed(DiskSpeed(1e9, 1e9)).state == State.OK
    assert cache_checks.judged_speed(None).state == State.UNCHECKED


def test_the_file_that_is_measured_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is the proxy's user's, who could put another file in its place for root."""
    seen: list[str] = []
    rate = cache_checks._rate
    monkeypatch.setattr(
        cache_checks, "_rate", lambda step: seen.extend(os.listdir(tmp_path)) or rate(step)
    )
    cache_checks.measured(tmp_path)
    assert seen == []


def test_expiry(tmp_path: Path) -> None:
    """The end of each certificate of a file is read as OpenSSL reads it."""
    import datetime as dt

    from cryptography import x509

    text = certificate(tmp_path, days=20_000).read_text()  # beyond 2050: another form of time
    soon = certificate(tmp_path, days=3).read_text()
    known = [
        x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc for pem in (text, soon)
    ]
    assert expiries_s(text + soon) == [one.timestamp() for one in known]
    assert known[0] > dt.datetime(2050, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("cut", range(10, 300, 23))
def test_damaged_certificate(tmp_path: Path, cut: int) -> None:
    """A certificate that is cut is an error of the input."""
    import ssl

    der = ssl.PEM_cert_to_DER_cert(
        certificate(tmp_path).read_text().partition("-----END PRIVATE KEY-----\n")[2]
    )
    with pytest.raises(InvalidInput):
        expiries_s(ssl.DER_cert_to_PEM_cert(der[:cut]))
    with pytest.raises(InvalidInput):
        expiries_s("nothing")


def test_a_port_that_systemd_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd's copy of the proxy's socket is no other program: found before the proxy, it is no
    fault, nor while the proxy is away; another program is one."""
    systemd, ours = "systemd (process 1)", "lodefs (process 77)"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        def seen(*holders: str, runs: bool) -> State | None:
            monkeypatch.setattr(proxy_checks, "holders", lambda _: list(holders))
            found = proxy_checks._port("listen", "127.0.0.1", port, runs=runs)
            return None if found is None else found.state

        assert seen(systemd, ours, runs=True) is None
        assert seen(runs=True) is None
        assert seen(systemd, runs=False) is State.UNCHECKED
        assert seen("nginx (process 5)", systemd, runs=True) is State.FAULT
        assert seen("nginx (process 5)", runs=False) is State.FAULT


def test_who_has_a_port() -> None:
    """All processes that have the socket are found."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[taken.fileno()])
        try:
            found = proxy_checks.holders(taken.getsockname()[1])
        finally:
            child.kill()
            child.wait()
    assert f"sleep (process {child.pid})" in found
    assert any(f"(process {os.getpid()})" in one for one in found)


@pytest.mark.parametrize(
    ("owner", "group", "mode", "may"),
    [
        (0, 0, 0o600, False),
        (0, 7, 0o640, True),
        (0, 9, 0o640, False),
        (5, 0, 0o400, True),
        (5, 7, 0o040, False),
        (0, 0, 0o644, True),
    ],
)
def test_what_the_service_may_read(owner: int, group: int, mode: int, may: bool) -> None:
    """By owner, then group, then mode, as the kernel decides for who is not root."""
    found = os.stat_result((mode, 0, 0, 0, owner, group, 0, 0, 0, 0))
    assert may_read(found, 5, [7, 8]) is may


def test_a_secret_that_the_service_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root is told of a file that root alone can read; not of one for the services' group."""
    if os.geteuid() != 0:
        pytest.skip("it takes root to give a file away")
    user = SimpleNamespace(pw_uid=4242, pw_gid=4343)
    monkeypatch.setattr(pwd, "getpwnam", lambda _: user)
    monkeypatch.setattr(os, "getgrouplist", lambda _, group: [group])
    path = tmp_path / "peer-secret"
    path.touch(0o600)
    subject = subject_of(Session({}), version="1", config=None, mistakes=())
    (found,) = unreadable(subject, "peer secret", path)
    assert (found.state, found.mend) == (
        State.WARNING,
        f"chown root:lodefs {path}; chmod 0640 {path}",
    )
    os.chown(path, 0, 4343)
    path.chmod(0o640)
    assert unreadable(subject, "peer secret", path) == []


@pytest.mark.parametrize("state", ["refused", "refusing"])
def test_another_secret(state: str) -> None:
    """A node with another secret wants the same file, not a restart: it is read again when it
    changes. What was is told as what was."""
    reason = "5 s ago (shown for 180 s): the signature is of another secret"
    (found,) = cluster_checks._as_seen(
        [{"self": True}, {"address": "n2:7441", "state": state, "reason": reason}]
    )
    assert "restart" not in found.mend
    assert "read it again within seconds" in found.mend
    assert found.saw.endswith(reason)


def test_a_throttled_store_is_told_as_one() -> None:
    """A store that wants fewer requests is no fault of the network, and the way out is to ask for
    less."""
    error = Unavailable("cannot read store.json: SlowDown")
    error.is_throttled = True
    subject = Subject(
        environment={},
        version="1",
        is_root=False,
        store_url="s3://bucket/store",
        s3=S3Config(),
        config=None,
        mistakes=(),
        serve_names=frozenset(),
        proxy=ProxySeen("unix:/nobody", expected=False),
        cache_dir=Path("/nowhere"),
    )
    found = store_checks.refused(subject, error)[0]
    assert found.state == State.FAULT
    assert "throttles" in found.mend and "endpoint" not in found.mend
