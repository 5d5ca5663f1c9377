"""Checks the cluster and its secrets: other nodes, the shared secret, certificates."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.cli import text
from lodefs.doctor.check import Finding, fault, ok, unchecked, warning
from lodefs.doctor.subject import Subject, unreadable
from lodefs.proxy.peers.membership.peer import split_address
from lodefs.proxy.peers.security.credentials import read_secrets
from lodefs.proxy.peers.security.tls import TlsFiles, check, expiries_s, load

PEERS, SECRET, CERTIFICATES = "peers", "peer secret", "certificates"
PEER_TIMEOUT_S = 3.0
EXPIRY_WARNED_S = 14 * 86400.0
NAMED_MAX = 5


def peers(subject: Subject) -> list[Finding]:
    """Checks the other nodes: the running proxy knows their state, else their ports are tried."""
    if subject.config is None or not subject.config.in_cluster:
        return [ok(PEERS, "this node is in no cluster")]
    seen = subject.proxy.node.get("peers")
    if isinstance(seen, list):
        return _as_seen([one for one in seen if isinstance(one, dict)])
    if not subject.config.peers:
        saw = "the proxy, which finds the members, does not run"
        return [unchecked(PEERS, saw, "start the proxy")]
    named = [peer.address for peer in subject.config.peers]
    silent = [address for address in named if not _answers(address)]
    if not silent:
        return [ok(PEERS, f"{text.count(len(named), 'node')} answer")]
    mend = "start lodefs-proxy there; let TCP connections through to the port of peer_listen"
    return [fault(PEERS, f"no answer from {_named(silent)}", mend)]


def _as_seen(nodes: list[Mapping[str, object]]) -> list[Finding]:
    bad = [one for one in nodes if not one.get("self") and one.get("state") != "well"]
    found = []
    if nodes and not any(one.get("self") for one in nodes):
        mend = "list the address at which others reach it, or set peer_address as in the list"
        found.append(warning(PEERS, "the list of members does not name this node", mend))
    for one in bad[:NAMED_MAX]:
        state, reason = str(one.get("state")), str(one.get("reason") or one.get("error") or "")
        saw = f"{one.get('address')} is {state}" + (f": {reason}" if reason else "")
        found.append(fault(PEERS, saw, _mend(f"{state} {reason}")))
    if len(bad) > NAMED_MAX:
        saw = f"and {len(bad) - NAMED_MAX:,} more nodes are not well"
        found.append(fault(PEERS, saw, "`lodefs status` lists them"))
    return found or [ok(PEERS, f"{text.count(len(nodes), 'node')}, all well")]


def _mend(words: str) -> str:
    """Returns the remedy for a node, given the error that is reported about it."""
    if "secret" in words:
        return "use the same peer_secret_file on all nodes; proxies read it again within seconds"
    if "peer_address" in words:
        return "set peer_address on that node to the IP address and port that others connect to"
    if "clock" in words:
        return "set the clocks of both nodes (NTP)"
    if "certificate" in words:
        return "renew the certificate in peer_tls_cert_file"
    return "start lodefs-proxy there; let TCP connections through to the port of peer_listen"


def _answers(address: str) -> bool:
    with suppress(OSError, InvalidInput):
        host, port = split_address(address)
        with socket.create_connection((host.strip("[]"), port), PEER_TIMEOUT_S):
            return True
    return False


def _named(names: list[str]) -> str:
    rest = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {rest:,} more" if rest > 0 else "")


def secret(subject: Subject) -> list[Finding]:
    """Checks the file of the cluster's secret."""
    path = None if subject.config is None else subject.config.peer_secret_file
    if path is None:
        return [ok(SECRET, "the settings name none")]
    try:
        read_secrets(path)
    except LodefsError as error:
        if isinstance(error.__cause__, PermissionError):
            return [unchecked(SECRET, str(error), "run it as root")]
        mend = f"openssl rand -hex 32 > {path}; chmod 0640; copy it to all nodes"
        return [fault(SECRET, str(error), mend)]
    return unreadable(subject, SECRET, path) or [ok(SECRET, f"{path} can be used")]


def certificates(subject: Subject, *, now_s: Callable[[], float] = time.time) -> list[Finding]:
    """Checks that certificates can be used, and until when."""
    config = subject.config
    named = (
        {}
        if config is None
        else {
            "tls_cert_file": config.tls_cert_file,
            "peer_tls_cert_file": config.peer_tls_cert_file,
            "peer_tls_ca_file": config.peer_tls_ca_file,
        }
    )
    paths = {name: path for name, path in named.items() if path is not None}
    if config is None or not paths:
        return [ok(CERTIFICATES, "the settings name none")]
    found = [_certificate(name, path, now_s()) for name, path in paths.items()]
    bad = [one for one in found if one is not None]
    cert, key = config.peer_tls_cert_file, config.peer_tls_key_file
    if not bad and cert is not None and key is not None and config.peer_tls_ca_file is not None:
        try:
            check(load(TlsFiles(cert, key, config.peer_tls_ca_file)))
        except LodefsError as error:
            mend = "sign this node's certificate with the cluster's CA, for servers and clients"
            bad.append(fault(CERTIFICATES, f"peer_tls_cert_file {cert}: {error}", mend))
    return bad or [ok(CERTIFICATES, f"{text.count(len(paths), 'file')}, none expires soon")]


def _certificate(name: str, path: Path, now_s: float) -> Finding | None:
    """Returns the fault of one file; None if it has none."""
    what = f"{name} {path}"
    try:
        ends_s = min(expiries_s(path.read_text(errors="replace")))
    except PermissionError:
        return unchecked(CERTIFICATES, f"{what} cannot be read by this user", "run it as root")
    except OSError as error:
        return fault(CERTIFICATES, f"{what}: {error.strerror}", "put the certificate there (PEM)")
    except InvalidInput as error:
        return fault(CERTIFICATES, f"{what} {error}", "put the certificate there (PEM)")
    left_s = ends_s - now_s
    mend = "renew it; the proxy takes new files without a restart"
    if left_s <= 0:
        return fault(CERTIFICATES, f"{what} expired on {text.time(int(ends_s))}", mend)
    if left_s < EXPIRY_WARNED_S:
        days = left_s / 86400
        return warning(CERTIFICATES, f"{what} expires in {days:.1f} days", mend)
    return None
