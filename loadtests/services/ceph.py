"""A real Ceph with an RGW: one monitor, one OSD in memory, one radosgw, no authentication inside.

Needs the Debian packages ceph-mon, ceph-osd and radosgw. The settings are those of Ceph's manual
deployment (docs.ceph.com, "Manual Deployment"), cut down to one copy of everything. radosgw asks
for encrypted connections to monitors by default, which do not go without authentication: hence
``ms mon client mode``.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

from loadtests.services import HOST, S3Server, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child, ChildError, private_directory, run

START_TIMEOUT_S = 120.0
STARTS_MAX = 3  # a port may be taken between choosing and using it
LOG_TAIL_CHARS = 1500
MEMSTORE_BYTES = 16 << 30  # a limit, not a reservation
_TIED = ("setpriv", "--pdeathsig", "KILL")  # the daemons die with the thread that started them

_CONF = """\
[global]
fsid = {fsid}
mon host = v2:{host}:{mon_port}
public addr = {host}
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
run dir = {dir}
admin socket = {dir}/$name.asok
log file = {dir}/$name.log
pid file =
crash dir = {dir}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon max pg per osd = 1000
ms bind ipv6 = false
[mon.a]
mon data = {dir}/mon
mon data avail warn = 1
mon data avail crit = 0
mon cluster log file = {dir}/cluster.log
[osd.0]
osd data = {dir}/osd
osd objectstore = memstore
memstore device bytes = {memstore_bytes}
osd class load list = *
osd class default list = *
osd max object name len = 1024
[client.rgw]
rgw frontends = beast endpoint={host}:{rgw_port} tcp_nodelay=1
rgw dns name = {host}
rgw data = {dir}/rgw
rgw enable usage log = false
rgw gc max queue size = 1048576
rgw relaxed s3 bucket names = true
rgw thread pool size = 64
debug rgw = 0
"""


@contextmanager
def ceph_rgw(*, memstore_bytes: int = MEMSTORE_BYTES) -> Iterator[S3Server]:
    """A running RGW with one user, everything in a private directory, stopped at the end.

    ChildError, with the ends of the daemons' logs, where it is not up in START_TIMEOUT_S.
    """
    for attempt in range(1, STARTS_MAX + 1):
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory("lc-"))
            try:
                server = _start(stack, directory, memstore_bytes)
            except ChildError as error:
                if attempt == STARTS_MAX:
                    raise ChildError(f"{error}\n{_log_tails(directory)}") from error
                continue
            yield server
            return


def _start(stack: ExitStack, directory: Path, memstore_bytes: int) -> S3Server:
    deadline = monotonic() + START_TIMEOUT_S
    fsid = str(uuid.uuid4())
    mon_port, rgw_port = free_port(), free_port()
    conf = directory / "ceph.conf"
    conf.write_text(
        _CONF.format(
            fsid=fsid,
            host=HOST,
            mon_port=mon_port,
            rgw_port=rgw_port,
            dir=directory,
            memstore_bytes=memstore_bytes,
        )
    )
    for name in ("mon", "osd", "rgw"):
        (directory / name).mkdir()
    ceph = ["--conf", str(conf)]

    monmap = directory / "monmap"
    address = f"[v2:{HOST}:{mon_port}]"
    run(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, monmap])
    run(["ceph-mon", *ceph, "--mkfs", "--id", "a", "--monmap", str(monmap)])
    mon = stack.enter_context(Child([*_TIED, "ceph-mon", *ceph, "--id", "a", "-f"]))
    if not wait_for_port(mon, mon_port, timeout_s=deadline - monotonic()):
        raise mon.failed(f"does not listen on port {mon_port}")

    client = ["ceph", *ceph, "--connect-timeout", "30"]
    osd_uuid = str(uuid.uuid4())
    run([*client, "osd", "new", osd_uuid], timeout_s=START_TIMEOUT_S)
    run(["ceph-osd", *ceph, "--id", "0", "--mkfs", "--osd-uuid", osd_uuid])
    stack.enter_context(Child([*_TIED, "ceph-osd", *ceph, "--id", "0", "-f"]))

    user = _create_user(ceph, rgw_port)
    rgw = stack.enter_context(Child([*_TIED, "radosgw", *ceph, "--name", "client.rgw", "-f"]))
    if not wait_for_port(rgw, rgw_port, timeout_s=deadline - monotonic()):
        raise rgw.failed(f"does not listen on port {rgw_port}")
    return user


def _create_user(ceph: list[str], rgw_port: int) -> S3Server:
    access_key, secret_key = secrets.token_hex(10).upper(), secrets.token_hex(20)
    run(
        [
            *("radosgw-admin", *ceph, "--name", "client.rgw", "user", "create"),
            *("--uid", "lodefs", "--display-name", "lodefs"),
            *("--access-key", access_key, "--secret-key", secret_key),
        ],
        timeout_s=START_TIMEOUT_S,
    )
    return S3Server(f"http://{HOST}:{rgw_port}", access_key, secret_key)


def _log_tails(directory: Path) -> str:
    tails = []
    for log in sorted(directory.glob("*.log")):
        text = log.read_text("utf-8", "replace")[-LOG_TAIL_CHARS:]
        tails.append(f"--- {log.name}\n{text}")
    return "\n".join(tails)
