"""``lodefs docker-plugin``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lodefs.cli import options as cli
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.mount.service.interface import MountService
    from lodefs.mount.volumes.changes import VolumeWriter

_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger("lodefs.docker")


@cli.command(
    "lodefs docker-plugin",
    "docker volume create --driver lodefs -o repo=vision/flickr30k -o commit=v1.0 flickr30k",
    "docker run --rm -v flickr30k:/data IMAGE ls /data",
    name="docker-plugin",
    proxy=True,
)
@click.option(
    "--socket",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Where dockerd finds the plugin [/run/docker/plugins/lodefs.sock].",
)
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory in which the plugin keeps its volumes [/var/lib/lodefs/docker].",
)
@click.option(
    "--mounter",
    metavar="PATH",
    type=click.Path(path_type=Path),
    envvar="LODEFS_MOUNTER_SOCKET",
    help="Socket of the node's `lodefs mounter`, which mounts for all [none: the plugin mounts "
    "by itself, below its state directory].",
)
@click.option(
    "--answer-timeout",
    "answer_timeout_s",
    metavar="S",
    type=FiniteRange(0.1, 25.0),
    help="Answer dockerd within this many seconds [0.9].",
)
@click.option(
    "--idle-timeout",
    "idle_s",
    metavar="S",
    type=FiniteRange(0.0, 86400.0),
    default=10.0,
    help="Keep a mount of the plugin's own this many seconds for its next user [10].",
)
def docker_plugin(
    session: Session,
    mounter: Path | None,
    idle_s: float,
    log_level: str = cli.option("[info]", default="info", type=click.Choice(_LEVELS)),
    **options: object,
) -> None:
    """Serve volumes to Docker until SIGTERM or SIGINT. Mounts stay after that.

    If systemd starts it, it uses systemd's socket. Each plugin needs a state directory of its own.
    """
    from lodefs.commands.version import number
    from lodefs.mount.docker.plugin import Settings, run
    from lodefs.mount.helper.tokens import read_token
    from lodefs.proxies.own_proxy import node_figures
    from lodefs.proxy.service.logs import configure_logs

    form = "console" if sys.stderr.isatty() else "auto"
    configure_logs(log_level, form, identifier="lodefs-docker")
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(state := given.get("state"), Path):
        given["state"] = state.absolute()
    given |= {"figures": node_figures(session), "version": number()}
    settings = Settings(**given)  # type: ignore[arg-type]  # the types of the options match
    run(
        settings,
        partial(open_service, session, settings.state, mounter, idle_s),
        partial(split_url, session),
        partial(read_token, environ=session.environment, log=partial(_log.warning, "%s")),
        session.environment,
        _writer(session, settings.state, mounter),
    )


def _writer(session: Session, state: Path, mounter: Path | None) -> VolumeWriter | None:
    """Mounts and commits writable volumes; None without a mount service, which they need."""
    if mounter is None:
        return None
    from lodefs.api.writing.writable_volumes import WritableVolumes

    return WritableVolumes(session, state, mounter.absolute())


@contextmanager
def open_service(
    session: Session, state: Path, mounter: Path | None, idle_s: float
) -> Iterator[tuple[MountService, Callable[[], None]]]:
    """Yields the mount service at a socket, or one in this process, and a function that starts its
    upkeep."""
    from lodefs.mount.service.client import RemoteMounts
    from lodefs.mount.service.hosted import hosted
    from lodefs.mount.service.machine_clock import container_boot_id
    from lodefs.proxies.store_proxies import open_node_mounts, store_proxies

    if mounter is None:
        with (
            open_node_mounts(session, state, "docker", _log) as node,
            hosted(state, node, container_boot_id(), idle_s) as service,
        ):
            yield service
    else:
        with store_proxies(session, state, _log):  # for mounts that the plugin made by itself
            yield RemoteMounts(mounter.absolute()), lambda: None


def split_url(session: Session, url: str) -> tuple[str, str]:
    """Returns the store and the repository of a URL that names both. See
    lodefs.proxies.store_url."""
    from lodefs.proxies import store_url  # boto3 comes with it
    from lodefs.proxies.own_proxy import node_proxy

    return store_url.split_url(session, node_proxy(session), url)
