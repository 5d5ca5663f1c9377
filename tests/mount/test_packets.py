"""What commit c5a46361 said over the sockets of the mount service, of attach and of the mount
helper: after an upgrade, services, drivers and jobs of it meet programs of today."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lodefs.mount.attach.wire import AttachAnswer, AttachCall
from lodefs.mount.mount_spec import Reply
from lodefs.mount.node.helper_process import HelperRequest
from lodefs.mount.service.wire import Answered, Call

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("service-calls", Call, 6),
        ("service-answers", Answered, 5),
        ("attach-calls", AttachCall, 1),
        ("attach-answers", AttachAnswer, 4),
        ("helper-requests", HelperRequest, 4),
        ("helper-replies", Reply, 3),
    ],
)
def test_golden_packets(name: str, kind: type[msgspec.Struct], count: int) -> None:
    """Each is understood as what it was, and said in the same bytes today."""
    packets = msgspec.msgpack.decode((GOLDEN / name).read_bytes(), type=list[bytes])
    assert len(packets) == count
    for packet in packets:
        message = msgspec.msgpack.decode(packet, type=kind)
        assert msgspec.msgpack.encode(message) == packet
    assert len({type(msgspec.msgpack.decode(one, type=kind)) for one in packets}) in (1, count)
