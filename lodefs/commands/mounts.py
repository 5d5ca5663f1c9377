"""``lodefs mounts`` and ``lodefs unmount``."""

from __future__ import annotations

import functools
import os
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import commit_report, exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.parsed_type import UntouchedPath
from lodefs.mount.process.handover import State
from lodefs.mount.process.mounter import Mounted, Unmounted, list_mounts, state_of
from lodefs.mount.process.mounter import unmount as unmount_directory
from lodefs.mount.writable.upper_place import Record
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.mount.writable.writable_mount import WritableUnmounted

PROXY_TIMEOUT_S = 2.0  # for the proxy of a mount that is listed
USERS_SHOWN_MAX = 5


@cli.command(
    "lodefs unmount /mnt/flickr30k",
    'lodefs unmount ./work --commit -m "corrected captions"',
    "lodefs unmount ./work --keep",
    store=True,
)
def unmount(
    session: Session,
    directories: tuple[str, ...] = cli.argument("DIR...", type=UntouchedPath(), required=True),
    commit: bool = cli.option("Commit the changes of a writable mount to its branch first."),
    message: str | None = cli.option(
        "The message of that commit.", "-m", "--message", metavar="TEXT"
    ),
    keep: bool = cli.option(
        "Keep the changes of a writable mount for the next `lodefs mount --writable` there."
    ),
    discard: bool = cli.option("Discard the changes of a writable mount, mounted or kept."),
) -> None:
    """Unmount directories. A mount in use disappears when its last user closes its files.

    A writable mount with changes that are in no commit needs --commit, --keep or --discard.
    """
    if keep + discard + commit > 1:
        raise click.UsageError("--commit, --keep and --discard exclude each other")
    if not commit:
        cli.reject({"--message": message}, "needs --commit")
    for directory in directories:
        try:
            if commit:
                done = _commit(session, directory, message or "")
            else:
                done = _unmount(session, directory, keep=keep, discard=discard)
        except LodefsError as error:  # go on with the others
            session.exit_code = exit_codes.code_of(error)
            why = "; ".join([str(error), *getattr(error, "__notes__", [])])
            click.echo(f"lodefs: error: {text.escaped(why)}", err=True)
            continue
        if done.lazy:
            click.echo(
                f"lodefs: {text.escaped(directory)} is unmounted lazily: it is still in use"
                f"{_users(done)}, and disappears when that use ends",
                err=True,
            )


def _unmount(session: Session, directory: str, *, keep: bool, discard: bool) -> Unmounted:
    from lodefs.api.writing import writable

    if not writable.is_writable(session, directory):
        cli.reject(
            {"--keep": keep, "--discard": discard},
            f"needs a writable mount, and {directory} is not one",
        )
        return unmount_directory(directory)
    done = writable.unmount_writable(session, directory, keep=keep, discard=discard)
    return _told(directory, done)


def _commit(session: Session, directory: str, message: str) -> Unmounted:
    from lodefs.api.writing.writable import place_of
    from lodefs.api.writing.writable_changes import commit_and_unmount
    from lodefs.mount.writable.writable_mount import recorded

    record = recorded(place_of(session, directory))
    result, done = commit_and_unmount(directory, session=session, message=message)
    spec = Spec(record.repo, record.branch)
    commit_report.show(result, spec, dry_run=False, as_json=False, has_options=False)
    return _told(directory, done)


def _told(directory: str, done: WritableUnmounted) -> Unmounted:
    """Names the tag that is left of a writable mount, if one is."""
    if done.tag_left:
        click.echo(
            f"lodefs: the tag {done.tag_left} still keeps the commit that {text.escaped(directory)}"
            f" showed, since the store could not be asked: `lodefs rm REPO@{done.tag_left}` "
            "removes it",
            err=True,
        )
    return Unmounted(directory, done.is_lazy, done.users)


def _users(done: Unmounted) -> str:
    """Returns the processes that use a mount, as far as this user may see them."""
    if not done.users:
        return " (by a process that this user cannot see, or in another mount namespace)"
    shown = [f"{text.escaped(user.name)} (process {user.pid})" for user in done.users]
    more = len(shown) - USERS_SHOWN_MAX
    rest = f" and {text.count(more, 'more process')}" if more > 0 else ""
    return f" by {', '.join(shown[:USERS_SHOWN_MAX])}{rest}"


@cli.command(
    "lodefs mounts",
    "lodefs mounts --uncommitted",
    "lodefs mounts --json | jq -r .mountpoint",
)
def mounts(
    session: Session,
    uncommitted: bool = cli.option(
        "List the uncommitted changes of this user's writable mounts, mounted or kept."
    ),
    as_json: bool = cli.JSON,
) -> None:
    """List the mounts that this process sees, and whether their proxies answer."""
    if uncommitted:
        _list_uncommitted(session, as_json=as_json)
        return
    for one in mount_listings(session):
        if as_json:
            cli.write_json(one.as_json())
        else:
            cli.write_line(one.line(session))


def _list_uncommitted(session: Session, *, as_json: bool) -> None:
    from lodefs.api.writing import writable

    for one in writable.uncommitted(session):
        place = str(one.place.directory)
        if as_json:
            cli.write_json(json_of_writable(one.record, place) | {"mounted": one.is_mounted})
        else:
            more = "" if one.is_mounted else "; not mounted"
            cli.write_line(f"{line_of_writable(one.record, place)}{more}")


