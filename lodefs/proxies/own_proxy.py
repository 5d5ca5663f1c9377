"""The proxy that a command talks to: the one asked for, the node's, or one started for the user.

A proxy that is started for a user lies in ``~/.cache/lodefs/proxy-<store>``: its socket, cache, log
and process id. It keeps running when the command ends, serves all mounts of that store, and ends
when nobody has used it for a while. Its starter has a lease of it (chunkstore.protocol.lease)
until the command ends; by then its mount has one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol import lease
from lodefs.chunkstore.protocol.connection import Response, parse_address
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.chunkstore.protocol.figures.figure_files import directories_for, private_directory_of
from lodefs.chunkstore.protocol.wire import SOCKET_DEFAULT
from lodefs.chunkstore.system.systemd_notify import inheritable
from lodefs.mount.kernel import namespaces
from lodefs.proxy.service.systemd import PREFIX
from lodefs.settings.session import NO_STORE, Session, split_settings

if TYPE_CHECKING:
    import subprocess

START_TIMEOUT_S = 60.0
UNUSED_TIMEOUT_S = 600.0  # of a user's own proxy, unless the settings say another
ASK_TIMEOUT_S = 10.0
POLL_S = 0.02
LOG_TAIL_BYTES = 2000
NO_STORE_CODE = 3  # a proxy's exit code (lodefs.cli.exit_codes) where its store is not there
_RUNS_ON = {"unused_timeout_s", "listen", "peer_listen", "peers", "peers_file", "peers_dns"}


class OwnProxy(msgspec.Struct, frozen=True):
    """Where a proxy that is started for a user has its files."""

    directory: Path

    @property
    def url(self) -> str:
        return f"unix:{self.socket}"

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / "sock"

    @property
    def log(self) -> Path:
        """What it writes to standard output and error."""
        return self.directory / "log"

    @property
    def store_file(self) -> Path:
        """The URL of its store, by which it can be started again."""
        return self.directory / "store"

    @property
    def pid_file(self) -> Path:
        """Its process id, for people who want to end it."""
        return self.directory / "pid"


def proxy_url(session: Session, unused_timeout_s: float = UNUSED_TIMEOUT_S) -> str:
    """A proxy that is ready: the one that the settings name, else the node's where it serves the
    same store, else the user's own, which is started, and ends when it is unused for so long.

    InvalidInput where neither proxy nor store are given, NotFound where there is no such store,
    Denied where the node's is not for this user; Unavailable.
    """
    found, store = _found(session)
    if found:
        return found
    if store is None:
        with suppress(Unavailable):  # one that runs may not be for this user: Denied says so
            _get(node_proxy(session), "/readyz", None, ASK_TIMEOUT_S)
        raise InvalidInput(f"{NO_STORE}; or a proxy with --proxy or LODEFS_PROXY")
    own = own_proxy(session.make_home_cache(), store)
    _start_for(session, own, store, unused_timeout_s)
    own.store_file.write_text(store)
    return own.url


def is_own(session: Session, url: str) -> bool:
    """Whether a proxy is one that was started for this user."""
    return _own_at(session, url) is not None


def start_again(session: Session, url: str) -> None:
    """Starts the user's own proxy at ``url`` unless it runs. Those of others are left to them.
    Unavailable, Denied, NotFound."""
    own = _own_at(session, url)
    if own is not None:
        session.make_home_cache()
        _start_for(session, own, own.store_file.read_text())


def _start_for(
    session: Session, own: OwnProxy, store: str, unused_timeout_s: float = UNUSED_TIMEOUT_S
) -> None:
    """Starts a user's own proxy unless it runs; it stays until the session is closed."""
    _make(own)
    taken = lease.take(own.socket, START_TIMEOUT_S, create=True)
    session.keep_open(str(own.socket), taken)
    command = serve_command(own, store)
    if may_end(session.config.serve):
        command += ["--unused-timeout", f"{unused_timeout_s:g}"]
    start(own, command, session.environment)


def may_end(serve: Mapping[str, object]) -> bool:
    """Whether a user's own proxy with these settings ends by itself: they do not say it, and
    nobody uses it over TCP."""
    return not _RUNS_ON & serve.keys()


def _own_at(session: Session, url: str) -> OwnProxy | None:
    own = OwnProxy(Path(url.removeprefix("unix:")).parent)
    is_ours = own.url == url and own.directory.parent == session.home_cache()
    return own if is_ours and own.store_file.is_file() else None


