"""A store whose packs are held back."""

from __future__ import annotations

import threading

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import Part
from tests.support.proxy.rig import Rig


class Gate:
    """Holds reads of packs' chunks back until it is opened."""

    def __init__(self, rig: Rig) -> None:
        self._open = threading.Event()
        self.held = 0
        rig.objects.answer = self._pass

    def _pass(self, key: str, part: Part) -> Part:
        if key.startswith(keys.PACKS):
            self.held += 1
            assert self._open.wait(60)
        return part

    def open(self) -> None:
        """Lets all go on."""
        self._open.set()
