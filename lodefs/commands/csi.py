"""``lodefs csi``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lodefs.chunkstore.errors import Denied, InvalidInput, Unsupported
from lodefs.chunkstore.objects.schemes import scheme_of
from lodefs.cli import options as cli
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.mount.csi.credentials import Credentials
    from lodefs.mount.volumes.changes import VolumeWriter, WritableVolume

_NO, _SECRET, _NODE = "no", "secret", "node"
_LEVELS = ("debug", "info", "warning", "error")
_PATH = click.Path(path_type=Path)
ID_BYTES_MAX = 256  # the CSI specification's limit for a node's id


@cli.command(
    "lodefs mounter --proxy unix:/run/lodefs/proxy.sock     # holds the mounts",
    "lodefs csi --endpoint unix:///csi/csi.sock --node-id node1",
    name="csi",
)
@click.option(
    "--mounter",
    metavar="PATH",
    type=_PATH,
    envvar="LODEFS_MOUNTER_SOCKET",
    help="Socket of `lodefs mounter`, which holds the mounts [/run/lodefs/mounter/mounter.sock].",
)
@click.option(
    "--registration-dir",
    "registration",
    metavar="DIR",
    type=_PATH,
    envvar="LODEFS_REGISTRATION_DIR",
    help="The kubelet's plugins_registry; the driver registers itself there, without a sidecar.",
)
@click.option(
    "--kubelet-socket",
    metavar="PATH",
    type=_PATH,
    envvar="LODEFS_KUBELET_SOCKET",
    help="The driver's socket as the kubelet sees it, if that differs from --endpoint.",
)
@click.option(
    "--state",
    metavar="DIR",
    type=_PATH,
    envvar="LODEFS_CSI_STATE",
    help="Directory of changes, on a local disk [/var/lib/lodefs/csi].",
)
@click.option(
    "--run-dir",
    "run",
    metavar="DIR",
    type=_PATH,
    envvar="LODEFS_CSI_RUN_DIR",
    help="Directory that a reboot empties, for credentials of pods [/run/lodefs].",
)
def csi(
    session: Session,
    endpoint: str = cli.option(
        "The driver's socket, unix:///PATH [CSI_ENDPOINT].",
        metavar="URL",
        envvar="CSI_ENDPOINT",
        required=True,
    ),
    node_id: str = cli.option(
        "The name of this node in the cluster [LODEFS_NODE_ID, NODE_NAME].",
        metavar="NAME",
        envvar=["LODEFS_NODE_ID", "NODE_NAME"],
        required=True,
    ),
    writable: str = cli.option(
        "Whose credentials commit what pods change: `secret`: those in the Secret of the volume "
        "alone; `node`: also the driver's own, then all who make volumes may write to the store; "
        "`no`: no volume takes changes [no].",
        default=_NO,
        type=click.Choice((_NO, _SECRET, _NODE)),
        envvar="LODEFS_CSI_WRITABLE",
    ),
    log_level: str = cli.option(
        "[info]", default="info", type=click.Choice(_LEVELS), envvar="LODEFS_LOG_LEVEL"
    ),
    **options: Path | None,
) -> None:
    """Serve volumes to Kubernetes (CSI) until SIGTERM or SIGINT. Mounts stay after that.

    It counts reads for the proxy of this node, which LODEFS_PROXY names, if it is on this machine.
    """
    try:
        from lodefs.mount.csi.driver import MOUNTER, STATE, DriverSettings, run
    except ModuleNotFoundError as error:
        if error.name not in ("grpc", "google", "google.protobuf"):
            raise
        raise Unsupported("lodefs csi needs gRPC: pip install 'lodefs[csi]'") from None
    from lodefs.commands.version import number
    from lodefs.proxies.own_proxy import node_figures
    from lodefs.proxy.service.logs import configure_logs

    form = "console" if sys.stderr.isatty() else "auto"
    configure_logs(log_level, form, identifier="lodefs-csi")
    if not 1 <= len(node_id.encode()) <= ID_BYTES_MAX:
        raise InvalidInput(f"--node-id: the name of a node must have 1 to {ID_BYTES_MAX} bytes")
    given = {name: value.absolute() for name, value in options.items() if value is not None}
    run(
        DriverSettings(
            endpoint=_socket_path(endpoint),
            node_id=node_id,
            version=number(),
            figures=node_figures(session),
            **given,
        ),
        _writer(session, writable, given.get("state", STATE), given.get("mounter", MOUNTER)),
    )


def _writer(
    session: Session, writable: str, state: Path, mounter: Path
) -> Callable[[Credentials], VolumeWriter] | None:
    """Returns the object that mounts and commits volumes that take changes; None without any.
    Raises: InvalidInput."""
    if writable == _NO:
        return None
    from lodefs.api.writing.writable_volumes import WritableVolumes

    if writable == _SECRET and scheme_of(session.store_url) != "s3":
        raise InvalidInput(
            f"--writable secret: {session.store_url} is not on S3, and Secrets hold keys of S3: "
            "with --writable node all who make volumes may write to it"
        )

    def make(credentials: Credentials) -> VolumeWriter:
        own = writable == _NODE
        opened = partial(_session_of, session, credentials, is_node_s_own=own)
        return WritableVolumes(session, state, mounter, opened)

    return make


@contextmanager
def _session_of(
    session: Session, credentials: Credentials, volume: WritableVolume, *, is_node_s_own: bool
) -> Iterator[Session]:
    """Returns the settings with the credentials of a volume's Secret, or the driver's own. Raises:
    Denied."""
    from lodefs.chunkstore.objects.s3.sigv4 import Credentials as Keys
    from lodefs.mount.csi.attributes import CREDENTIALS

    found = credentials.of(volume.key)
    if found:
        id_, key, token = map(found.get, CREDENTIALS)
        made = session.with_credentials(Keys(id_ or "", key or "", token))
        try:
            yield made
        finally:
            made.close()
    elif is_node_s_own:
        yield session
    else:
        raise Denied(
            f"volume {volume.name}: there are no credentials to write with: put "
            f"{' and '.join(CREDENTIALS[:2])} into the Secret that nodePublishSecretRef names "
            "(a reboot of the node forgets those of before)"
        )


def _socket_path(endpoint: str) -> Path:
    """Returns the path in ``unix:///PATH``, ``unix:/PATH`` or ``/PATH``. Raises: InvalidInput."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else ""
    path = path or endpoint.removeprefix("unix:")
    if not path.startswith("/"):
        raise InvalidInput(f"--endpoint {endpoint!r} must name a socket, as in unix:///PATH")
    return Path(path)