def running_proxy(session: Session) -> str:
    """A proxy that runs: asked for, of the node, or of the user. None is started. Unavailable."""
    found, store = _found(session)
    if found:
        return found
    own = own_proxy(session.home_cache(), store).url if store else None
    if own and ready(own):
        return own
    if why := why_not_started(node_proxy(session)):
        raise Unavailable(why)
    if own:
        raise Unavailable(
            f"no proxy for {store} runs here: `lodefs mount` starts one, and `lodefs serve` is one"
        )
    raise Unavailable(
        "the node's proxy does not run, and to find one of yours its store must be known; "
        f"{NO_STORE}; or a proxy with --proxy or LODEFS_PROXY"
    )


def node_proxy(session: Session) -> str:
    """The proxy that the settings name, else where the node's listens."""
    return session.proxy_url or f"unix:{SOCKET_DEFAULT}"


def node_figures(session: Session) -> tuple[Path, ...]:
    """Where a component counts for ``node_proxy`` (``directories_for``); nowhere where that is
    another machine's, or the settings are of no use: who needs these says so."""
    socket = _node_socket(session)
    return directories_for(socket, os.geteuid()) if socket else ()


def node_job_figures(session: Session) -> Path | None:
    """Where mounts count what jobs read; None as ``node_figures``."""
    socket = _node_socket(session)
    return private_directory_of(socket) if socket else None


def _node_socket(session: Session) -> str:
    """ "" where there is none."""
    with suppress(InvalidInput):
        return parse_address(node_proxy(session)).path or ""
    return ""


def _found(session: Session) -> tuple[str | None, str | None]:
    """A proxy that need not be started, and the store that the settings name."""
    if session.proxy_option:  # no settings need to be read then
        return session.proxy_option, None
    store = session.store_url if session.has_store else None
    node = node_proxy(session)
    return (node if session.proxy_url or _node_serves(node, store) else None), store


def _node_serves(node: str, store: str | None) -> bool:
    """As ``serves``; a node's proxy that systemd starts, also again, is waited for."""
    ends_s = time.monotonic() + START_TIMEOUT_S
    while not serves(node, store):
        if time.monotonic() > ends_s or not _is_starting(node):
            return False
        time.sleep(PAUSE_S)
    return True


def own_proxy(home_cache: Path, store: str) -> OwnProxy:
    return OwnProxy(home_cache / f"proxy-{digest_of(store.encode()).hex()[:12]}")


def serve_command(own: OwnProxy, store: str) -> list[str]:
    """The command line that runs a user's own proxy."""
    files = ["--socket", str(own.socket), "--cache", str(own.directory / "cache")]
    return python_process.command("lodefs.main", "--store", store, "serve", *files)


def serves(url: str, store: str | None, timeout_s: float = ASK_TIMEOUT_S) -> bool:
    """Whether a proxy is ready there, for ``store`` where one is given."""
    try:
        if not ready(url, timeout_s):
            return False
        if store is None:
            return True
        served = served_store(ask(url, "/status", timeout_s=timeout_s))
    except LodefsError:
        return False
    return plain_store(store) == plain_store(str(served))


def plain_store(url: str) -> str:
    """A store's URL for comparing: settings in it (endpoint, region) do not count."""
    return split_settings(url)[0].removeprefix("file://").rstrip("/")


def served_store(status: Mapping[str, object]) -> object:
    node = status.get("node")
    return node.get("store") if isinstance(node, dict) else None


