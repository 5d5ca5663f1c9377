"""Keys in S3's order, from a tree that is in another one."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.proxy.s3.key_walk import KeyWalk
from tests.support.proxy.fake_node import DictNode, Symlink

PARTS = st.text(alphabet="ab-./0", min_size=1, max_size=6)


def tree_of(paths: list[str]) -> dict[bytes, bytes]:
    """Those of the paths that can be together in one tree."""
    found: dict[bytes, bytes] = {}
    for path in paths:
        parts = path.split("/")
        above = {"/".join(parts[:n]).encode() for n in range(1, len(parts))}
        raw = path.encode()
        if any(part in ("", ".", "..") for part in parts) or above & found.keys():
            continue
        if not any(one.startswith(raw + b"/") for one in found):
            found[raw] = raw
    return found


def keys_of(
    files: dict[bytes, bytes], prefix: bytes = b"", start: bytes = b"", *, wanted: int = 3
) -> list[bytes]:
    """All keys of a walk."""

    async def run() -> list[bytes]:
        node = DictNode(files)
        snapshot = await node.snapshot("demo", "main")
        walk = KeyWalk(node, snapshot, prefix=prefix, start=start)
        keys = []
        while True:
            found = await walk.next(wanted)
            if found is not None:
                keys.append(found.key)
            elif walk.is_over:
                return keys

    return asyncio.run(run())


@settings(max_examples=200, deadline=None)
@given(st.lists(PARTS, max_size=12), PARTS | st.just(""), PARTS | st.just(""))
def test_order(paths: list[str], prefix: str, start: str) -> None:
    """The keys are those with the prefix, not less than the start, sorted by their bytes."""
    files = tree_of(paths)
    first, begin = prefix.encode(), start.encode()
    wanted = sorted(key for key in files if key.startswith(first) and key >= begin)
    assert keys_of(files, first, begin) == wanted


@settings(max_examples=100, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=12))
def test_going_on(paths: list[str]) -> None:
    """A walk that begins after any key goes on with the next one."""
    files = tree_of(paths)
    ordered = sorted(files)
    for n, key in enumerate(ordered):
        assert keys_of(files, b"", key + b"\0") == ordered[n + 1 :]


def test_symlinks() -> None:
    """Symlinks that lead to a file are keys; those that lead elsewhere are left out and counted."""
    files = {
        b"d/real": b"x",
        b"d/up": Symlink(b"../d/./real"),
        b"a-loop": Symlink(b"a-loop"),
        b"a-out": Symlink(b"../etc/passwd"),
        b"a-abs": Symlink(b"/etc/passwd"),
        b"dir": Symlink(b"d"),
        b"two": Symlink(b"d/up"),
    }
    assert keys_of(files) == [b"d/real", b"d/up", b"two"]  # type: ignore[arg-type]


def test_names_that_are_no_text() -> None:
    """Names that are not UTF-8 are left out, with all that lies below them."""
    files = {b"\xff": b"", b"a/\xfe/x": b"", b"a/y": b"", b"\xe9/z": b""}
    assert keys_of(files) == [b"a/y"]
