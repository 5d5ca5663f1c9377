"""Inode numbers: derived from an entry's place, so that every process knows them."""

from __future__ import annotations

from blake3 import blake3

ROOT_INO = 1  # FUSE_ROOT_ID of linux/fuse.h
_MASK = (1 << 63) - 1


def child_ino(parent_ino: int, name: bytes) -> int:
    """Returns 63 bits of BLAKE3 over the parent's number (8 bytes, little-endian) and the name;
    never 0 or 1. If two names of a snapshot collide, that is found when their tree is loaded."""
    hashed = blake3(parent_ino.to_bytes(8, "little") + name).digest(8)
    return int.from_bytes(hashed, "little") & _MASK | 2
