"""``lodefs mounter``."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

import click

from lodefs.cli.options import examples, session_command
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger("lodefs.mounter")
_PATH = click.Path(path_type=Path)

EPILOG = examples(
    "lodefs mounter --proxy unix:/run/lodefs/proxy.sock",
    "lodefs mounter --attach-socket /run/lodefs/attach.sock     # for jobs, too",
    "lodefs mounter --restart --mounts-root /var/lib/lodefs/mounts     # in a container",
)


@click.command("mounter", epilog=EPILOG)
@click.option(
    "--socket",
    metavar="PATH",
    type=_PATH,
    envvar="LODEFS_MOUNTER_SOCKET",
    help="Where drivers find it [/run/lodefs/mounter/mounter.sock].",
)
@click.option(
    "--state-dir",
    "state",
    metavar="DIR",
    type=_PATH,
    envvar="LODEFS_MOUNTER_STATE_DIR",
    help="Which mounts there are, and for whom [/var/lib/lodefs/mounter].",
)
@click.option(
    "--run-dir",
    "run",
    metavar="DIR",
    type=_PATH,
    envvar="LODEFS_MOUNTER_RUN_DIR",
    help="Tokens of mounts: a directory that a reboot empties [/run/lodefs/mounter].",
)
@click.option(
    "--mounts-root",
    "root",
    metavar="DIR",
    type=_PATH,
    envvar="LODEFS_MOUNTS_ROOT",
    help="Where it mounts [/var/lib/lodefs/mounts].",
)
@click.option(
    "--idle-timeout",
    "idle_s",
    metavar="S",
    type=FiniteRange(0.0, 86400.0),
    default=10.0,
    envvar="LODEFS_MOUNTER_IDLE_TIMEOUT",
    help="For so long a mount stays for its next user, in seconds [10].",
)
@click.option(
    "--allow-store",
    "stores",
    metavar="URL",
    multiple=True,
    envvar="LODEFS_MOUNTER_ALLOW_STORE",
    help="A store that volumes may name; repeat it, or list them with blanks in the environment. "
    "Who may make volumes reads all of it, without a token [none].",
)
@click.option(
    "--attach-socket",
    "attach",
    metavar="PATH",
    type=_PATH,
    envvar="LODEFS_MOUNTER_ATTACH_SOCKET",
    help="Hand mounts out to users of this machine, for `lodefs run` and enroot: they look at "
    "/run/lodefs/attach.sock [do not].",
)
@click.option(
    "--attach-group",
    metavar="GROUP",
    envvar="LODEFS_MOUNTER_ATTACH_GROUP",
    help="Only to users of this group [to all].",
)
@click.option(
    "--references-max",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=256,
    envvar="LODEFS_MOUNTER_REFERENCES_MAX",
    help="Mounts of one user, who mounts without the node beyond that [256].",
)
@click.option(
    "--restart",
    is_flag=True,
    envvar="LODEFS_MOUNTER_RESTART",
    help="Start it again when it is killed: for containers, whose mounts end with their first "
    "process.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS),
    default="info",
    envvar="LODEFS_LOG_LEVEL",
    help="[info]",
)
@session_command(proxy=True)
def mounter(
    session: Session,
    log_level: str,
    idle_s: float,
    stores: tuple[str, ...],
    restart: bool,
    attach: Path | None,
    attach_group: str | None,
    references_max: int,
    **options: Path | None,
) -> None:
    """Hold this node's mounts for drivers and jobs, until SIGTERM or SIGINT; mounts stay then.

    `lodefs csi` asks it for mounts, and may be killed, restarted and upgraded while they are read.
    One that is started while another runs takes that one's mounts over: readers notice nothing. The
    other one waits, and takes them back should this one end first.
    """
    tenure = None
    if restart:
        from lodefs.mount.service.keeper import run_in_child

        tenure = run_in_child()
        if tenure is None:
            return
    from lodefs.commands.version import number
    from lodefs.mount.service.process import MounterSettings, run
    from lodefs.proxies.own_proxy import node_figures
    from lodefs.proxies.store_proxies import open_node_mounts
    from lodefs.proxy.service.logs import configure_logs

    form = "console" if sys.stderr.isatty() else "auto"
    configure_logs(log_level, form, identifier="lodefs-mounter")
    given = {name: value.absolute() for name, value in options.items() if value is not None}
    figures = node_figures(session)
    settings = MounterSettings(
        idle_s=idle_s, stores=stores, figures=figures, version=number(), **given
    )
    opened = partial(open_node_mounts, session, settings.state, "csi", _log)
    door = None
    if attach is not None:
        from lodefs.api.attaching import attach_door

        door = attach_door(
            session, attach.absolute(), attach_group, references_max, partial(_log.warning, "%s")
        )
    run(settings, opened, session.environment, tenure, door)
