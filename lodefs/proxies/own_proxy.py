"""The proxy that a command uses: the one asked for, the node's, or one started for the user.

A proxy that is started for a user has its socket, cache, log and process id in
``~/.cache/lodefs/proxy-<store>``. It keeps running when the command ends, serves all mounts of that
store, and ends when it has been unused for a while. Its starter holds a lease on it
(chunkstore.protocol.lease) until the command ends; by then the mount holds one.
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
from lodefs.chunkstore.system.systemd.notify import inheritable
from lodefs.mount.kernel import namespaces
from lodefs.proxy.service.systemd import PREFIX
from lodefs.settings.session import NO_STORE, Session, split_settings

if TYPE_CHECKING:
    import subprocess

START_TIMEOUT_S = 60.0
UNUSED_TIMEOUT_S = 600.0  # for a user's own proxy, unless settings say otherwise
ASK_TIMEOUT_S = 10.0
POLL_S = 0.02
LOG_TAIL_BYTES = 2000
NO_STORE_CODE = 3  # exit code of a proxy whose store does not exist (lodefs.cli.exit_codes)
_RUNS_ON = {"unused_timeout_s", "listen", "peer_listen", "peers", "peers_file", "peers_dns"}


class OwnProxy(msgspec.Struct, frozen=True):
    """The files of a proxy that is started for a user."""

    directory: Path

    @property
    def url(self) -> str:
        return f"unix:{self.socket}"

    @property
    def socket(self) -> Path:
        """The socket at which it listens."""
        return self.directory / "sock"

    @property
    def log(self) -> Path:
        """The file with its standard output and error."""
        return self.directory / "log"

    @property
    def store_file(self) -> Path:
        """A file with the URL of its store, from which it can be started again."""
        return self.directory / "store"

    @property
    def pid_file(self) -> Path:
        """A file with its process id, for people who want to end it."""
        return self.directory / "pid"


def proxy_url(session: Session, unused_timeout_s: float = UNUSED_TIMEOUT_S) -> str:
    """Returns the URL of a proxy that is ready: the one that the settings name, else the node's if
    it serves the same store, else the user's own, which is started, and ends after a time without
    use.

    Raises: InvalidInput if neither a proxy nor a store is given, NotFound if the store does not
    exist, Denied if this user may not use the node's proxy; Unavailable.
    """
    found, store = _found(session)
    if found:
        return found
    if store is None:
        with suppress(Unavailable):  # Denied is raised for a proxy that this user may not use
            _get(node_proxy(session), "/readyz", None, ASK_TIMEOUT_S)
        raise InvalidInput(f"{NO_STORE}; or a proxy with --proxy or LODEFS_PROXY")
    own = own_proxy(session.make_home_cache(), store)
    _start_for(session, own, store, unused_timeout_s)
    own.store_file.write_text(store)
    return own.url


def is_own(session: Session, url: str) -> bool:
    """Whether a proxy was started for this user."""
    return _own_at(session, url) is not None


def start_again(session: Session, url: str) -> None:
    """Starts the user's own proxy at ``url`` unless it runs; ignores other proxies. Raises:
    Unavailable, Denied, NotFound."""
    own = _own_at(session, url)
    if own is not None:
        session.make_home_cache()
        _start_for(session, own, own.store_file.read_text())


def _start_for(
    session: Session, own: OwnProxy, store: str, unused_timeout_s: float = UNUSED_TIMEOUT_S
) -> None:
    """Starts a user's own proxy unless it runs. It stays until the session is closed."""
    _make(own)
    taken = lease.take(own.socket, START_TIMEOUT_S, create=True)
    session.keep_open(str(own.socket), taken)
    command = serve_command(own, store)
    if may_end(session.config.serve):
        command += ["--unused-timeout", f"{unused_timeout_s:g}"]
    start(own, command, session.environment)


def may_end(serve: Mapping[str, object]) -> bool:
    """Whether a user's own proxy with these settings may end by itself: they do not decide this,
    and nobody uses it over TCP."""
    return not _RUNS_ON & serve.keys()


def _own_at(session: Session, url: str) -> OwnProxy | None:
    own = OwnProxy(Path(url.removeprefix("unix:")).parent)
    is_ours = own.url == url and own.directory.parent == session.home_cache()
    return own if is_ours and own.store_file.is_file() else None


def running_proxy(session: Session) -> str:
    """Returns a proxy that runs: the one asked for, the node's, or the user's. Starts none. Raises:
    Unavailable."""
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
            f"no proxy for {store} runs here: start one with `lodefs mount` or `lodefs serve`"
        )
    raise Unavailable(
        "the node's proxy does not run, and finding your own proxy needs the store; "
        f"{NO_STORE}; or a proxy with --proxy or LODEFS_PROXY"
    )


def node_proxy(session: Session) -> str:
    """Returns the proxy that the settings name, else the address of the node's."""
    return session.proxy_url or f"unix:{SOCKET_DEFAULT}"


def node_figures(session: Session) -> tuple[Path, ...]:
    """Returns the directories in which a component counts for ``node_proxy`` (``directories_for``).
    None if that proxy is on another machine, or the settings are unusable, which their user will
    report."""
    socket = node_socket(session)
    return directories_for(socket, os.geteuid()) if socket else ()