class MountListing(NamedTuple):
    """A mount of this machine, and the state that its process reports. ``branch``: where the next
    commit of a writable mount of this user goes, else "". ``proxy_answers`` is None if no proxy is
    known."""

    mounted: Mounted
    branch: str
    state: State | None
    proxy_answers: bool | None

    def line(self, session: Session) -> str:
        """Returns a line for people."""
        line = line_of(self.mounted, self.branch)
        if self.state is None or self.proxy_answers is not False:
            return line
        return f"{line}, {_proxy_gone(session, self.mounted, self.state.proxy)}"

    def as_json(self) -> dict[str, object]:
        """Returns an object for scripts."""
        state = self.state
        traffic = None if state is None else state.traffic
        return {
            **json_of(self.mounted),
            "branch": self.branch or None,
            "proxy": None if state is None else state.proxy or None,
            "proxy_answers": self.proxy_answers,
            "traffic": None if traffic is None else msgspec.structs.asdict(traffic),
        }


def mount_listings(session: Session) -> list[MountListing]:
    """Returns the mounts that this process sees, and whether their proxies answer. Asks each proxy
    once."""
    from lodefs.api.writing.writable import branch_of
    from lodefs.proxies.own_proxy import ready

    answers = functools.cache(lambda url: ready(url, PROXY_TIMEOUT_S))
    found = []
    for mounted in list_mounts():
        state = _state(mounted)
        proxy = state.proxy if state is not None else ""
        branch = branch_of(session, mounted.mountpoint) if mounted.is_writable else ""
        found.append(MountListing(mounted, branch, state, answers(proxy) if proxy else None))
    return found


def _state(mounted: Mounted) -> State | None:
    """Returns the state that a mount's process reports; None without a report."""
    if mounted.pid:
        with suppress(LodefsError):
            return state_of(mounted.mountpoint)
    return None


def _proxy_gone(session: Session, mounted: Mounted, proxy: str) -> str:
    """Says that a mount's proxy does not answer, and what to do."""
    from lodefs.proxies.own_proxy import is_own

    if is_own(session, proxy):
        place = text.escaped(shlex.quote(mounted.mountpoint))
        return f"its proxy does not answer: `lodefs mount --take-over {place}` starts it again"
    return f"its proxy {text.escaped(proxy)} does not answer: start it again (`lodefs serve`)"


def line_of(mounted: Mounted, branch: str = "", *, is_listed: bool = True) -> str:
    """Returns a mount, for people. Only a list says why lodefs reads large files, since that is no
    fault."""
    shown = _shown(mounted.repo, branch, mounted.commit, mounted.path)
    state = (
        "owned by another user, whose process is not asked"
        if mounted.is_others
        else "does not answer"
    )
    if mounted.pid:
        state = f"process {mounted.pid}"
    if mounted.is_writable:
        state = f"writable, over a mount of {state}" if mounted.pid else f"writable, {state}"
    if mounted.passthrough and (is_listed or mounted.passthrough == "on"):
        state += f"  {_read_path(mounted.passthrough)}"
    if not mounted.supervised:
        state += ", without a supervisor: lodefs mount --take-over starts one"
    return f"{text.escaped(mounted.mountpoint)}  {shown}  {state}"


def _shown(repo: str, branch: str, commit: str, path: bytes) -> str:
    """What a mount shows: a commit, or for a writable mount its branch and the base of changes."""
    spec = text.escaped(str(Spec(repo, branch or commit[:12], path)))
    return f"{spec} from {commit[:12]}" if branch else spec


def _read_path(passthrough: str) -> str:
    """Says whether the kernel or lodefs reads large files of a mount, and why."""
    state, _, reason = passthrough.partition(": ")
    if state == "on":
        return "the kernel reads large files itself (passthrough)"
    return f"read through lodefs (no passthrough: {reason})"


def json_of(mounted: Mounted) -> dict[str, object]:
    """Returns a mount as JSON, for scripts."""
    return {
        "mountpoint": text.percent_encoded(os.fsencode(mounted.mountpoint)),
        "repo": mounted.repo,
        "commit": mounted.commit,
        "path": text.percent_encoded(mounted.path),
        "pid": mounted.pid,
        "passthrough": mounted.passthrough or None,
        "supervised": mounted.supervised,
        "writable": mounted.is_writable,
    }


def line_of_writable(record: Record, place: str) -> str:
    """Returns a writable mount for people, whether it is mounted or not."""
    shown = _shown(record.repo, record.branch, record.commit, record.path)
    where = text.escaped(place)
    return f"{text.escaped(record.mountpoint)}  {shown}  writable, changes in {where}"


def json_of_writable(record: Record, place: str) -> dict[str, object]:
    """Returns a writable mount as JSON, for scripts."""
    return {
        "mountpoint": text.percent_encoded(os.fsencode(record.mountpoint)),
        "repo": record.repo,
        "branch": record.branch or None,
        "commit": record.commit,
        "path": text.percent_encoded(record.path),
        "upper": text.percent_encoded(os.fsencode(place)),
    }
