"""``lodefs.mount``: a revision as a directory of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Self, Unpack

import msgspec

from lodefs.chunkstore.errors import InvalidInput, NotFound, UnderWay
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.format.names import Spec, parse_revision
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.mount.kernel import features
from lodefs.mount.kernel.device import check_device
from lodefs.mount.options import READ_TIMEOUT_S, MountOptions, Wanted, check_mode
from lodefs.mount.process.mount_target import check_mountpoint
from lodefs.mount.process.mounter import Mounted, Unmounted, unmount
from lodefs.mount.process.mounter import mount as mount_apart
from lodefs.proxies.own_proxy import UNUSED_TIMEOUT_S, proxy_url
from lodefs.settings.access_rules import access_rules
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import NodeWhere, Session, opened, spec_of

IMPORT_S_MAX = 2 * 3600.0  # of a commit of Git
FOR_GROUP, FOR_OWNER = 0o550, 0o500  # modes of directories


class Mount:
    """A mount that can be read. It outlives the program, unless it is used as a context manager or
    unmounted."""

    def __init__(self, mounted: Mounted) -> None:
        self.mountpoint = mounted.mountpoint
        self.repo = mounted.repo
        self.commit = mounted.commit

    def unmount(self) -> Unmounted:
        """Unmounts it. A mount in use disappears, and ends when its last user closes its files.
        Raises: NotFound, Denied."""
        return unmount(self.mountpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()

    def __fspath__(self) -> str:
        return self.mountpoint

    def __repr__(self) -> str:
        return f"<lodefs.Mount {self.repo}@{self.commit[:12]} on {self.mountpoint}>"


def mount(
    spec: str | Spec,
    directory: str | os.PathLike[str],
    *,
    read_timeout_s: float = READ_TIMEOUT_S,
    passthrough: Wanted = "auto",
    uid: int | None = None,
    gid: int | None = None,
    mode: int | None = None,
    writable: bool = False,
    upper: str | os.PathLike[str] | None = None,
    **where: Unpack[NodeWhere],
) -> Mount:
    """Mounts ``REPO[@REV][:PATH]`` on an existing directory: read-only, unless ``writable``. The
    changes of a writable mount lie in ``upper``, a directory of a local disk, or below this user's
    state directory.

    ``read_timeout_s``: after this, a read fails with EIO. ``passthrough``: whether the kernel reads
    complete files of the cache directly: "on", "off" or "auto". ``uid``, ``gid``, ``mode``: of all
    files. ``proxy`` and ``store`` default to the settings; ``session``: the settings themselves.
    Raises: InvalidInput, InUse, NotFound, Denied, Unsupported, Unavailable.
    """
    check_mode(mode)
    place = os.fspath(directory)
    if not writable:
        check_mountpoint(place)  # before a proxy is started in vain
    check_device()
    requested = MountFile(
        spec=spec_of(spec),
        directory=place,
        uid=uid,
        gid=gid,
        mode=mode,
        read_timeout_s=read_timeout_s,
        passthrough=passthrough,
    )
    with opened(**where) as settings:
        if writable:
            from lodefs.api.writing.writable import WritableMount, mount_writable

            above = os.fspath(upper) if upper is not None else None
            return WritableMount(settings, mount_writable(settings, requested, upper=above))
        return Mount(mount_apart(options_of(settings, requested)))


def options_of(
    session: Session,
    requested: MountFile,
    log_path: str = "",
    *,
    proxy_unused_timeout_s: float = UNUSED_TIMEOUT_S,
    tell: Callable[[str], object] = lambda _text: None,
) -> MountOptions:
    """Returns the options of the mount's process. Starts a proxy if none runs; it ends after it was
    unused for a time. A commit of Git is in the store then, and ``tell`` is called if that takes
    long. Raises: NotFound, Denied, Unavailable for such a commit."""
    without = features.parse(session.environment.get(features.VARIABLE, ""))
    session.apply_options(proxy=session.proxy_option or requested.proxy)
    requested = _restricted(session, requested)
    options = MountOptions(
        repo=requested.spec.repo,
        rev=requested.spec.rev,
        path=requested.spec.path,
        mountpoint=requested.directory,
        proxy=proxy_url(session, proxy_unused_timeout_s),
        token=requested.token() or session.environment.get("LODEFS_TOKEN") or None,
        uid=os.getuid() if requested.uid is None else requested.uid,
        gid=os.getgid() if requested.gid is None else requested.gid,
        mode=requested.mode,
        log_path=log_path,
        read_timeout_s=requested.read_timeout_s or READ_TIMEOUT_S,
        passthrough=requested.passthrough or "auto",
        without=without,
    )
    if git.name_in(parse_revision(options.rev).name) is not None:
        _wait_for_import(options, tell)
    return options


def _wait_for_import(options: MountOptions, tell: Callable[[str], object]) -> None:
    """Returns when the proxy has imported a commit of Git. Raises its error."""
    with closing(
        Client(parse_address(options.proxy), token=options.token, timeout_s=options.read_timeout_s)
    ) as client:
        ends_s = time.monotonic() + IMPORT_S_MAX
        while True:
            try:
                client.snapshot(options.repo, options.rev)
            except UnderWay as error:
                if time.monotonic() > ends_s:
                    raise
                tell(str(error))
            except NotFound as error:
                error.add_note("git_allowed in the proxy's settings says what it imports from Git")
                raise
            else:
                return


def _restricted(session: Session, requested: MountFile) -> MountFile:
    """Root's mount of a repository that rules limit to a group is for that group, unless the
    options say otherwise. Raises: InvalidInput if the rules name several groups."""
    if os.geteuid() != 0 or requested.mode is not None or not session.config.access:
        return requested
    groups = access_rules(session).groups_of(requested.spec.repo)
    if groups is None:
        return requested
    if requested.gid is None and len(groups) > 1:
        raise InvalidInput(
            f"{requested.spec.repo} is for several groups, and a mount has one: give --gid and "
            "--mode 0550, or --mode 0500 for root alone"
        )
    gid = requested.gid if requested.gid is not None else next(iter(groups), None)
    return msgspec.structs.replace(requested, gid=gid, mode=FOR_GROUP if gid else FOR_OWNER)
