"""``lodefs mount``, ``lodefs unmount``, ``lodefs mounts``."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.nodeapi.wire import SOCKET_DEFAULT
from lodefs.cli import exit_codes, text
from lodefs.cli.options import SPEC, json_option, reject, session_command, write_json, write_line
from lodefs.mount.kernel import features
from lodefs.mount.lifecycle.handover import State
from lodefs.mount.lifecycle.mount_target import check_mountpoint
from lodefs.mount.lifecycle.mounter import (
    Mounted,
    list_mounts,
    mount_here,
    state_of,
    take_over,
    take_over_here,
)
from lodefs.mount.lifecycle.mounter import mount as mount_apart
from lodefs.mount.lifecycle.mounter import unmount as take_away
from lodefs.mount.options import READ_TIMEOUT_S, MountOptions, check_mode
from lodefs.settings import mount_file
from lodefs.settings.mount_file import MountFile, on_off
from lodefs.settings.session import Session

NODE_PROXY = f"unix:{SOCKET_DEFAULT}"
READY_TIMEOUT_S = 1.0  # until it is said that a proxy is waited for
PROXY_TIMEOUT_S = 2.0  # for the proxy of a mount that is listed
_OWNER = click.IntRange(0, 2**32 - 2)  # the last one means "unchanged" to chown(2)


def _mode(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """An octal number as chmod(1) takes it."""
    if value is None:
        return None
    try:
        mode = int(value, 8)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no octal number, as 0550") from error
    check_mode(mode)
    return mode


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
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read what to mount and where from a TOML file; options win.",
)
@click.option("--foreground", is_flag=True, help="Answer for the mount in this process.")
@click.option(
    "--read-timeout",
    "read_timeout_s",
    type=click.FloatRange(0.1, 3600),
    metavar="S",
    help="Longest time of a read, in seconds; EIO after it [30].",
)
@click.option(
    "--passthrough/--no-passthrough",
    default=None,
    help="Let the kernel read complete files of the cache by itself, always or never "
    "[where it can, and most files are not small].",
)
@click.option("--uid", type=_OWNER, metavar="N", help="Whose all of it is [the user's].")
@click.option("--gid", type=_OWNER, metavar="N", help="Of which group all of it is [the user's].")
@click.option(
    "--mode",
    callback=_mode,
    metavar="OCTAL",
    help="Permissions of directories and programs, up to 0555; other files have them without the "
    "executable bits [0555].",
)
@click.option("--log", "log_path", default="", metavar="FILE", help="Log of the mount [syslog].")
@json_option
@session_command(store=True, proxy=True)
def mount(
    session: Session,
    spec: Spec | None,
    directory: str | None,
    taken: str | None,
    file: Path | None,
    foreground: bool,
    read_timeout_s: float | None,
    passthrough: bool | None,
    uid: int | None,
    gid: int | None,
    mode: int | None,
    log_path: str,
    as_json: bool,
) -> None:
    """Mount a revision read-only on the empty directory DIR.

    The commit is fixed when the mount starts. Returns when the mount can be read. Reads go
    through the proxy; where none runs, one is started for this user.
    """

    def ready(mounted: Mounted) -> None:
        _show(mounted, as_json=as_json)
        sys.stdout.flush()

    said: dict[str, Any] = {
        "read_timeout_s": read_timeout_s,
        "passthrough": None if passthrough is None else on_off(passthrough),
        "uid": uid,
        "gid": gid,
        "mode": mode,
    }
    said = {name: value for name, value in said.items() if value is not None}
    if taken is not None:
        if spec is not None or file is not None:
            raise click.UsageError("--take-over DIR takes no other arguments")
        _check_take_over(session, said, log_path if foreground else "")
        _start_proxy_of(session, taken)
        if foreground:
            take_over_here(taken, ready)
        else:
            ready(take_over(taken, log_path=log_path))
        return
    asked = msgspec.structs.replace(_asked(session, file, spec, directory), **said)
    if asked.create_dir:
        _create(asked.directory)
    if not foreground:  # which may go on with the mount that is there
        check_mountpoint(asked.directory)  # before a proxy is started for nothing
    options = _options(session, asked, log_path)
    if foreground:
        mount_here(options, ready)
    else:
        _say_what_is_waited_for(options)
        ready(mount_apart(options, fork=True))


def _say_what_is_waited_for(options: MountOptions) -> None:
    from lodefs.proxies.own_proxy import ready

    if not ready(options.proxy, READY_TIMEOUT_S):
        click.echo(
            f"lodefs: {options.proxy} does not answer; it is waited for, "
            f"{options.read_timeout_s:g} s at most",
            err=True,
        )


def _check_take_over(session: Session, said: Mapping[str, object], log_path: str) -> None:
    """UsageError for options of new mounts: a mount that is taken over stays as it was made."""
    names = {"read_timeout_s": "read-timeout"}
    options: dict[str, object] = {
        f"--{names.get(name, name)}": value for name, value in said.items()
    }
    options |= session.command_options
    reject(options, "does nothing with --take-over: the mount stays as it was made")
    reject({"--log": log_path}, "does nothing with --take-over --foreground")


def _asked(
    session: Session, file: Path | None, spec: Spec | None, directory: str | None
) -> MountFile:
    """What is to be mounted, and where. A file's mount goes through the proxy that is named, or
    the node's, which may not be there yet: none is started for it."""
    if file is not None:
        if spec is not None:
            raise click.UsageError("--from FILE says what to mount and where; name nothing else")
        reject(
            {"--store": session.command_options["--store"]},
            "does nothing with --from, which names a proxy",
        )
        found = mount_file.read(file)
        return msgspec.structs.replace(found, proxy=found.proxy or session.proxy_url or NODE_PROXY)
    if spec is None or directory is None:
        raise click.UsageError("what is to be mounted, and where: REPO[@REV][:PATH] DIR")
    return MountFile(spec=spec, directory=directory)


