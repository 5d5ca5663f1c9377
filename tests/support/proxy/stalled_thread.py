"""A thread that has no processor, in place of one on a busy machine."""

from __future__ import annotations

from lodefs.proxy.runtime.processor_wait import ProcessorWait


class Stalled(ProcessorWait):
    """A thread that has waited for a processor for a second and a half."""

    def since_s(self) -> float:
        """Implements ProcessorWait."""
        return 1.5
