"""gRPC for this package: calls methods, turns errors into statuses, and logs each call.

No request is ever logged: it may carry secrets.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    Denied,
    Diverged,
    InUse,
    InvalidInput,
    LodefsError,
    NoSpace,
    NotFound,
    Purged,
    Unavailable,
    Unsupported,
    told,
)
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.mount.csi.admission import THREADS_MAX, Admission
from lodefs.mount.helper import state_files

CALL_TIMEOUT_S_MAX = 60.0  # the kubelet waits for two minutes
WORK_SHARE = 0.8  # of a caller's time, so that the caller still gets the error
SLOW_S = 2.0
_log = logging.getLogger("lodefs.csi")

_CODES: tuple[tuple[type[LodefsError], grpc.StatusCode], ...] = (
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (Conflict, grpc.StatusCode.ABORTED),
    (Diverged, grpc.StatusCode.FAILED_PRECONDITION),
    (DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (Denied, grpc.StatusCode.UNAUTHENTICATED),
    (InUse, grpc.StatusCode.FAILED_PRECONDITION),
    (Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    (NoSpace, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Corrupt, grpc.StatusCode.DATA_LOSS),
    (Purged, grpc.StatusCode.FAILED_PRECONDITION),
)

Method = Callable[[Any, float], Any]
"""Takes a request and for how many seconds it may take; returns the response, or raises one of
errors.py's classes."""


def code_of(error: LodefsError) -> grpc.StatusCode:
    """Returns the status of an error."""
    found = (code for kind, code in _CODES if isinstance(error, kind))
    return next(found, grpc.StatusCode.INTERNAL)


class RpcServer:
    """Serves gRPC on Unix sockets until ``stop``; each belongs to this process alone.
    ``admission``: limits for calls under way; ``counts``: where calls are counted."""

    def __init__(
        self, admission: Admission | None = None, counts: ComponentCounts | None = None
    ) -> None:
        self._admission = admission or Admission()
        self._counts = counts or ComponentCounts("csi")
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="lodefs-csi"),
            options=(("grpc.so_reuseport", 0),),
        )
        self._locks: list[int] = []
        self._paths: list[Path] = []

    def add(self, descriptor: ServiceDescriptor, methods: Mapping[str, Method]) -> None:
        """Serves a service. Methods that are not given are UNIMPLEMENTED."""
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                _behaviour(f"{descriptor.name}.{method.name}", self._limited(method.name, methods)),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in descriptor.methods
            if method.name in methods
        }
        generic = grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
        self._server.add_generic_rpc_handlers((generic,))

    def _limited(self, name: str, methods: Mapping[str, Method]) -> Method:
        def limited(request: Any, timeout_s: float) -> Any:
            with self._counts.call(name), self._admission.admitted(name):
                return methods[name](request, timeout_s)

        return limited

    def listen(self, path: Path) -> None:
        """Serves on a socket, too, and replaces a stale one. Raises: InUse if another process has
        it, InvalidInput, Denied, Unavailable."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
                raise InvalidInput(f"{path} exists and is not a socket: choose another path")
            self._locks.append(
                state_files.lock(path.with_name(f".{path.name}.lock"), f"a driver on {path}")
            )
            path.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{path}")
            path.chmod(0o600)
        except OSError as error:
            raise state_files.translated(error, path) from error
        except RuntimeError as error:  # from gRPC
            raise Unavailable(f"socket {path}: {error}") from error
        self._paths.append(path)

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()

    def stop(self, timeout_s: float) -> None:
        """Answers calls under way, and accepts no more."""
        self._server.stop(timeout_s).wait(timeout_s)
        for path in self._paths:
            with suppress(OSError):
                path.unlink()
        for fd in self._locks:
            os.close(fd)


def _behaviour(name: str, method: Method) -> Callable[[Any, grpc.ServicerContext], Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        begun_s = time.monotonic()
        left_s = context.time_remaining()
        timeout_s = CALL_TIMEOUT_S_MAX
        if left_s is not None:
            timeout_s = min(WORK_SHARE * left_s, timeout_s)
        code, text = grpc.StatusCode.OK, ""
        try:
            return method(request, timeout_s)
        except LodefsError as error:
            code, text = code_of(error), told(str(error))
        except Exception as error:  # noqa: BLE001 - a bug must not end the server
            _log.exception("%s", name)
            code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__} (a fault of lodefs)"
        finally:
            _tell(name, code, text, time.monotonic() - begun_s, labels(request))
        return context.abort(code, text)

    return answer


def _tell(
    name: str, code: grpc.StatusCode, text: str, elapsed_s: float, extra: Mapping[str, str]
) -> None:
    failed = code is not grpc.StatusCode.OK
    level = logging.WARNING if failed or elapsed_s > SLOW_S else logging.DEBUG
    if _log.isEnabledFor(level):
        more = f"{code.name}: {text}" if failed else "done"
        _log.log(level, "%s after %.3f s: %s", name, elapsed_s, more, extra=dict(extra))


def labels(request: Any) -> dict[str, str]:
    """Returns the labels of a log line about a request: volume and pod."""
    found = {"volume": str(getattr(request, "volume_id", ""))[:128]}
    context = getattr(request, "volume_context", {})
    for label, key in (("pod", "pod.name"), ("namespace", "pod.namespace")):
        found[label] = str(context.get(f"csi.storage.k8s.io/{key}", ""))[:253]
    return {label: value for label, value in found.items() if value}


def check_fields(request: Any, names: Iterable[str]) -> None:
    """Raises InvalidInput with the fields that a request lacks."""
    missing = [name for name in names if not getattr(request, name)]
    if missing:
        raise InvalidInput(f"{', '.join(missing)}: missing in the request")
