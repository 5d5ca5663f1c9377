"""``lodefs mount``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

import click
import msgspec

from lodefs.api.mounting import options_of
from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.protocol.wire import SOCKET_DEFAULT
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import FiniteRange, UntouchedPath
from lodefs.commands.mounts import json_of, json_of_writable, line_of, line_of_writable
from lodefs.mount.kernel import mountpoints
from lodefs.mount.kernel.device import check_device
from lodefs.mount.kernel.passed_device import passed
from lodefs.mount.options import MountOptions, check_mode
from lodefs.mount.process.mount_target import check_mountpoint
from lodefs.mount.process.mounter import Mounted, mount_here, state_of, take_over, take_over_here
from lodefs.mount.process.mounter import mount as mount_apart
from lodefs.settings import mount_file
from lodefs.settings.mount_file import MountFile, on_off
from lodefs.settings.session import Session

NODE_PROXY = f"unix:{SOCKET_DEFAULT}"
READY_TIMEOUT_S = 1.0  # after this the user is told that the proxy does not answer yet
_OWNER: Any = {
    "between": (0, 2**32 - 2),
    "metavar": "N",
}  # the last one means "unchanged" to chown(2)


def _mode(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """Parses an octal mode, as chmod(1) takes it."""
    if value is None:
        return None
    try:
        mode = int(value, 8)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not an octal number such as 0550") from error
    check_mode(mode)
    return mode


def _read_only(_context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        raise click.UsageError(
            "mounts are read-only: give --writable for a mount that takes changes"
        )


class _Look(TypedDict):
    """Options for how a mount looks, whether arguments or a file name the mount."""

    read_timeout_s: Annotated[
        float | None,
        cli.option(
            "Fail a read with EIO after this many seconds [30].",
            "--read-timeout",
            type=FiniteRange(0.1, 3600),
            metavar="S",
        ),
    ]
    passthrough: Annotated[
        bool | None,
        cli.option(
            "Whether the kernel reads complete files of the cache directly: always or never [if "
            "it can, and most files are large].",
            "--passthrough/--no-passthrough",
        ),
    ]
    uid: Annotated[int | None, cli.option("Numeric owner of all files [you].", **_OWNER)]
    gid: Annotated[int | None, cli.option("Numeric group of all files [yours].", **_OWNER)]
    mode: Annotated[
        int | None,
        cli.option(
            "Permissions of directories and programs, at most 0555; other files get the same "
            "without the executable bits [0555].",
            callback=_mode,
            metavar="OCTAL",
        ),
    ]


@cli.command(
    "lodefs mount vision/flickr30k@v1.0 /mnt/flickr30k",
    "lodefs mount vision/flickr30k ./work --writable     # then: lodefs commit ./work -m TEXT",
    "lodefs mount --from /etc/lodefs/mounts.d/cats.toml",
    "lodefs mount --take-over /mnt/flickr30k",
    store=True,
    proxy=True,
)
@click.option("--rw", is_flag=True, hidden=True, expose_value=False, callback=_read_only)
def mount(
    session: Session,
    spec: Spec | None = cli.argument("REPO[@REV][:PATH]"),
    directory: str | None = cli.argument("DIR", type=UntouchedPath()),
    dead_mount: str | None = cli.option(
        "Replace the supervisor of the mount on DIR, dead or alive; readers go on.",
        "--take-over",
        type=UntouchedPath(),
        metavar="DIR",
    ),
    file: Path | None = cli.option(
        "Read from a TOML file what to mount and where; options win.", "--from", metavar="FILE"
    ),
    writable: bool = cli.option(
        "Accept changes, and keep them on a local disk until they are committed."
    ),
    upper: str | None = cli.option(
        "Keep the changes of a --writable mount in this directory of a local disk [one below "
        "/var/lib/lodefs/writable, or ~/.local/state/lodefs/writable].",
        "--upper",
        type=UntouchedPath(),
        metavar="DIR",
    ),
    foreground: bool = cli.option("Serve the mount in this process until it is unmounted."),
    log_path: str = cli.option(
        "Write the log of the mount to FILE [syslog].", "--log", default="", metavar="FILE"
    ),
    as_json: bool = cli.JSON,
    **look: Unpack[_Look],
) -> None:
    """Mount a revision on the empty directory DIR, read-only unless --writable is given.

    The commit is fixed when the mount starts. The command returns when the mount can be read.
    Reads go through the node's proxy. If no proxy runs, one is started for this user; its cache may
    take up to 80 % of the free space (`[serve] cache_size_bytes_max`).

    With --foreground, DIR may be /dev/fd/N: a descriptor of /dev/fuse that is mounted already, such
    as `apptainer --fusemount` passes on.
    """

    def ready(mounted: Mounted) -> None:
        _show(mounted, as_json=as_json, explain=passthrough is True)
        sys.stdout.flush()

    passthrough = look["passthrough"]
    overrides: dict[str, Any] = {name: value for name, value in look.items() if value is not None}
    if passthrough is not None:
        overrides["passthrough"] = on_off(passthrough)
    if writable:
        given = {"--take-over": dead_mount, "--foreground": foreground}
        cli.reject(given, "does not go with --writable, for which no process serves the mount")
    else:
        cli.reject({"--upper": upper}, "needs --writable")
    if dead_mount is not None:
        if spec is not None or file is not None:
            raise click.UsageError("--take-over DIR takes no other arguments")
        _check_take_over(session, overrides, log_path if foreground else "")
        _take_over(session, dead_mount, log_path, ready, foreground=foreground)
        return
    requested = msgspec.structs.replace(_requested(session, file, spec, directory), **overrides)
    if requested.create_dir:
        _create(requested.directory)
    if passed(requested.directory) is not None and not foreground:
        raise InvalidInput(f"{requested.directory}: a descriptor of /dev/fuse needs --foreground")
    if writable:
        _mount_writable(session, requested, upper, log_path, as_json=as_json)
        return
    _mount(session, requested, log_path, ready, foreground=foreground)


def _mount(
    session: Session,
    requested: MountFile,
    log_path: str,
    ready: Callable[[Mounted], None],
    *,
    foreground: bool,
) -> None:
    # Check this before a proxy is started in vain.
    if not foreground:  # a foreground mount may go on with the mount that is there
        check_mountpoint(requested.directory)
    if passed(requested.directory) is None:
        check_device()
    options = options_of(session, requested, log_path, tell=_tell)
    if foreground:
        mount_here(options, ready)
    else:
        _announce_wait(options)
        ready(mount_apart(options, fork=True))


def _mount_writable(
    session: Session, requested: MountFile, upper: str | None, log_path: str, *, as_json: bool
) -> None:
    from lodefs.api.writing.writable import mount_writable

    made = mount_writable(session, requested, upper=upper, log_path=log_path, fork=True)
    record, place = made.record, str(made.place.directory)
    if as_json:
        more_json = {"resumed": made.is_resumed, "mended": made.is_mended}
        cli.write_json(json_of_writable(record, place) | more_json)
        return
    more = "; it shows the changes that were kept" if made.is_resumed else ""
    if made.is_mended:
        more = "; a commit was interrupted, and it accepts changes again"
    cli.write_line(f"{line_of_writable(record, place)}{more}")
    if made.untagged is not None:
        click.echo(
            f"lodefs: the retention policy of {record.repo} may delete the base, which no tag "
            f"keeps: {text.escaped(str(made.untagged))}",
            err=True,
        )
    if not record.branch:
        click.echo(
            f"lodefs: {requested.spec.rev} is not a branch: a commit needs --branch NAME",
            err=True,
        )


def _take_over(
    session: Session,
    directory: str,
    log_path: str,
    ready: Callable[[Mounted], None],
    *,
    foreground: bool,
) -> None:
    _start_proxy_of(session, directory)
    if foreground:
        take_over_here(directory, ready)
    else:
        ready(take_over(directory, log_path=log_path))


def _tell(words: str) -> None:
    click.echo(f"lodefs: {text.escaped(words)}", err=True)


def _announce_wait(options: MountOptions) -> None:
    from lodefs.proxies.own_proxy import ready

    if not ready(options.proxy, READY_TIMEOUT_S):
        click.echo(
            f"lodefs: {options.proxy} does not answer yet; "
            f"waiting for it, {options.read_timeout_s:g} s at most",
            err=True,
        )


def _check_take_over(session: Session, overrides: Mapping[str, object], log_path: str) -> None:
    """Raises UsageError for options of new mounts: a take-over does not change the mount."""
    names = {"read_timeout_s": "read-timeout"}
    options: dict[str, object] = {
        f"--{names.get(name, name)}": value for name, value in overrides.items()
    }
    options |= session.command_options
    cli.reject(options, "does nothing with --take-over, which does not change the mount")
    cli.reject({"--log": log_path}, "does nothing with --take-over --foreground")


def _requested(
    session: Session, file: Path | None, spec: Spec | None, directory: str | None
) -> MountFile:
    """Returns the mount that the user asks for. With --from, the mount uses the proxy that the file
    names, or the node's. That proxy may not run yet, and none is started for it."""
    if file is not None:
        if spec is not None:
            raise click.UsageError(
                "--from FILE names what to mount and where: give no other arguments"
            )
        cli.reject(
            {"--store": session.command_options["--store"]},
            "does nothing with --from, which names a proxy",
        )
        found = mount_file.read(file)
        return msgspec.structs.replace(found, proxy=found.proxy or session.proxy_url or NODE_PROXY)
    if spec is None or directory is None:
        raise click.UsageError("give what to mount, and where: REPO[@REV][:PATH] DIR")
    return MountFile(spec=spec, directory=directory)


def _start_proxy_of(session: Session, directory: str) -> None:
    """Starts the proxy of a mount again, if it is the user's own and does not run."""
    from lodefs.proxies.own_proxy import start_again

    state = None
    with suppress(LodefsError):  # the take-over reports them
        state = state_of(directory)
    if state is None or not state.proxy:
        return
    try:
        start_again(session, state.proxy)
    except LodefsError as error:  # the mount's processes can be replaced anyway
        click.echo(f"lodefs: {text.escaped(str(error))}", err=True)


def _create(directory: str) -> None:
    try:
        mountpoints.make(mountpoints.real(directory))
    except NotADirectoryError:
        return  # later checks report it
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be created: {error.strerror}") from error


def _show(mounted: Mounted, *, as_json: bool, explain: bool) -> None:
    if as_json:
        cli.write_json(json_of(mounted))
        return
    cli.write_line(line_of(mounted, is_listed=explain))
