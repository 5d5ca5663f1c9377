"""``lodefs docker-plugin``."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

import click

from lodefs.cli import options as cli
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

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
    help="Directory of volumes and mount points [/var/lib/lodefs/docker].",
)
@click.option(
    "--answer-timeout",
    "answer_timeout_s",
    metavar="S",
    type=FiniteRange(0.1, 25.0),
    help="Longest time until dockerd has an answer, in seconds [0.9].",
)
def docker_plugin(
    session: Session,
    log_level: str = cli.option("[info]", default="info", type=click.Choice(_LEVELS)),
    **options: object,
) -> None:
    """Serve volumes to Docker until SIGTERM or SIGINT; mounts stay then.

    Started by systemd, it uses systemd's socket. Each plugin needs a state directory of its own.
    """
    from lodefs.commands.version import number
    from lodefs.mount.docker.plugin import Settings, run
    from lodefs.proxies.own_proxy import node_figures
    from lodefs.proxies.store_proxies import open_node_mounts
    from lodefs.proxy.service.logs import configure_logs

    form = "console" if sys.stderr.isatty() else "auto"
    configure_logs(log_level, form, identifier="lodefs-docker")
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(state := given.get("state"), Path):
        given["state"] = state.absolute()
    given |= {"figures": node_figures(session), "version": number()}
    settings = Settings(**given)  # type: ignore[arg-type]  # as their options' types say
    run(
        settings,
        partial(open_node_mounts, session, settings.state, "docker", _log),
        partial(split_url, session),
        session.environment,
    )


def split_url(session: Session, url: str) -> tuple[str, str]:
    """The store and the repository of a URL that names both. See lodefs.proxies.store_url."""
    from lodefs.proxies import store_url  # boto3 comes with it
    from lodefs.proxies.own_proxy import node_proxy

    return store_url.split_url(session, node_proxy(session), url)
