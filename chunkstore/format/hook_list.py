"""Lists of hooks: those of many index shards in one object. docs/format.md has the table.

A machine that is new to a large store reads them instead of the beginning of each shard. They only
repeat what the shards have, and a hook is a hint, so nothing relies on them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, UnknownFormat
from lodefs.chunkstore.format.index_shard import PackHooks, decode_hooks, hooks_size_bytes
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.types import Buffer

MAGIC = b"LODEHOOK"
VERSION = 1
SIZE_BYTES_MAX = 64 << 20  # some 700 pushes of 8 GiB each
PUSH_ID_CHARS_MAX = 255  # its length is a byte
HEAD = struct.Struct("<8sHHI")  # magic, version, flags, shards
_CLOSING_BITS = 63  # about one of 64 shards closes a list


def closes_list(push_id: str) -> bool:
    """Whether the push with this id puts a list of the hooks of all shards up to its own: about one
    of 64 does, so nobody has to agree on who does."""
    return not blake3(push_id.encode()).digest()[0] & _CLOSING_BITS


def encode_hook_list(shards: Iterable[tuple[str, bytes]]) -> bytes:
    """Returns the list of shards, each by the id of its push and its encoded hooks
    (``encode_hooks``). Ids have up to PUSH_ID_CHARS_MAX characters."""
    parts = [b""]
    for push_id, hooks in shards:
        name = push_id.encode()
        parts += (bytes((len(name),)), name, hooks)
    parts[0] = HEAD.pack(MAGIC, VERSION, 0, len(parts) // 3)
    body = b"".join(parts)
    return body + blake3(body).digest()


def decode_hook_list(data: Buffer, what: str) -> list[tuple[str, list[PackHooks]]]:
    """Returns the ids of pushes with the hooks of their shards. Raises: Corrupt, UnknownFormat."""
    if len(data) < HEAD.size + ID_BYTES or bytes(data[: len(MAGIC)]) != MAGIC:
        raise Corrupt(f"{what} is no list of hooks")
    body = memoryview(data)[:-ID_BYTES]
    if blake3(body).digest() != data[-ID_BYTES:]:
        raise Corrupt(f"{what} does not match its checksum")
    _, version, flags, shards = HEAD.unpack_from(body)
    if version != VERSION or flags:
        raise UnknownFormat(
            f"{what} is of format {version} with flags {flags:#x}, which this lodefs does not "
            "know: a newer lodefs is needed"
        )
    found: list[tuple[str, list[PackHooks]]] = []
    offset = HEAD.size
    for _ in range(shards):
        begin = offset + 1 + (body[offset] if offset < len(body) else 0)
        size_bytes = hooks_size_bytes(body[begin:])
        if size_bytes is None or begin + size_bytes > len(body):
            raise Corrupt(f"{what} is truncated")
        push_id = bytes(body[offset + 1 : begin]).decode("ascii", "replace")
        offset = begin + size_bytes
        found.append((push_id, decode_hooks(body[begin:offset], what)))
    if offset != len(body):
        raise Corrupt(f"{what}: {len(body) - offset} bytes follow its last shard")
    return found
