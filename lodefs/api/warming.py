"""``lodefs.warm``: fetches data into the node's cache before it is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Unpack

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.protocol.cache_control import (
    PIN_S_MAX,
    RUNNING,
    WARM,
    WarmJobs,
    WarmRequest,
    WarmStatus,
    decoded,
    encoded,
)
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.chunkstore.protocol.wire import Failure, error_of
from lodefs.chunkstore.system.progress import Progress
from lodefs.proxies.own_proxy import proxy_url, running_proxy
from lodefs.settings.session import NodeWhere, Session, opened, spec_of

Warn = Callable[[str], None]


class Warm:
    """``lodefs.warm("vision/flickr30k@v1.0")``, and methods for the warm jobs of the node's proxy.

    ``proxy`` and ``store`` default to the settings; ``session``: the settings themselves.
    ``progress`` is updated while the call waits; ``warn`` is called for nodes that it waits for.
    """

    def __call__(
        self,
        spec: str | Spec,
        paths: Sequence[str | bytes] | None = None,
        *,
        pin_s: int = 0,
        all_nodes: bool = False,
        skip_missing: bool = False,
        nodes: Sequence[str] = (),
        owner: str = "",
        wait: bool = True,
        check: bool = True,
        progress: Progress | None = None,
        warn: Warn = lambda _line: None,
        **where: Unpack[NodeWhere],
    ) -> WarmStatus:
        """Fetches ``REPO[@REV][:PATH]``, or ``paths`` below it, into the cache. PATH may be a
        pattern.

        ``pin_s``: protect the data from eviction for this time. ``all_nodes``: warm all nodes of
        the cluster; ``skip_missing``: go on without nodes that do not answer. ``nodes``: warm only
        these nodes, given by host. ``owner``: the owner of the pin. Without ``wait`` the job only
        starts; without ``check`` a failed job is returned. An exception during the wait ends the
        job. Raises: NotFound, Unavailable, InvalidInput, and the error of the job.
        """
        found = request_of(spec_of(spec), paths, pin_s=pin_s, all_nodes=all_nodes)
        found = msgspec.structs.replace(
            found, skip_missing=skip_missing, nodes=list(nodes), owner=owner
        )
        with opened(**where) as settings:
            follower = Follower(_client(settings, proxy_url(settings)), found, warn=warn)
            status = follower.start()
            if not wait:
                return status
            try:
                status = follower.follow(status.id, progress or Progress())
            except BaseException:
                with suppress(LodefsError):
                    follower.cancel()
                raise
        return checked(status) if check else status

    def attach(
        self,
        job_id: str,
        *,
        check: bool = True,
        progress: Progress | None = None,
        warn: Warn = lambda _line: None,
        **where: Unpack[NodeWhere],
    ) -> WarmStatus:
        """Waits for a job. Raises: NotFound, Unavailable, and the error of the job."""
        with opened(**where) as settings:
            follower = Follower(_client(settings, running_proxy(settings)), None, warn=warn)
            status = follower.follow(job_id, progress or Progress())
        return checked(status) if check else status

    def cancel(self, job_id: str, **where: Unpack[NodeWhere]) -> WarmStatus:
        """Ends a job; fetched data stays. Raises: NotFound, Unavailable."""
        with opened(**where) as settings:
            follower = Follower(_client(settings, running_proxy(settings)), None)
            follower.job_id = job_id
            return follower.cancel()

    def jobs(self, **where: Unpack[NodeWhere]) -> list[WarmStatus]:
        """Returns the jobs of the proxy, the newest first. Raises: Unavailable."""
        with opened(**where) as settings:
            calls = _client(settings, running_proxy(settings))
            return calls.call(WarmJobs, "GET", WARM).jobs


warm = Warm()


def request_of(
    spec: Spec, paths: Sequence[str | bytes] | None, *, pin_s: int = 0, all_nodes: bool = False
) -> WarmRequest:
    """Returns the request to the proxy. Raises: InvalidInput for an empty list, or a list with a
    pattern."""
    from lodefs.proxy.warm.path_patterns import is_glob

    if pin_s > PIN_S_MAX:
        raise InvalidInput(f"--pin: the limit is {PIN_S_MAX // 86400}d")
    globs: list[bytes] = []
    names = [_bytes(path) for path in paths or ()]
    if paths is None:
        if spec.path:
            (globs if is_glob(spec.path) else names).append(spec.path)
    elif spec.path and is_glob(spec.path):
        raise InvalidInput("with --from, PATH is the directory that the paths are below")
    elif not names:
        raise InvalidInput("--from: the list has no paths")
    elif spec.path:
        names = [spec.path + b"/" + name for name in names]
    return WarmRequest(
        repo=spec.repo,
        rev=spec.rev,
        paths=[encoded(name) for name in names],
        globs=[encoded(glob) for glob in globs],
        pin_s=pin_s,
        all_nodes=all_nodes,
    )


def checked(status: WarmStatus) -> WarmStatus:
    """Returns the status of a job that has ended well. Raises: the first error of a failed job."""
    if status.state == "done":
        return status
    if not status.errors:
        raise Unavailable(f"the job {status.id} is {status.state}")
    first = status.errors[0]
    at = f"{decoded(first.path).decode('utf-8', 'backslashreplace')}: " if first.path else ""
    raise error_of(Failure(first.error, at + first.message))


def _bytes(path: str | bytes) -> bytes:
    return path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")


def _client(settings: Session, url: str) -> ControlClient:
    return ControlClient(url, settings.environment.get("LODEFS_TOKEN"))


POLL_S_MIN, POLL_S_MAX = 0.02, 0.1
GONE_S_MAX = 60.0  # how long a proxy may be unreachable
STARTS_MAX = 10


class Follower:
    """Polls one job until it ends. If its proxy was restarted, starts the job again, which
    continues where it was."""

    def __init__(
        self,
        calls: ControlClient,
        request: WarmRequest | None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        warn: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """``request``: what to ask for; None for a job that somebody else started. ``warn`` is
        called once for each node that cannot be asked."""
        self._calls = calls
        self._request = request
        self._clock_s = clock_s
        self._sleep = sleep
        self._warn = warn
        self._warned: set[str] = set()
        self.job_id = ""
        self._starts = 0

    def start(self) -> WarmStatus:
        """Starts the job. Raises: the proxy's errors."""
        self._starts += 1
        status = self._calls.call(WarmStatus, "POST", WARM, self._request)
        self.job_id = status.id
        return status

    def follow(self, job_id: str, progress: Progress) -> WarmStatus:
        """Returns the job's last status. Raises: NotFound, Unavailable."""
        self.job_id = job_id
        pause_s = POLL_S_MIN
        answered_s = self._clock_s()
        while True:
            try:
                status = self._status_or_restart()
            except Unavailable:
                if self._clock_s() - answered_s > GONE_S_MAX:
                    raise
                progress.phase = "waiting for the proxy"
            else:
                answered_s = self._clock_s()
                show(status, progress)
                self._warn_of_waiting(status)
                if status.state not in RUNNING:
                    return status
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S_MAX)

    def _warn_of_waiting(self, status: WarmStatus) -> None:
        for node in status.nodes:
            if node.state in RUNNING and node.error and node.address not in self._warned:
                self._warned.add(node.address)
                self._warn(f"waiting for {node.address}: {node.error}")

    def _status_or_restart(self) -> WarmStatus:
        try:
            return self.status()
        except NotFound:
            if self._request is None or self._starts >= STARTS_MAX:
                raise
            return self.start()

    def status(self) -> WarmStatus:
        """Returns the job's status. Raises: NotFound, Unavailable."""
        return self._calls.call(WarmStatus, "GET", f"{WARM}/{self.job_id}")

    def cancel(self) -> WarmStatus:
        """Cancels the job. Raises: NotFound, Unavailable."""
        return self._calls.call(WarmStatus, "DELETE", f"{WARM}/{self.job_id}")


def show(status: WarmStatus, progress: Progress) -> None:
    """Copies a status into the progress bar's counters."""
    progress.phase = {"listing": "listing", "fetching": "warming"}.get(status.state, status.state)
    if status.nodes:
        done = sum(node.state == "done" for node in status.nodes)
        progress.phase += f" on {len(status.nodes)} nodes ({done} done)"
        missing = [node for node in status.nodes if node.state in RUNNING and node.error]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            progress.phase += f", waiting for {missing[0].address}{more}"
    progress.files_done = status.files_done
    progress.files_total = status.files_total or 0
    progress.bytes_done = status.bytes_done
    progress.bytes_total = status.bytes_total or 0
    progress.bytes_sent = status.fetched_bytes