def node_job_figures(session: Session) -> Path | None:
    """Returns the directory in which mounts count the reads of jobs; None under the conditions of
    ``node_figures``."""
    socket = node_socket(session)
    return private_directory_of(socket) if socket else None


def node_socket(session: Session) -> str:
    """Returns the socket of the node's proxy; "" if there is none."""
    with suppress(InvalidInput):
        return parse_address(node_proxy(session)).path or ""
    return ""


def _found(session: Session) -> tuple[str | None, str | None]:
    """Returns a proxy that need not be started, and the store that the settings name."""
    if session.proxy_option:  # the settings need not be read
        return session.proxy_option, None
    store = session.store_url if session.has_store else None
    node = node_proxy(session)
    return (node if session.proxy_url or _node_serves(node, store) else None), store


def _node_serves(node: str, store: str | None) -> bool:
    """Like ``serves``, but waits for a node's proxy that systemd is starting or restarting."""
    ends_s = time.monotonic() + START_TIMEOUT_S
    while not serves(node, store):
        if time.monotonic() > ends_s or not _is_starting(node):
            return False
        time.sleep(PAUSE_S)
    return True


def own_proxy(home_cache: Path, store: str) -> OwnProxy:
    return OwnProxy(home_cache / f"proxy-{digest_of(store.encode()).hex()[:12]}")


def serve_command(own: OwnProxy, store: str) -> list[str]:
    """Returns the command line that runs a user's own proxy."""
    files = ["--socket", str(own.socket), "--cache", str(own.directory / "cache")]
    return python_process.command("lodefs.main", "--store", store, "serve", *files)


def serves(url: str, store: str | None, timeout_s: float = ASK_TIMEOUT_S) -> bool:
    """Whether a proxy is ready at the URL and, if ``store`` is given, serves it."""
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
    """Returns a store's URL for comparison, without settings such as endpoint and region."""
    return split_settings(url)[0].removeprefix("file://").rstrip("/")


def served_store(status: Mapping[str, object]) -> object:
    node = status.get("node")
    return node.get("store") if isinstance(node, dict) else None


def start(own: OwnProxy, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Starts a proxy unless it runs, and returns when it is ready. Raises: NotFound if its store
    does not exist, and leaves nothing of the proxy then; Unavailable with the proxy's message.

    If several processes start one at once, one starts it and the others wait.
    """
    import subprocess  # here: mostly a proxy runs already

    if ready(own.url):
        return
    _make(own)
    with _locked(own.directory / "starting"):
        if ready(own.url):
            return
        _make(own)  # another start may have removed it, because its store did not exist
        leave = None if namespaces.in_first_user_namespace() else _leave_namespace
        with own.log.open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=own.directory,  # the user's directory could not be unmounted
                env=python_process.environment(inheritable(environment)),
                start_new_session=True,
                preexec_fn=leave,  # noqa: PLW1509 - commands in containers have no threads
            )
        own.pid_file.write_text(f"{process.pid}\n")
        _await(own, process, begin)
        process.returncode = 0  # it outlives this process on purpose: Popen must not warn


def _leave_namespace() -> None:
    """Runs in the proxy's process, so that a container's mounts can end before it."""
    with suppress(OSError):
        namespaces.leave()


def _make(own: OwnProxy) -> None:
    try:
        own.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Denied(
            f"{own.directory}: {error.strerror}: the proxy's cache cannot be created"
        ) from error


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
    """Removes the files of a proxy whose store does not exist, unless it ran before. Called under
    its lock."""
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
    """Returns the JSON object in a proxy's answer. Raises: Unavailable, Denied."""
    try:
        answer = _get(url, path, token, timeout_s)
    except Unavailable as error:
        raise Unavailable(why_not_started(url) or str(error)) from error
    if answer.status in (401, 403):
        if not token:
            raise Denied(f"{url}: the proxy needs a token; put one into LODEFS_TOKEN")
        raise Denied(f"{url}: the proxy refuses the token in LODEFS_TOKEN")
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
    """Returns the reason why the node's proxy could not start, the number of tries, and a pointer
    to the log. None unless ``url`` is where that service listens, and systemd reports a failure."""
    if not _is_of_systemd(url):
        return None
    ends_s = time.monotonic() + LOOK_S
    while (shown := _shown()) and (why := told(shown)) is None:
        if not _is_tried_again(shown) or time.monotonic() > ends_s:
            return None
        time.sleep(PAUSE_S)  # systemd forgets the last status during a restart
    return why if shown else None


def _is_starting(url: str) -> bool:
    """Whether systemd is starting the node's proxy, and has not reported a failure."""
    if not _is_of_systemd(url):
        return False
    shown = _shown()
    return _properties(shown).get("ActiveState") == "activating" and told(shown) is None


def _is_of_systemd(url: str) -> bool:
    return url == f"unix:{SOCKET_DEFAULT}" and os.path.isdir(_IS_BOOTED)


def told(shown: str) -> str | None:
    """Returns the same, parsed from the output of ``systemctl show``."""
    found = _properties(shown)
    status = found.get("StatusText", "")
    if found.get("ActiveState") == "active" or not status.startswith(PREFIX):
        return None
    tries = f" (tried {int(found['NRestarts']) + 1:,} times)" if found.get("NRestarts") else ""
    return (
        f"the node's proxy {status}{tries}; journalctl -u lodefs-proxy has more. "
        "systemd tries again; to try now: systemctl restart lodefs-proxy"
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
