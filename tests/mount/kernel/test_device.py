"""Messages of the device, by a kernel of ours."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Thread

from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.kernel.fuse_abi import Opcode
from tests.support.mount.kernel import FakeKernel
from tests.support.mount.mounts import until


def test_requests_that_nobody_answers_are_failed() -> None:
    """One after the other, with EIO, as long as there are any; what wants no answer gets none."""
    kernel = FakeKernel()
    assert not device.fail_request(kernel.device)
    first = kernel.send(Opcode.READ, 5)
    kernel.send(Opcode.FORGET, 5)
    kernel.send(Opcode.INTERRUPT, 5, fuse_abi.INTERRUPT_IN.pack(first))
    last = kernel.send(Opcode.GETATTR, 6)
    for _ in range(4):
        assert device.fail_request(kernel.device)
    assert not device.fail_request(kernel.device)
    assert kernel.receive() == (first, errno.EIO, b"")
    assert kernel.receive() == (last, errno.EIO, b"")
    kernel.close()
    assert not device.fail_request(kernel.device)


def test_what_is_stored_is_one_message() -> None:
    """The node, where the bytes begin, how many they are, and the bytes; an ended connection takes
    none."""
    kernel = FakeKernel()
    assert device.store(kernel.device, 1 << 63 | 5, 4096, b"bytes")
    unique, code, body = kernel.receive()
    assert (unique, code) == (0, fuse_abi.NOTIFY_STORE)
    assert fuse_abi.STORE_OUT.unpack_from(body) == (1 << 63 | 5, 4096, 5, 0)
    assert body[fuse_abi.STORE_OUT.size :] == b"bytes"
    kernel.close()
    assert not device.store(kernel.device, 5, 0, b"bytes")


def test_the_first_of_idle_readers_gets_each_request() -> None:
    """One process answers a reader that asks again and again, also if another one waits longer."""
    kernel = FakeKernel()
    first, second = device.Requests(kernel.device), device.Requests(kernel.device)
    got: list[device.Requests] = []
    _wait(second, got)
    for _ in range(3):
        reader = _wait(first, got)
        kernel.send(Opcode.READ, 5)
        reader.join()
    assert got == [first] * 3
    kernel.send(Opcode.READ, 5)  # while the first is busy
    until(lambda: len(got) == 4)
    assert got[3] is second
    kernel.close()


def _wait(requests: device.Requests, got: list[device.Requests]) -> Thread:
    """A thread that waits for a request, and then records whose it was."""

    def read() -> None:
        if requests.read(bytearray(fuse_abi.REQUEST_BYTES_MIN)):
            got.append(requests)

    thread = Thread(target=read, daemon=True)
    thread.start()
    call = Path(f"/proc/self/task/{thread.native_id}/syscall")
    until(lambda: call.read_text().split()[1:2] == [hex(requests.fileno())])
    return thread
