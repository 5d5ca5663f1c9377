"""The type of callbacks that learn where a transfer comes from."""

from __future__ import annotations

from collections.abc import Callable

from lodefs.chunkstore.nodeapi.wire import Origin

OnTransferStarted = Callable[[Origin], None]  # called when nothing but a transfer is waited for