def start(own: OwnProxy, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Starts a proxy unless it runs, and returns when it is ready. NotFound if its store is not
    there, and nothing stays of it then; Unavailable with its words.

    Of several that start one at once, one does and the others wait for it.
    """
    import subprocess  # here: mostly a proxy runs already

    if ready(own.url):
        return
    _make(own)
    with _locked(own.directory / "starting"):
        if ready(own.url):
            return
        _make(own)  # another one may have removed it, whose store was not there
        leave = None if namespaces.in_first_user_namespace() else _leave_namespace
        with own.log.open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=own.directory,  # not where the user is: that could not be unmounted
                env=python_process.environment(inheritable(environment)),
                start_new_session=True,
                preexec_fn=leave,  # noqa: PLW1509 - commands in containers have no threads
            )
        own.pid_file.write_text(f"{process.pid}\n")
        _await(own, process, begin)
        process.returncode = 0  # it outlives us on purpose: Popen need not warn


def _leave_namespace() -> None:
    """In the proxy's process: a container's mounts do not wait for its end."""
    with suppress(OSError):
        namespaces.leave()


def _make(own: OwnProxy) -> None:
    try:
        own.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Denied(f"{own.directory}: {error.strerror}: no place for a proxy's cache") from error


def _await(own: OwnProxy, process: subprocess.Popen[bytes], log_begin: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not ready(own.url):
        if process.poll() is not None:
            words = _last_words(own, log_begin)
            if process.returncode == NO_STORE_CODE:
                _remove_unused(own)
                raise NotFound(words)
            more = f" (more in {own.log})" if words else f"see {own.log}"
            raise Unavailable(f"the proxy ended at once: {words}{more}")
        if time.monotonic() > deadline_s:
            process.terminate()
            process.wait()
            raise Unavailable(
                f"the proxy was not ready after {START_TIMEOUT_S:.0f} s; see {own.log}"
            )
        time.sleep(POLL_S)


def _last_words(own: OwnProxy, log_begin: int) -> str:
    with own.log.open("rb") as log:
        log.seek(log_begin)
        lines = log.read()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("lodefs: error: ") if lines else ""


def _remove_unused(own: OwnProxy) -> None:
    """What a proxy left whose store is not there, unless it ran once. Called under its lock."""
    if not own.store_file.exists():
        shutil.rmtree(own.directory, ignore_errors=True)


def ready(url: str, timeout_s: float = ASK_TIMEOUT_S) -> bool:
    try:
        return _get(url, "/readyz", None, timeout_s).status == 200
    except (Unavailable, Denied):
        return False


def ask(
    url: str, path: str, token: str | None = None, *, timeout_s: float = ASK_TIMEOUT_S
) -> dict[str, object]:
    """The JSON object that a proxy answers with. Unavailable, Denied."""
    try:
        answer = _get(url, path, token, timeout_s)
    except Unavailable as error:
        raise Unavailable(why_not_started(url) or str(error)) from error
    if answer.status in (401, 403):
        if not token:
            raise Denied(f"{url}: the proxy wants a token; LODEFS_TOKEN holds none")
        raise Denied(f"{url}: the proxy refuses this token; LODEFS_TOKEN holds it")
    try:
        found = from_json(answer.body, dict[str, object])
    except InvalidInput:
        found = None
    if answer.status != 200 or found is None:
        raise Unavailable(f"{url}: the proxy answers {answer.status} to {path}")
    return found


def _get(url: str, path: str, token: str | None, timeout_s: float) -> Response:
    with closing(ControlClient(url, token)) as calls:
        return calls.ask("GET", path, timeout_s=timeout_s)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


UNIT = "lodefs-proxy.service"
SYSTEMCTL_TIMEOUT_S = 5.0
LOOK_S, PAUSE_S = 3.0, 0.1
_PROPERTIES = ("ActiveState", "NRestarts", "StatusText")
_IS_BOOTED = "/run/systemd/system"  # sd_booted(3)


def why_not_started(url: str) -> str | None:
    """What the node's proxy said when it could not start, how often, and where there is more; None
    unless ``url`` is where that service listens, and systemd says so."""
    if not _is_of_systemd(url):
        return None
    ends_s = time.monotonic() + LOOK_S
    while (shown := _shown()) and (why := told(shown)) is None:
        if not _is_tried_again(shown) or time.monotonic() > ends_s:
            return None
        time.sleep(PAUSE_S)  # systemd forgets what it said before while it is started again
    return why if shown else None


def _is_starting(url: str) -> bool:
    """Whether systemd starts the node's proxy, which has not said that it cannot start."""
    if not _is_of_systemd(url):
        return False
    shown = _shown()
    return _properties(shown).get("ActiveState") == "activating" and told(shown) is None


def _is_of_systemd(url: str) -> bool:
    return url == f"unix:{SOCKET_DEFAULT}" and os.path.isdir(_IS_BOOTED)


def told(shown: str) -> str | None:
    """The same, of what ``systemctl show`` writes of the unit."""
    found = _properties(shown)
    status = found.get("StatusText", "")
    if found.get("ActiveState") == "active" or not status.startswith(PREFIX):
        return None
    tries = f" (tried {int(found['NRestarts']) + 1:,} times)" if found.get("NRestarts") else ""
    return (
        f"the node's proxy {status}{tries}; journalctl -u lodefs-proxy has more. "
        "It is tried again by itself; at once: systemctl restart lodefs-proxy"
    )


def _is_tried_again(shown: str) -> bool:
    found = _properties(shown)
    return found.get("ActiveState") == "activating" and found.get("NRestarts") != "0"


def _properties(shown: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in shown.splitlines())


def _shown() -> str:
    import subprocess  # here: mostly nobody asks

    command = ["systemctl", "show", *(f"--property={name}" for name in _PROPERTIES), UNIT]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SYSTEMCTL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
