"""A runtime that mounts FUSE itself and passes the descriptor on: ``apptainer --fusemount``.

``python fusemount.py DIR COMMAND -- PROGRAM...``: in user and mount namespaces of its own it opens
/dev/fuse and mounts it on DIR. The PROGRAM runs outside of that, with /dev/fd/N for its last word;
the shell COMMAND inside. Ends with COMMAND's exit code.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV = 2, 4


def container(place: str, command: str, channel: socket.socket) -> int:
    """The inside: mounts, gives the descriptor away, runs the command."""
    libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    with open("/proc/self/setgroups", "w") as file:
        file.write("deny")
    for name, own in (("uid_map", uid), ("gid_map", gid)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(f"{own} {own} 1")
    fd = os.open("/dev/fuse", os.O_RDWR)
    data = f"fd={fd},rootmode=40000,user_id={uid},group_id={gid}".encode()
    if libc.mount(b"fuse", place.encode(), b"fuse", MS_NOSUID | MS_NODEV, data):
        raise OSError(ctypes.get_errno(), "mount")
    socket.send_fds(channel, [b"fd"], [fd])
    os.close(fd)
    return subprocess.run(["sh", "-c", command], check=False).returncode


def main(place: str, command: str, _: str, *program: str) -> int:
    """The runtime."""
    inside, outside = socket.socketpair()
    child = os.fork()
    if child == 0:
        os._exit(container(place, command, inside))
    _data, (fd,), _flags, _address = socket.recv_fds(outside, 2, 1)
    os.set_inheritable(fd, True)
    serving = subprocess.Popen([*program, f"/dev/fd/{fd}"], pass_fds=[fd])
    os.close(fd)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("served:", serving.wait(60), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
