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
ID_BYTES_MAX = 256  # of a node, in the CSI specification


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
    help="The kubelet's plugins_registry: register the driver there, without a sidecar.",
)
@click.option(
    "--kubelet-socket",
    metavar="PATH",
    type=_PATH,
    envvar="LODEFS_KUBELET_SOCKET",
    help="The driver's socket as the kubelet sees it, where that differs from --endpoint.",
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
    """Serve volumes to Kubernetes (CSI) until SIGTERM or SIGINT; mounts stay then.

    It counts for the node's proxy (LODEFS_PROXY names it), where that is on this machine.
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
        raise InvalidInput(f"--node-id: a node's name has 1 to {ID_BYTES_MAX} bytes")
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
    """The path of ``unix:///PATH``, ``unix:/PATH`` or ``/PATH``. InvalidInput."""
    path = endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else ""
    path = path or endpoint.removeprefix("unix:")
    if not path.startswith("/"):
        raise InvalidInput(f"--endpoint {endpoint!r} is no unix:///PATH of a socket")
    return Path(path)
