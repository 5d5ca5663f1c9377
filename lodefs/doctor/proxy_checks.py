"""Checks the proxy (answers, version, ports, tokens) and the mounts."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import Denied, LodefsError
from lodefs.chunkstore.system.private_file import check_private
from lodefs.cli import text
from lodefs.doctor.check import Finding, fault, ok, unchecked, warning
from lodefs.doctor.subject import USER, Subject, unreadable
from lodefs.mount.process.mounter import list_mounts, state_of
from lodefs.proxies.own_proxy import ready, why_not_started
from lodefs.proxies.tokens_in_use import UNREAD, untaken
from lodefs.proxy.http.tokens import list_tokens

SETTINGS, PROXY, VERSION, HEALTH = "settings", "proxy", "versions", "cache contents"
DATA = "data processes"
PORTS, TOKENS, MOUNTS = "ports", "tokens", "mounts"
ANSWER_TIMEOUT_S = 2.0
MOUNTS_SHOWN_MAX = 8
_LOOK_AGAIN = "if doctor repeats this: journalctl -u lodefs-proxy"
_TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_SYSTEMD = "systemd (process 1)"  # holds its socket units, and sockets that it keeps for a service
_LISTEN = "0A"  # TCP_LISTEN, in the tables of proc_net(5)


def settings(subject: Subject) -> list[Finding]:
    """Checks the settings of files and environment."""
    mend = "the message names the file, the line and what is expected (docs/configuration.md)"
    return [fault(SETTINGS, mistake, mend) for mistake in subject.mistakes] or [
        ok(SETTINGS, "can be used")
    ]


def proxy(subject: Subject) -> list[Finding]:
    """Checks that the proxy answers, is ready, and is as new as this command."""
    seen = subject.proxy
    if seen.status is not None:
        if not ready(seen.url, ANSWER_TIMEOUT_S):
            mend = "`lodefs status`; its log says what it waits for: journalctl -u lodefs-proxy"
            return [fault(PROXY, f"{seen.url} answers, but is not ready", mend)]
        return [
            ok(PROXY, f"{seen.url} answers"),
            _version(subject),
            _contents(subject),
            data_processes(seen.node),
        ]
    left = [unchecked(name, "the proxy was not asked") for name in (VERSION, HEALTH, DATA)]
    if isinstance(seen.error, Denied):
        mend = "put a token for it into LODEFS_TOKEN (`lodefs token create`)"
        if seen.socket is not None:
            group = _group_of(seen.socket)
            mend = f"usermod -aG {group} USER; then log in again"
        return [fault(PROXY, str(seen.error), mend), *left]
    if seen.expected:
        if why := why_not_started(seen.url):
            return [fault(PROXY, why, "the message names what is missing"), *left]
        mend = "systemctl start lodefs-proxy (its log: journalctl -u lodefs-proxy), or lodefs serve"
        return [
            fault(PROXY, f"{seen.error or seen.url + ': there is no such socket'}", mend),
            *left,
        ]
    return [ok(PROXY, "none runs here; `lodefs mount` starts one")]


def _group_of(path: Path) -> str:
    import grp

    with suppress(OSError, KeyError):
        return grp.getgrgid(path.stat().st_gid).gr_name
    return "lodefs"


def _version(subject: Subject) -> Finding:
    theirs = str((subject.proxy.status or {}).get("version", "unknown"))
    if theirs != subject.version:
        mend = "systemctl restart lodefs-proxy: mounts go on"
        return warning(VERSION, f"the proxy is {theirs}, this command {subject.version}", mend)
    return ok(VERSION, f"proxy and command are {theirs}")


def _contents(subject: Subject) -> Finding:
    node = subject.proxy.node
    bad = {name: n for name, n in node.items() if "corrupt" in name and isinstance(n, int) and n}
    if bad:
        saw = ", ".join(f"{name} {n:,}" for name, n in bad.items())
        mend = "`lodefs verify --cache --repair`, look at the disk; `lodefs verify --data`"
        return warning(HEALTH, f"wrong bytes were refused: {saw}", mend)
    full = node.get("pinned_full_writes", 0)
    if isinstance(full, int) and full:
        mend = "`lodefs pins`, `lodefs evict --pins-only`, or a larger cache_size_bytes_max"
        return warning(HEALTH, f"all of the cache is pinned: {full:,} writes were not kept", mend)
    return ok(HEALTH, "no wrong bytes since the proxy started")


def data_processes(node: Mapping[str, object]) -> Finding:
    """Judges by a node's status whether its data processes live. Without them reads are correct
    but slower."""
    running, ended = node.get("data_processes"), node.get("data_processes_restarts")
    if ended and not running:
        mend = "journalctl -u lodefs-proxy says how they ended; memory may be short"
        return warning(DATA, f"none runs, {ended} ended: the proxy works without them", mend)
    if running is None:
        why = "data_processes is 0, or there is one processor, or the limit of open files is low"
        return ok(DATA, f"the proxy fetches without them: {why}")
    return ok(DATA, f"{running} live" if running else "the first large fetch will start them")


def ports(subject: Subject) -> list[Finding]:
    """Checks that the proxy listens at the addresses of the settings, or that it could."""
    config = subject.config
    wanted = {} if config is None else {
        "listen": config.listen,
        "s3.listen": config.s3_listen,
        "peer_listen": config.peer_listen,
    }  # fmt: skip
    places = {name: place for name, place in wanted.items() if place is not None}
    if not places:
        return [ok(PORTS, "the settings name none")]
    runs = subject.proxy.status is not None
    found = [_port(name, *place, runs=runs) for name, place in places.items()]
    bad = [one for one in found if one is not None]
    shown = ", ".join(f"{host}:{port}" for host, port in places.values())
    return bad or [ok(PORTS, f"{shown} {'in use by the proxy' if runs else 'free'}")]


def _port(name: str, host: str, port: int, *, runs: bool) -> Finding | None:
    """Returns the fault of one address; None if it has none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    where = f"{name} = {host}:{port}"
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
            trial.listen(1)
        except OSError as error:
            return _refused_port(where, port, error, runs=runs)
    if runs:
        mend = "systemctl restart lodefs-proxy: it was started with other settings"
        return warning(PORTS, f"{where}: the proxy runs and does not listen there", mend)
    return None


