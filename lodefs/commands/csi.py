"""``lodefs csi``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lodefs.chunkstore.errors import InvalidInput, Unsupported
from lodefs.cli import options as cli
from lodefs.settings.session import Session

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
    log_level: str = cli.option(
        "[info]", default="info", type=click.Choice(_LEVELS), envvar="LODEFS_LOG_LEVEL"
    ),
    **options: Path | None,
) -> None:
    """Serve volumes to Kubernetes (CSI) until SIGTERM or SIGINT. Mounts stay after that.

    It counts reads for the proxy of this node, which LODEFS_PROXY names, if it is on this machine.
    """
    try:
        from lodefs.mount.csi.driver import DriverSettings, run
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
        )
    )


def _socket_path(endpoint: str) -> Path:
    """The path in ``unix:///PATH``, ``unix:/PATH`` or ``/PATH``. Raises: InvalidInput."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else ""
    path = path or endpoint.removeprefix("unix:")
    if not path.startswith("/"):
        raise InvalidInput(f"--endpoint {endpoint!r} must name a socket, as in unix:///PATH")
    return Path(path)
