"""All checks of a node, in the order in which their findings are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from lodefs.doctor import cache_checks, cluster_checks, fuse_checks, proxy_checks, store_checks
from lodefs.doctor.check import Check, Finding, run
from lodefs.doctor.subject import Subject

_LATE_DISK = "the disk, or a network behind it, hangs: look at dmesg"
_LATE_STORE = "check endpoint_url (or AWS_ENDPOINT_URL), the network, and that the server runs"
_LATE_PROXY = "see its log (journalctl -u lodefs-proxy), and restart it"
_LATE_KERNEL = "the kernel hangs: look at dmesg"
_STORE_TIMEOUT_S = 25.0  # two attempts at each of a few requests

Look = Callable[[Subject], Sequence[Finding]]
_LOOKS: tuple[tuple[str, Look, str, float], ...] = (
    (proxy_checks.SETTINGS, proxy_checks.settings, "", 5.0),
    (store_checks.STORE, store_checks.store, _LATE_STORE, _STORE_TIMEOUT_S),
    (store_checks.MIRRORS, store_checks.mirrors, _LATE_STORE, 2 * _STORE_TIMEOUT_S),
    (store_checks.CLOCK, store_checks.clock, _LATE_STORE, 10.0),
    (fuse_checks.DEVICE, fuse_checks.fuse_device, _LATE_KERNEL, 5.0),
    (fuse_checks.KERNEL, fuse_checks.kernel, _LATE_KERNEL, 10.0),
    (fuse_checks.HELPER, fuse_checks.fusermount, _LATE_KERNEL, 5.0),
    (cache_checks.DIRECTORY, cache_checks.directory, _LATE_DISK, 10.0),
    (cache_checks.FILE_SYSTEM, cache_checks.file_system, _LATE_DISK, 10.0),
    (cache_checks.SPEED, cache_checks.speed, _LATE_DISK, 15.0),
    (cache_checks.SPACE, cache_checks.space, _LATE_DISK, 10.0),
    (cache_checks.FILES, cache_checks.open_files, _LATE_DISK, 10.0),
    (cache_checks.MEMORY, cache_checks.memory, _LATE_DISK, 10.0),
    (proxy_checks.PROXY, proxy_checks.proxy, _LATE_PROXY, 10.0),
    (proxy_checks.PORTS, proxy_checks.ports, "", 10.0),
    (proxy_checks.TOKENS, proxy_checks.tokens, _LATE_DISK, 10.0),
    (proxy_checks.MOUNTS, proxy_checks.mounts, "a mount hangs: `lodefs mounts`", 15.0),
    (cluster_checks.PEERS, cluster_checks.peers, _LATE_PROXY, 15.0),
    (cluster_checks.SECRET, cluster_checks.secret, _LATE_DISK, 10.0),
    (cluster_checks.CERTIFICATES, cluster_checks.certificates, _LATE_DISK, 10.0),
)


def examine(subject: Subject) -> Iterator[Finding]:
    """Returns the findings of all checks, as they become known."""
    checks = [
        Check(name, partial(look, subject), if_late, timeout_s)
        for name, look, if_late, timeout_s in _LOOKS
    ]
    return run(checks)
