"""Files with a secret, readable only for their owner and group. Replacing one keeps that."""

from __future__ import annotations

import errno
import grp
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput

SERVICE_GROUP = "lodefs"  # the services' group: they read what root writes
_FORBIDDEN_MODE = stat.S_IRWXO | stat.S_IWGRP
_ACL = "system.posix_acl_access"
_NO_ACL = (errno.ENODATA, errno.ENOTSUP)


def check_private(path: Path, what: str) -> None:
    """Raises: InvalidInput if the file cannot be read, others may read it, or its group may change
    it.

    The group may read it, since Kubernetes mounts secrets in that way. ``what`` begins the message.
    """
    try:
        with path.open("rb"):
            mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InvalidInput(f"{what}: {error.strerror}") from error
    if mode & _FORBIDDEN_MODE:
        raise InvalidInput(
            f"{what}: its mode {mode:04o} lets others read it or its group change it: "
            f"chmod 0600 (or 0640) {path}"
        )


class _Rights(NamedTuple):
    """Owner, group, mode and ACL of a file. ``acl`` is in the kernel's format; None without one."""

    uid: int
    gid: int
    mode: int
    acl: bytes | None = None


def replace_private(path: Path, data: bytes, *, like: Path | None = None) -> None:
    """Replaces a file in one step. It keeps its owner, group, mode and ACL.

    A new file gets those of ``like``. If that is missing, too, the file belongs to the user who
    makes it, with mode 0600; if root makes it and the group of the services exists, to root and
    that group, with mode 0640. Raises: OSError, also if this user may not make a file with these
    rights.
    """
    rights = _rights_of(path) or (None if like is None else _rights_of(like)) or _new_rights()
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            made = os.fstat(fd)
            if (made.st_uid, made.st_gid) != (rights.uid, rights.gid):
                os.fchown(fd, rights.uid, rights.gid)
            os.fchmod(fd, rights.mode)
            if rights.acl is not None:
                os.setxattr(fd, _ACL, rights.acl)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _rights_of(path: Path) -> _Rights | None:
    """Returns the rights of a file; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    acl = None
    try:
        acl = os.getxattr(path, _ACL)
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
    return _Rights(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode) & 0o777, acl)


def _new_rights() -> _Rights:
    if os.geteuid() == 0:
        with suppress(KeyError):
            return _Rights(0, grp.getgrnam(SERVICE_GROUP).gr_gid, 0o640)
    return _Rights(os.geteuid(), os.getegid(), 0o600)
