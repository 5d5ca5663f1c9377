"""NodeMounts with the kernel: the mount helper mounts; the proxy and the mounts are asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.errors import DeadlineExceeded, LodefsError, Unavailable
from lodefs.chunkstore.format.names import check_repo
from lodefs.chunkstore.protocol.cache_control import (
    EVICT,
    WARM,
    EvictRequest,
    EvictView,
    WarmRequest,
    WarmStatus,
    encoded,
)
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.mount.helper import helper_requests
from lodefs.mount.helper.deadline_calls import left_s
from lodefs.mount.helper.helper_client import MountHelper
from lodefs.mount.helper.interface import MountStatus, ResolvedCommit, Source, Traffic
from lodefs.mount.helper.tokens import read_token
from lodefs.mount.kernel import features, mount_table, mountpoints
from lodefs.mount.mount_spec import MountRequest, TakeOver
from lodefs.mount.options import MODE_MAX_BELOW, MountOptions, check_mode
from lodefs.mount.process import (
    control_socket,
    handover,
    mount_target,
    mounter,
    process_scan,
)

OWNER = "docker"  # owner of the plugin's pins; `lodefs warm --pin` has another
STATE_TIMEOUT_S = 0.2  # for the process of one mount to answer
DEAD_TIMEOUT_S = 1.0  # for the kernel to say that no process can answer any more


class KernelMounts:
    """See NodeMounts.

    ``proxy_for`` returns the address of the proxy for a store, "" for the node's own, within a
    number of seconds; it raises errors of errors.py. ``environ``: for ``token_env``. ``log_path``:
    for mounts; "" is syslog. ``log`` logs a line. ``owner``: of pins.
    """

    def __init__(
        self,
        helper: MountHelper,
        proxy_for: Callable[[str, float], str],
        *,
        environ: Mapping[str, str],
        log: Callable[[str], None],
        log_path: str = "",
        owner: str = OWNER,
    ) -> None:
        self._owner = owner
        self._helper = helper
        self._proxy_for = proxy_for
        self._environ = environ
        self._log = log
        self._log_path = log_path

    def resolve(self, source: Source, rev: str, timeout_s: float) -> ResolvedCommit:
        """See NodeMounts."""
        check_repo(source.repo)
        deadline_s = time.monotonic() + timeout_s
        options = self._options(source, rev, "", timeout_s)
        with _told(options.proxy, timeout_s):
            snapshot = mount_target.resolve(options, left_s(deadline_s)).snapshot
        return ResolvedCommit(snapshot.commit, snapshot.files, snapshot.size_bytes)

    def mount(self, source: Source, commit: str, place: str, timeout_s: float) -> None:
        """See NodeMounts."""
        deadline_s = time.monotonic() + timeout_s
        options = self._options(source, commit, place, timeout_s)
        with _told(options.proxy, timeout_s):
            self._helper.run(MountRequest(options), left_s(deadline_s))

    def unmount(self, place: str, timeout_s: float, *, abort: bool = False) -> None:
        """See NodeMounts."""
        self._helper.run(helper_requests.Unmount(place, abort=abort), timeout_s)

    def list_mounts(
        self, timeout_s: float, is_wanted: Callable[[str], bool] = lambda _place: True
    ) -> list[MountStatus]:
        """See NodeMounts. A mount that is not known in time to be dead counts as alive: only the
        kernel can say that a mount is dead."""
        deadline_s = time.monotonic() + timeout_s
        folders = control_socket.own_folders()
        return [
            self._status(mounted, folders, deadline_s)
            for mounted in _on_top(mount_table.read_table())
            if is_wanted(mounted.mountpoint)
        ]

    def look(self, place: str, timeout_s: float) -> MountStatus | None:
        """See NodeMounts."""
        mounted = mount_table.on_top(mountpoints.plain(place))
        if mounted is None or not mounted.is_lodefs:
            return None
        return self._status(mounted, control_socket.own_folders(), time.monotonic() + timeout_s)

    def _status(
        self, mounted: mount_table.Mount, folders: list[Path], deadline_s: float
    ) -> MountStatus:
        left_s = deadline_s - time.monotonic()
        place = control_socket.find(mounted.device, folders)
        alive = supervised = ready = True
        try:
            if place is None:
                ready = False  # its socket may not exist yet
                raise Unavailable("the mount has no socket")
            state = handover.state_of(place, max(min(STATE_TIMEOUT_S, left_s), 0.001))
            supervised, ready = state.supervised, state.ready
        except LodefsError as error:
            if isinstance(error.__cause__, ConnectionError):
                ready = False  # it dies, or its maker removes it
            alive = not self._is_dead(mounted.mountpoint, deadline_s)
        return MountStatus(
            mounted.mountpoint,
            mounted.repo,
            mounted.commit,
            mounted.path,
            alive,
            supervised and alive,
            ready,
        )

    def revive(self, place: str, timeout_s: float) -> None:
        """See NodeMounts."""
        self._helper.run(TakeOver(place, self._log_path), timeout_s)

    def renew(self, source: Source, place: str, timeout_s: float) -> None:
        """See NodeMounts. A proxy at a Unix socket needs no token."""
        deadline_s = time.monotonic() + timeout_s
        options = self._options(source, "", place, timeout_s)
        if not parse_address(options.proxy).path:
            request = TakeOver(place, self._log_path, options.token)
            self._helper.run(request, left_s(deadline_s))

    def traffic(self, place: str, timeout_s: float) -> Traffic | None:
        """See NodeMounts."""
        return mounter.traffic_of(place, timeout_s)

    def showing(self, places: Collection[str]) -> Mapping[str, frozenset[int]]:
        """See NodeMounts."""
        found = {}
        for mounted in _uppermost(mount_table.read_table()):
            is_ours = mounted.is_lodefs or mounted.is_writable
            if is_ours and mounted.mountpoint in places:
                found[mounted.device] = mounted.mountpoint
        shown = process_scan.showing(found)
        return {found[device]: frozenset(uids) for device, uids in shown.items()}

    def pin(self, source: Source, commit: str, pin_s: int, timeout_s: float) -> None:
        """See NodeMounts."""
        paths = [encoded(source.path)] if source.path else []
        request = WarmRequest(
            repo=source.repo, rev=commit, paths=paths, pin_s=pin_s, owner=self._owner
        )
        with self._calls(source, timeout_s) as (calls, left_s):
            calls.call(WarmStatus, "POST", WARM, request, timeout_s=left_s)

    def unpin(self, source: Source, commit: str, timeout_s: float) -> None:
        """See NodeMounts."""
        request = EvictRequest(
            repo=source.repo,
            rev=commit,
            path=encoded(source.path),
            pins_only=True,
            owner=self._owner,
        )
        with self._calls(source, timeout_s) as (calls, left_s):
            calls.call(EvictView, "POST", EVICT, request, timeout_s=left_s)

    def _options(self, source: Source, rev: str, place: str, timeout_s: float) -> MountOptions:
        check_mode(source.mode, MODE_MAX_BELOW)  # drivers allow less
        return MountOptions(
            repo=source.repo,
            mountpoint=place,
            proxy=self._proxy_for(source.store, timeout_s),
            rev=rev,
            path=source.path,
            token=read_token(source, self._environ, self._log),
            uid=os.getuid() if source.uid is None else source.uid,
            gid=os.getgid() if source.gid is None else source.gid,
            mode=source.mode,
            log_path=self._log_path,
            without=features.parse(self._environ.get(features.VARIABLE, "")),
        )

    @contextmanager
    def _calls(self, source: Source, timeout_s: float) -> Iterator[tuple[ControlClient, float]]:
        """Yields a client for the proxy of a source, and its time limit."""
        deadline_s = time.monotonic() + timeout_s
        proxy = self._proxy_for(source.store, timeout_s)
        calls = ControlClient(proxy, read_token(source, self._environ, self._log))
        try:
            with _told(proxy, timeout_s):
                yield calls, left_s(deadline_s)
        finally:
            calls.close()

    def _is_dead(self, place: str, deadline_s: float) -> bool:
        """Asks in a separate process, since a hanging mount would block the question."""
        left_s = min(deadline_s - time.monotonic(), DEAD_TIMEOUT_S)
        if left_s <= 0:
            return False
        try:
            return self._helper.run(helper_requests.Look(place), left_s).is_dead
        except Unavailable:
            return False


def _on_top(table: list[mount_table.Mount]) -> list[mount_table.Mount]:
    """Returns the lodefs mounts that no other mount on their directory hides."""
    return [mounted for mounted in _uppermost(table) if mounted.is_lodefs]


def _uppermost(table: list[mount_table.Mount]) -> list[mount_table.Mount]:
    return list({mounted.mountpoint: mounted for mounted in table}.values())


@contextmanager
def _told(proxy: str, timeout_s: float) -> Iterator[None]:
    """Turns time-outs into errors that name the party that did not answer."""
    try:
        yield
    except DeadlineExceeded as error:
        raise DeadlineExceeded(
            f"not done within {timeout_s:g} s: the proxy {proxy} or its store may be slow or out "
            f"of reach; try again ({error})"
        ) from error
    except Unavailable as error:
        if proxy not in str(error):
            raise
        raise Unavailable(
            f"the node's proxy cannot be reached: check that it runs ({error})"
        ) from error
