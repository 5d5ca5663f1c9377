"""Whether the node's service can read what root can read."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from lodefs.chunkstore.nodeapi.wire import SOCKET_DEFAULT
from lodefs.doctor.check import Finding, warning
from lodefs.doctor.subject import Subject

USER = "lodefs"
_ACL = "system.posix_acl_access"


def unreadable(subject: Subject, check: str, path: Path) -> list[Finding]:
    """What root is told of a file that the service of this machine may not read; nothing if it may,
    if there is no such user, or if the proxy is another one than the service."""
    place = subject.proxy.socket
    if not subject.is_root or (place is not None and str(place) != SOCKET_DEFAULT):
        return []
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return []
    groups = os.getgrouplist(USER, user.pw_gid)
    if may_read(path.stat(), user.pw_uid, groups) or _ACL in os.listxattr(path):
        return []
    mend = f"chown root:{USER} {path}; chmod 0640 {path}"
    return [warning(check, f"{path} is not for the service's user {USER}", mend)]


def may_read(found: os.stat_result, uid: int, groups: list[int]) -> bool:
    """Whether the mode lets a user who is not root read a file."""
    if found.st_uid == uid:
        return bool(found.st_mode & stat.S_IRUSR)
    if found.st_gid in groups:
        return bool(found.st_mode & stat.S_IRGRP)
    return bool(found.st_mode & stat.S_IROTH)
