"""Messages of the device, by a kernel of ours."""

from __future__ import annotations

import errno

from lodefs.mount.kernel import device, fuse_abi
from lodefs.mount.kernel.fuse_abi import Opcode
from tests.support.mount.kernel import FakeKernel


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
