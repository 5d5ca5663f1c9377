"""``lodefs.warm``: data into the node's cache before it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from lodefs.api.sessions import opened, spec_of
from lodefs.api.warm_follow import Follower
from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.nodeapi.cache_control import (
    PIN_S_MAX,
    WARM,
    WarmJobs,
    WarmRequest,
    WarmStatus,
    decoded,
    encoded,
)
from lodefs.chunkstore.nodeapi.control_client import ControlClient
from lodefs.chunkstore.nodeapi.wire import Failure, error_of
from lodefs.chunkstore.system.progress import Progress
from lodefs.proxies.own_proxy import proxy_url, running_proxy
from lodefs.settings.session import Session

Warn = Callable[[str], None]


class Warm:
    """``lodefs.warm("vision/flickr30k@v1.0")``, and the jobs of the node's proxy.

    ``proxy`` and ``store``: else those of the settings; ``session``: the settings themselves.
    ``progress`` is counted up while a job is waited for, and ``warn`` told of nodes that are.
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
        proxy: str | None = None,
        store: str | None = None,
        session: Session | None = None,
    ) -> WarmStatus:
        """Brings ``REPO[@REV][:PATH]``, or ``paths`` below it, into the cache; PATH may be a
        pattern.

        ``pin_s``: protect it from eviction for so long. ``all_nodes``: of the cluster;
        ``skip_missing``: go on without those that do not answer. ``nodes``: of the cluster, these
        alone, by their hosts. ``owner``: who holds the pin. Not ``wait``: only begin the job;
        not ``check``: return a job that failed. An exception while it waits ends the job.
        Raises: NotFound, Unavailable, InvalidInput, and what a job failed with.
        """
        found = request_of(spec_of(spec), paths, pin_s=pin_s, all_nodes=all_nodes)
        found = msgspec.structs.replace(
            found, skip_missing=skip_missing, nodes=list(nodes), owner=owner
        )
        with opened(session, store=store, proxy=proxy) as settings:
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
        proxy: str | None = None,
        store: str | None = None,
        session: Session | None = None,
    ) -> WarmStatus:
        """Waits for a job. Raises: NotFound, Unavailable, and what it failed with."""
        with opened(session, store=store, proxy=proxy) as settings:
            follower = Follower(_client(settings, running_proxy(settings)), None, warn=warn)
            status = follower.follow(job_id, progress or Progress())
        return checked(status) if check else status

    def cancel(
        self,
        job_id: str,
        *,
        proxy: str | None = None,
        store: str | None = None,
        session: Session | None = None,
    ) -> WarmStatus:
        """Ends a job; what was fetched stays. Raises: NotFound, Unavailable."""
        with opened(session, store=store, proxy=proxy) as settings:
            follower = Follower(_client(settings, running_proxy(settings)), None)
            follower.job_id = job_id
            return follower.cancel()

    def jobs(
        self,
        *,
        proxy: str | None = None,
        store: str | None = None,
        session: Session | None = None,
    ) -> list[WarmStatus]:
        """The jobs of the proxy, the newest first. Raises: Unavailable."""
        with opened(session, store=store, proxy=proxy) as settings:
            calls = _client(settings, running_proxy(settings))
            return calls.call(WarmJobs, "GET", WARM).jobs


warm = Warm()


def request_of(
    spec: Spec, paths: Sequence[str | bytes] | None, *, pin_s: int = 0, all_nodes: bool = False
) -> WarmRequest:
    """The request to the proxy. Raises: InvalidInput for an empty list or one below a pattern."""
    from lodefs.proxy.warm.path_patterns import is_glob

    if pin_s > PIN_S_MAX:
        raise InvalidInput(f"--pin: {PIN_S_MAX // 86400}d at most")
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
    """The status of a job that is done. Raises: what it failed with first."""
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
