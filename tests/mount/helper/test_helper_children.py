"""Children of the helper are watched from their first step on."""

from __future__ import annotations

import os

import pytest

from lodefs.mount.helper.helper_process import _gate


def test_a_child_does_not_begin_before_its_parent_can_watch_it() -> None:
    """One that ends at once would be reaped, and its parent would look for a process that is no
    more."""
    reader, writer = os.pipe()
    done_reader, done_writer = os.pipe()
    with _gate() as await_watcher:
        pid = os.fork()
        if not pid:
            os.write(writer, b".")
            await_watcher()
            os.write(done_writer, b".")
            os._exit(0)
        os.read(reader, 1)
        os.set_blocking(done_reader, False)
        with pytest.raises(BlockingIOError):
            os.read(done_reader, 1)
    os.set_blocking(done_reader, True)
    assert os.read(done_reader, 1) == b"."
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in (reader, writer, done_reader, done_writer):
        os.close(fd)
