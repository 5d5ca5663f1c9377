"""Checks the kernel and FUSE: the device, a trial mount, fusermount3 for ordinary users."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from lodefs.chunkstore.errors import Denied, LodefsError
from lodefs.doctor.check import Finding, fault, ok, unchecked, warning
from lodefs.doctor.subject import Subject
from lodefs.mount.kernel import device, features, mount_syscalls
from lodefs.mount.kernel.session import Session as FuseSession

DEVICE, KERNEL, HELPER, OTHERS = "fuse device", "kernel", "fusermount3", "user_allow_other"
FUSE_CONF = Path("/etc/fuse.conf")
_READ_WRITE = stat.S_IROTH | stat.S_IWOTH
_LACKS = {
    "passthrough": "lodefs reads large files, not the kernel alone (needs Linux 6.9)",
    "resend": "reads fail if their worker dies, and no take-over (needs Linux 6.9)",
    "stores": "no prefetch into the page cache (needs Linux 6.12)",
}


def fuse_device(subject: Subject) -> list[Finding]:
    """Checks that /dev/fuse exists, is the right device, and can be opened by this user."""
    try:
        found = os.stat(device.PATH)
    except FileNotFoundError:
        mend = "modprobe fuse; in a container: --device /dev/fuse"
        return [fault(DEVICE, f"{device.PATH} does not exist", mend)]
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != device.NUMBER:
        saw = f"{device.PATH} is not the FUSE device (10:229)"
        return [fault(DEVICE, saw, f"rm {device.PATH}; mknod -m 666 {device.PATH} c 10 229")]
    mode = stat.S_IMODE(found.st_mode)
    mend = f"chmod 0666 {device.PATH} (udev does this; a container may need it, too)"
    try:
        os.close(device.open_device())
    except Denied:
        return [fault(DEVICE, f"{device.PATH} has mode {mode:04o}: this user cannot open it", mend)]
    except LodefsError as error:
        return [fault(DEVICE, str(error), "modprobe fuse; in a container: --device /dev/fuse")]
    if subject.is_root and mode & _READ_WRITE != _READ_WRITE:
        return [warning(DEVICE, f"mode {mode:04o}: ordinary users cannot mount", mend)]
    return [ok(DEVICE, f"{device.PATH}, mode {mode:04o}")]


def kernel(subject: Subject) -> list[Finding]:
    """Checks what the kernel offers to a mount, by a trial mount. Its version says little, since
    distributions add features of newer kernels to older ones."""
    release = os.uname().release
    without = features.parse(subject.environment.get(features.VARIABLE, ""))
    try:
        session = _trial(without)
    except Denied as error:
        mend = (
            "as an ordinary user install fuse3, or use unshare -Ur --mount; in a container "
            "--cap-add SYS_ADMIN, or use lodefs' Docker volumes"
        )
        return [fault(KERNEL, f"Linux {release}: mounting fails ({error})", mend)]
    except LodefsError as error:
        mend = "modprobe fuse; use Linux 5.4 or newer; ordinary users need fusermount3"
        return [fault(KERNEL, f"Linux {release}: mounting fails ({error})", mend)]
    lacking = [text for name, text in _LACKS.items() if not getattr(session, name)]
    if not lacking:
        return [ok(KERNEL, f"Linux {release} mounts, with passthrough and resend")]
    mend = "use a newer kernel (docs/semantics.md, On older kernels); reads are correct anyway"
    if without:
        mend = f"{features.VARIABLE} disables {', '.join(sorted(without))}: unset it"
    return [warning(KERNEL, f"Linux {release} mounts, but {'; '.join(lacking)}", mend)]


def _trial(without: frozenset[features.Feature]) -> FuseSession:
    """Returns the features of a trial mount, which ends at once. Raises: Denied, Unsupported,
    ..."""
    place = os.path.realpath(tempfile.mkdtemp(prefix="lodefs-doctor-"))
    try:
        fd = mount_syscalls.attach(place, b"doctor@trial", allow_other=False)
        try:
            return device.handshake(fd, passthrough=True, without=without)
        finally:
            with contextlib.suppress(LodefsError, OSError):
                mount_syscalls.detach(place, lazy=True)
            os.close(fd)
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(place)


def fusermount(subject: Subject) -> list[Finding]:
    """Checks what ordinary users mount with, and whether others may see their mounts."""
    helper = shutil.which("fusermount3", path=subject.environment.get("PATH"))
    if helper is None:
        mend = "apt-get install fuse3 (or: unshare -Ur --mount)"
        saw = "not installed: ordinary users cannot mount"
        found = warning if subject.is_root else fault
        return [found(HELPER, saw, mend), unchecked(OTHERS, "fusermount3 is not installed")]
    mode = os.stat(helper).st_mode
    if not mode & stat.S_ISUID:
        mend = f"chmod u+s {helper}; or reinstall fuse3"
        return [
            fault(HELPER, f"{helper} is not setuid: it cannot mount", mend),
            _others(subject),
        ]
    return [ok(HELPER, helper), _others(subject)]


def _others(subject: Subject) -> Finding:
    try:
        lines = FUSE_CONF.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    if any(line.split("#")[0].strip() == "user_allow_other" for line in lines):
        return ok(OTHERS, f"{FUSE_CONF} sets it")
    saw = f"not in {FUSE_CONF}: only the user sees a mount of an ordinary user, not even root"
    if subject.is_root:
        return ok(OTHERS, saw)
    return warning(OTHERS, saw, f"as root: echo user_allow_other >> {FUSE_CONF}")