def _options(session: Session, asked: MountFile, log_path: str) -> MountOptions:
    """All that the mount's process is told; a proxy is started where none is."""
    from lodefs.proxies.own_proxy import proxy_url

    without = features.parse(session.environment.get(features.VARIABLE, ""))
    session.apply_options(proxy=session.proxy_option or asked.proxy)
    return MountOptions(
        repo=asked.spec.repo,
        rev=asked.spec.rev,
        path=asked.spec.path,
        mountpoint=asked.directory,
        proxy=proxy_url(session),
        token=asked.token() or session.environment.get("LODEFS_TOKEN") or None,
        uid=os.getuid() if asked.uid is None else asked.uid,
        gid=os.getgid() if asked.gid is None else asked.gid,
        mode=asked.mode,
        log_path=log_path,
        read_timeout_s=asked.read_timeout_s or READ_TIMEOUT_S,
        passthrough=asked.passthrough or "auto",
        without=without,
    )


def _start_proxy_of(session: Session, directory: str) -> None:
    """Starts the proxy of a mount again where it is the user's own and gone."""
    from lodefs.proxies.own_proxy import start_again

    state = None
    with suppress(LodefsError):  # who takes the mount over tells them
        state = state_of(directory)
    if state is None or not state.proxy:
        return
    try:
        start_again(session, state.proxy)
    except LodefsError as error:  # the mount's processes can be replaced all the same
        click.echo(f"lodefs: {text.escaped(str(error))}", err=True)


def _create(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        return  # a dead mount, or no directory: told by those who look at it
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be created: {error.strerror}") from error


@click.command()
@click.argument("directories", metavar="DIR...", type=click.Path(), nargs=-1, required=True)
@session_command()
def unmount(session: Session, directories: tuple[str, ...]) -> None:
    """Take mounts away. One that is in use goes out of sight, and ends with its last user."""
    for directory in directories:
        try:
            done = take_away(directory)
        except LodefsError as error:  # the others are none the worse for it
            session.exit_code = exit_codes.code_of(error)
            click.echo(f"lodefs: error: {text.escaped(str(error))}", err=True)
            continue
        if done.lazy:
            click.echo(
                f"lodefs: {text.escaped(directory)} is still in use by somebody (an open file, or "
                "another mount namespace); it ends with its last user",
                err=True,
            )


@click.command()
@json_option
@session_command()
def mounts(session: Session, as_json: bool) -> None:
    """List the mounts of this machine that this process sees, and whether their proxies answer."""
    for one in mount_listings():
        if as_json:
            write_json(one.as_json())
        else:
            write_line(one.line(session))


class MountListing(NamedTuple):
    """A mount of this machine and what its process says of it. ``proxy_answers``: None where no
    proxy is known."""

    mounted: Mounted
    state: State | None
    proxy_answers: bool | None

    def line(self, session: Session) -> str:
        """For people."""
        if self.state is None or self.proxy_answers is not False:
            return line_of(self.mounted)
        return f"{line_of(self.mounted)}, {_gone(session, self.mounted, self.state.proxy)}"

    def as_json(self) -> dict[str, object]:
        """For scripts."""
        state = self.state
        traffic = None if state is None else state.traffic
        return {
            **json_of(self.mounted),
            "proxy": None if state is None else state.proxy or None,
            "proxy_answers": self.proxy_answers,
            "traffic": None if traffic is None else msgspec.structs.asdict(traffic),
        }


def mount_listings() -> list[MountListing]:
    """The mounts that this process sees, and whether their proxies answer: each is asked once."""
    from lodefs.proxies.own_proxy import ready

    answers = functools.cache(lambda url: ready(url, PROXY_TIMEOUT_S))
    found = []
    for mounted in list_mounts():
        state = _state(mounted)
        proxy = state.proxy if state is not None else ""
        found.append(MountListing(mounted, state, answers(proxy) if proxy else None))
    return found


def _state(mounted: Mounted) -> State | None:
    """What a mount's process says of it; None where nobody says anything."""
    if mounted.pid:
        with suppress(LodefsError):
            return state_of(mounted.mountpoint)
    return None


def _gone(session: Session, mounted: Mounted, proxy: str) -> str:
    """That a mount's proxy does not answer, and the way out."""
    from lodefs.proxies.own_proxy import is_own

    if is_own(session, proxy):
        place = text.escaped(shlex.quote(mounted.mountpoint))
        return f"its proxy does not answer: `lodefs mount --take-over {place}` starts it again"
    return f"its proxy {text.escaped(proxy)} does not answer: start it again (`lodefs serve`)"


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
    return f"{text.escaped(mounted.mountpoint)}  {text.escaped(str(spec))}  {state}"


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
