"""What commit c5a46361 said over the sockets of the mount service, of attach and of the mount
helper: after an upgrade, services, drivers and jobs of it meet programs of today."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lodefs.mount.attach.wire import AttachAnswer, AttachCall
from lodefs.mount.helper.helper_process import HelperRequest
from lodefs.mount.mount_spec import Reply
from lodefs.mount.service.wire import Answered, Call

GOLDEN = Path(__file__).parents[1] / "golden"


def has_all(now: object, then: object) -> bool:
    """Whether a decoded message has all fields of another, with the same values."""
    if isinstance(now, dict) and isinstance(then, dict):
        return all(key in now and has_all(now[key], value) for key, value in then.items())
    if isinstance(now, list) and isinstance(then, list):
        return len(now) == len(then) and all(map(has_all, now, then))
    return now == then


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
    """Each is understood as what it was, and what is said today has all of it: the other side
    passes over what has come since."""
    packets = msgspec.msgpack.decode((GOLDEN / name).read_bytes(), type=list[bytes])
    assert len(packets) == count
    for packet in packets:
        message = msgspec.msgpack.decode(packet, type=kind)
        said = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
        assert has_all(said, msgspec.msgpack.decode(packet))
    assert len({type(msgspec.msgpack.decode(one, type=kind)) for one in packets}) in (1, count)
