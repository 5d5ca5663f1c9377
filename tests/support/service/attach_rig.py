"""Mounts that are handed out, over a mount service in memory, with a clock of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.protocol.access import NO_RULES
from lodefs.mount.attach.attachments import GRACE_S, Attachments, Handed
from lodefs.mount.attach.server import AttachServer
from lodefs.mount.helper.interface import Source
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.service.service_rig import WAIT_S, ServiceRig


class AttachRig:
    """``handed`` stands for descriptors: a file with the place of the mount in it."""

    def __init__(self, folder: Path, memory: MemoryMounts, *, references_max: int = 256) -> None:
        self.folder = folder
        self.memory = memory
        self.references_max = references_max
        self.now_s = 1000.0
        self.is_ours = True
        self.rules = NO_RULES
        self.empty_timeout_s = WAIT_S
        self.service = ServiceRig(folder, memory)
        self.attachments = self._made()

    def attach(self, uid: int, path: bytes = b"", rev: str = "main") -> Handed:
        """Have a mount, and put it into a namespace of the user's."""
        got = self.attachments.attach(uid, Source(repo="vision/cats", path=path), rev, WAIT_S)
        self.show(got.place, uid)
        self.attachments.closed(got.user)
        return got

    def show(self, place: str, *uids: int) -> None:
        """Whose namespaces show a mount now."""
        self.memory.shown[place] = frozenset(uids)

    def later(self) -> None:
        """Time goes by, and everything is looked at."""
        self.now_s += 2 * GRACE_S
        self.attachments.sweep()

    def again(self) -> None:
        """The service is killed, and started again."""
        self.service = self.service.again()
        self.attachments = self._made()

    def holders(self) -> list[int | None]:
        """Users that hold a mount."""
        slots = self.service.mounts.slots()
        return sorted(usage.user.uid for slot in slots for usage in slot.mount.users)  # type: ignore[type-var]

    @contextmanager
    def served(self, path: Path) -> Iterator[AttachServer]:
        """Behind a socket."""
        server = AttachServer(
            rpc.listen(path, replace=False),
            self.attachments,
            lambda *_: self.is_ours,
            rules=lambda: self.rules,
            empty_timeout_s=self.empty_timeout_s,
            copied=_file_of,
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()

    def _made(self) -> Attachments:
        return Attachments(
            self.service.mounts, references_max=self.references_max, clock=lambda: self.now_s
        )


def _file_of(place: str) -> int:
    fd = os.memfd_create("handed")
    os.write(fd, place.encode())
    return fd
