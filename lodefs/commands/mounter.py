"""``lodefs mounter`` and ``lodefs mounter-ready``."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, TypedDict, Unpack

import click
from click.core import ParameterSource

from lodefs.chunkstore.errors import Unsupported
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import FiniteRange
from lodefs.settings.session import Session

_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger("lodefs.mounter")
_PATH = click.Path(path_type=Path)


class _Options(TypedDict):
    """The options of `lodefs mounter`."""

    socket: Annotated[
        Path | None,
        cli.option(
            "Socket at which drivers find it [/run/lodefs/mounter/mounter.sock].",
            "--socket",
            metavar="PATH",
            envvar="LODEFS_MOUNTER_SOCKET",
        ),
    ]
    state: Annotated[
        Path | None,
        cli.option(
            "Directory for records of the mounts and their users [/var/lib/lodefs/mounter].",
            "--state-dir",
            metavar="DIR",
            envvar="LODEFS_MOUNTER_STATE_DIR",
        ),
    ]
    run: Annotated[
        Path | None,
        cli.option(
            "Directory for the tokens of mounts, which a reboot must empty [/run/lodefs/mounter].",
            "--run-dir",
            metavar="DIR",
            envvar="LODEFS_MOUNTER_RUN_DIR",
        ),
    ]
    root: Annotated[
        Path | None,
        cli.option(
            "Directory below which it mounts [/var/lib/lodefs/mounts].",
            "--mounts-root",
            metavar="DIR",
            envvar="LODEFS_MOUNTS_ROOT",
        ),
    ]
    idle_s: Annotated[
        float,
        cli.option(
            "Keep an unused mount this many seconds for its next user [10].",
            "--idle-timeout",
            default=10.0,
            metavar="S",
            type=FiniteRange(0.0, 86400.0),
            envvar="LODEFS_MOUNTER_IDLE_TIMEOUT",
        ),
    ]
    stores: Annotated[
        tuple[str, ...],
        cli.option(
            "A store that volumes may name; repeat it, or list stores with blanks in the "
            "environment. Everyone who may create volumes reads all of it, without a token [none].",
            "--allow-store",
            metavar="URL",
            envvar="LODEFS_MOUNTER_ALLOW_STORE",
        ),
    ]
    attach: Annotated[
        Path | None,
        cli.option(
            "Hand mounts out to users of this machine, for `lodefs run` and enroot, which look "
            "for /run/lodefs/attach.sock [do not].",
            "--attach-socket",
            metavar="PATH",
            envvar="LODEFS_MOUNTER_ATTACH_SOCKET",
        ),
    ]
    attach_group: Annotated[
        str | None,
        cli.option(
            "Hand mounts out only to users of this group [to all].",
            metavar="GROUP",
            envvar="LODEFS_MOUNTER_ATTACH_GROUP",
        ),
    ]
    references_max: Annotated[
        int,
        cli.option(
            "Mounts handed out to one user; `lodefs run` makes further ones itself [256].",
            default=256,
            metavar="N",
            type=click.IntRange(1, 100_000),
            envvar="LODEFS_MOUNTER_REFERENCES_MAX",
        ),
    ]
    restart: Annotated[
        bool,
        cli.option(
            "Restart it when it is killed: for containers, whose mounts end with their first "
            "process.",
            envvar="LODEFS_MOUNTER_RESTART",
        ),
    ]
    log_level: Annotated[
        str,
        cli.option("[info]", default="info", type=click.Choice(_LEVELS), envvar="LODEFS_LOG_LEVEL"),
    ]


@cli.command(
    "lodefs mounter --proxy unix:/run/lodefs/proxy.sock",
    "lodefs mounter --attach-socket /run/lodefs/attach.sock     # for jobs, too",
    "lodefs mounter --restart --mounts-root /var/lib/lodefs/mounts     # in a container",
    name="mounter",
    proxy=True,
)
def mounter(session: Session, **options: Unpack[_Options]) -> None:
    """Hold this node's mounts for drivers and jobs until SIGTERM or SIGINT. Mounts stay after that.

    `lodefs csi` asks it for mounts, and may be killed, restarted and upgraded while they are read.
    A mounter that starts while another one runs takes over its mounts, and readers notice nothing.
    The older one waits, and takes them back if the newer one ends first.
    """
    tenure = None
    if options["restart"]:
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
    configure_logs(options["log_level"], form, identifier="lodefs-mounter")
    places = {name: options[name] for name in ("socket", "state", "run", "root")}
    given = {name: place.absolute() for name, place in places.items() if place is not None}
    figures = node_figures(session)
    settings = MounterSettings(
        idle_s=options["idle_s"],
        stores=options["stores"],
        figures=figures,
        version=number(),
        **given,
    )
    opened = partial(open_node_mounts, session, settings.state, "csi", _log)
    door = None
    if (attach := options["attach"]) is not None:
        from lodefs.api.attaching import attach_door

        say = partial(_log.warning, "%s")
        group, references_max = options["attach_group"], options["references_max"]
        try:
            door = attach_door(session, attach.absolute(), group, references_max, say)
        except Unsupported as error:
            asked_by = click.get_current_context().get_parameter_source("attach")
            if asked_by is not ParameterSource.ENVIRONMENT:
                raise
            say(f"no mounts for jobs: {error}")  # the unit goes on, since Docker's volumes need it
    run(settings, opened, session.environment, tenure, door)


TIMEOUT_S = 5.0


@cli.command("lodefs mounter-ready", name="mounter-ready")
def mounter_ready(
    session: Session,
    path: Path = cli.option(
        "Socket at which drivers find it [/run/lodefs/mounter/mounter.sock].",
        "--socket",
        default=Path("/run/lodefs/mounter/mounter.sock"),
        metavar="PATH",
        envvar="LODEFS_MOUNTER_SOCKET",
    ),
) -> None:
    """Exit with 0 when the mounter of this container answers, for Kubernetes' probes.

    During an upgrade the mounter of the old pod may answer at the same socket. That does not count,
    so that the old pod does not end before its mounts are taken over.
    """
    del session
    from lodefs.mount.service.client import check_own_service

    check_own_service(path, TIMEOUT_S)
