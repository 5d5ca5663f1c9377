"""Opens files below a directory by paths of any length, without following a symlink at the end."""

from __future__ import annotations

import os

PATH_BYTES_MAX = 4095  # PATH_MAX of Linux, without its NUL
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_below(root_fd: int, path: bytes, flags: int) -> int:
    """A descriptor of ``path`` below ``root_fd``. A path that is longer than the kernel takes is
    opened in steps. Raises: OSError."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    base_fd = root_fd
    try:
        while len(path) > PATH_BYTES_MAX:
            cut = path.rindex(b"/", 0, PATH_BYTES_MAX + 1)
            step_fd = os.open(path[:cut], _STEP, dir_fd=base_fd)
            if base_fd != root_fd:
                os.close(base_fd)
            base_fd, path = step_fd, path[cut + 1 :]
        return os.open(path, flags, dir_fd=base_fd)
    finally:
        if base_fd != root_fd:
            os.close(base_fd)