def _refused_port(where: str, port: int, error: OSError, *, runs: bool) -> Finding | None:
    if error.errno == errno.EADDRINUSE:
        found = holders(port)
        ours = [one for one in found if "lodefs" in one or "python" in one]
        if runs and (ours or not found):
            return None  # systemd may hold it as well, for the next proxy
        if found == [_SYSTEMD]:
            mend = "`systemctl status lodefs-proxy` (FDs), `systemctl list-sockets`"
            return unchecked(PORTS, f"{where} is held by systemd, perhaps for the proxy", mend)
        holder = ", ".join(found)
        mend = f"stop it, or give another port; `ss -ltnp sport = :{port}` shows it"
        return fault(PORTS, f"{where} is taken by {holder or 'another program'}", mend)
    if error.errno == errno.EADDRNOTAVAIL:
        mend = "name an address of this machine, or 0.0.0.0"
        return fault(PORTS, f"{where}: this machine has no such address", mend)
    if error.errno == errno.EACCES:
        return (
            None
            if runs
            else unchecked(PORTS, f"{where}: this user may not listen there", "run it as root")
        )
    return fault(PORTS, f"{where}: {error.strerror}", "name another address")


def holders(port: int) -> list[str]:
    """Returns the processes, as ``NAME (process N)``, that listen at a port and that this user can
    see."""
    inodes = set[str]()
    for table in _TCP_TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                    name = (process / "comm").read_text().strip()
                    found.append(f"{name} (process {process.name})")
    return found


def tokens(subject: Subject) -> list[Finding]:
    """Checks the file of tokens for TCP, as this user and as the proxy sees it."""
    config = subject.config
    if config is None or config.tokens_file is None:
        return [ok(TOKENS, "the settings name no file")]
    path = config.tokens_file
    create = f"`lodefs token --file {path} create NAME PATTERN` (as the proxy's user)"
    if not path.exists():
        return [fault(TOKENS, f"{path} does not exist: nobody is let in", create)]
    if not os.access(path, os.R_OK):
        return [unchecked(TOKENS, f"this user cannot read {path}", "run it as root")]
    try:
        check_private(path, f"tokens_file {path}")
        known = list_tokens(path)
    except LodefsError as error:
        mend = f"{_readable(path)}; if it is damaged, create it again"
        return [fault(TOKENS, str(error), mend)]
    late = None if subject.proxy.status is None else untaken(subject.proxy.status, path, None)
    if late == UNREAD:  # the proxy reads the file once a second
        return [warning(TOKENS, f"the proxy does not have the present list of {path}", _LOOK_AGAIN)]
    if late:
        saw = f"the proxy cannot read {path}, and uses the tokens that it read before: {late}"
        return [fault(TOKENS, saw, _readable(path))]
    if bad := unreadable(subject, TOKENS, path):
        return bad
    if not known:
        return [warning(TOKENS, f"{path} holds no token: nobody is let in", create)]
    return [ok(TOKENS, f"{text.count(len(known), 'token')} in {path}")]


def _readable(path: Path) -> str:
    return f"chown root:{USER} {path}; chmod 0640 {path} (or the user and group of the proxy)"


def mounts(subject: Subject) -> list[Finding]:  # noqa: ARG001
    """Checks for each mount that this process sees whether its processes and its proxy answer."""
    found = list_mounts()
    bad: list[Finding] = []
    for one in found:
        place = text.escaped(one.mountpoint)
        if one.is_others:
            continue
        if one.pid is None:
            mend = f"lodefs unmount {place}, then mount it again"
            bad.append(fault(MOUNTS, f"{place} does not answer", mend))
            continue
        take_over = f"lodefs mount --take-over {place}"
        if not one.supervised:
            bad.append(warning(MOUNTS, f"{place} has lost its supervisor", take_over))
        with suppress(LodefsError):  # a mount of another user does not say
            state = state_of(one.mountpoint)
            url = state.proxy if state is not None else ""
            if url and not ready(url, ANSWER_TIMEOUT_S):
                saw = f"{place}: its proxy {url} does not answer"
                bad.append(fault(MOUNTS, saw, f"{take_over}, or start that proxy"))
    return bad[:MOUNTS_SHOWN_MAX] or [ok(MOUNTS, f"{text.count(len(found), 'mount')}")]
