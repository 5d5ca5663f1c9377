"""A disk that is really slow: ext4 on a loop device, whose sectors come from nbdkit at a rate.

Debian's nbdkit (its filter ``rate``) and libnbd-bin (nbdfuse shows the disk as a file): neither the
kernel's nbd nor its device mapper is needed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.chunkstore.child_process import Child, ChildError, run

SIZE_BYTES = 4 << 30
UNMOUNT_TIMEOUT_S = 300  # what is dirty is written first, slowly


@contextmanager
def slow_disk(folder: Path, bytes_per_s: int) -> Iterator[Path]:
    """An empty file system in ``folder``, whose disk reads and writes ``bytes_per_s`` together. As
    root."""
    folder.mkdir()
    image, shown, target = folder / "image", folder / "nbd", folder / "disk"
    for made in (shown, target):
        made.mkdir()
    image.touch()
    os.truncate(image, SIZE_BYTES)
    socket = folder / "nbd.sock"
    with ExitStack() as stack:
        rate = f"rate={8 * bytes_per_s}"
        server = ["nbdkit", "-f", "-U", str(socket), "--filter=rate", "file", str(image), rate]
        child = stack.enter_context(Child(server))
        _wait(child, socket)
        file = shown / "disk"
        viewer = stack.enter_context(Child(["nbdfuse", str(file), "--unix", str(socket)]))
        stack.callback(_quietly, "fusermount3", "-u", "-z", str(shown))
        _wait(viewer, file)
        device = run(["losetup", "--find", "--show", str(file)]).strip()
        stack.callback(_quietly, "losetup", "--detach", device)
        # nothing is written later behind the benchmark's back
        later = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
        run(["mkfs.ext4", "-q", "-m", "0", "-N", "20000", "-J", "size=16", "-E", later, device],
            timeout_s=UNMOUNT_TIMEOUT_S)  # fmt: skip
        run(["mount", device, str(target)])
        stack.callback(_quietly, "umount", str(target))
        yield target


def _wait(child: Child, path: Path) -> None:
    """Until the child shows what it is for. Raises: ChildError."""
    for _ in range(3000):
        if path.exists():
            return
        if child.process.poll() is not None:
            break
        child.pause()
    raise child.failed(f"never showed {path}")


def _quietly(*words: str) -> None:
    with suppress(OSError, subprocess.TimeoutExpired, ChildError):
        subprocess.run(words, check=False, capture_output=True, timeout=UNMOUNT_TIMEOUT_S)
