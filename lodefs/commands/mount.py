"""``lodefs mount``, ``lodefs unmount``, ``lodefs mounts``."""

from __future__ import annotations

import os
import sys

import click

from chunkstore.names import Spec
from lodefs import text
from lodefs.options import SPEC, json_option, session_command, write_json, write_line
from lodefs.session import Session
from mount.mounter import (
    Mounted,
    check_mountpoint,
    list_mounts,
    mount_here,
    take_over,
    take_over_here,
)
from mount.mounter import mount as mount_apart
from mount.mounter import unmount as take_away
from mount.options import READ_TIMEOUT_S, MountOptions


@click.command()
@click.argument("spec", metavar="REPO[@REV][:PATH]", type=SPEC, required=False)
@click.argument("directory", metavar="DIR", type=click.Path(), required=False)
@click.option(
    "--take-over",
    "taken",
    type=click.Path(),
    metavar="DIR",
    help="Go on with the mount on DIR in the place of its supervisor, which may be dead.",
)
@click.option("--foreground", is_flag=True, help="Answer for the mount in this process.")
@click.option(
    "--read-timeout",
    "read_timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=READ_TIMEOUT_S,
    metavar="S",
    help="Longest time of a read, in seconds; EIO after it [30].",
)
@click.option(
    "--passthrough/--no-passthrough",
    default=None,
    help="Let the kernel read complete files of the cache by itself, always or never "
    "[where it can, and most files are not small].",
)
@click.option("--log", "log_path", default="", metavar="FILE", help="Log of the mount [syslog].")
@json_option
@session_command
def mount(
    session: Session,
    spec: Spec | None,
    directory: str | None,
    taken: str | None,
    foreground: bool,
    read_timeout_s: float,
    passthrough: bool | None,
    log_path: str,
    as_json: bool,
) -> None:
    """Mount a revision read-only on the empty directory DIR.

    The commit is fixed when the mount starts. Returns when the mount can be read. Reads go
    through the proxy; where none runs, one is started for this user.
    """
    from lodefs.nodeproxy import proxy_url

    def ready(mounted: Mounted) -> None:
        _show(mounted, as_json=as_json)
        sys.stdout.flush()

    if taken is not None:
        if spec is not None:
            raise click.UsageError("--take-over DIR takes no other arguments")
        if foreground:
            take_over_here(taken, ready)
        else:
            ready(take_over(taken, log_path=log_path))
        return
    if spec is None or directory is None:
        raise click.UsageError("what is to be mounted, and where: REPO[@REV][:PATH] DIR")
    if not foreground:  # which may go on with the mount that is there
        check_mountpoint(directory)  # before a proxy is started for nothing
    options = MountOptions(
        repo=spec.repo,
        rev=spec.rev,
        path=spec.path,
        mountpoint=directory,
        proxy=proxy_url(session),
        token=session.environment.get("LODEFS_TOKEN") or None,
        log_path=log_path,
        read_timeout_s=read_timeout_s,
        passthrough="auto" if passthrough is None else "on" if passthrough else "off",
    )

    if foreground:
        mount_here(options, ready)
    else:
        ready(mount_apart(options, fork=True))


@click.command()
@click.argument("directories", metavar="DIR...", type=click.Path(), nargs=-1, required=True)
@session_command
def unmount(session: Session, directories: tuple[str, ...]) -> None:  # noqa: ARG001
    """Take mounts away. One that is in use goes out of sight, and ends with its last user."""
    for directory in directories:
        done = take_away(directory)
        if done.lazy:
            click.echo(f"lodefs: {text.shown(directory)} is still in use by somebody", err=True)


@click.command()
@json_option
@session_command
def mounts(session: Session, as_json: bool) -> None:  # noqa: ARG001
    """List the mounts of this machine that this process sees."""
    for mounted in list_mounts():
        _show(mounted, as_json=as_json)


def _show(mounted: Mounted, *, as_json: bool) -> None:
    if as_json:
        write_json(json_of(mounted))
        return
    write_line(line_of(mounted))


def line_of(mounted: Mounted) -> str:
    """A mount for people."""
    spec = Spec(mounted.repo, mounted.commit[:12], mounted.path)
    state = f"process {mounted.pid}" if mounted.pid else "does not answer"
    if mounted.passthrough:
        state += f"  passthrough {mounted.passthrough}"
    if not mounted.supervised:
        state += ", without a supervisor: lodefs mount --take-over starts one"
    return f"{text.shown(mounted.mountpoint)}  {text.shown(str(spec))}  {state}"


def json_of(mounted: Mounted) -> dict[str, object]:
    """A mount for scripts."""
    return {
        "mountpoint": text.percent_encoded(os.fsencode(mounted.mountpoint)),
        "repo": mounted.repo,
        "commit": mounted.commit,
        "path": text.percent_encoded(mounted.path),
        "pid": mounted.pid,
        "passthrough": mounted.passthrough or None,
        "supervised": mounted.supervised,
    }
