"""Lengths of time as people write them: ``90s``, ``30m``, ``12h``, ``7d``, ``2w``."""

from __future__ import annotations

import re

from lodefs.chunkstore.errors import InvalidInput

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])")


def parse_duration(text: str) -> int:
    """Whole seconds, 1 at least; ``1d12h`` is a day and a half. Raises: InvalidInput."""
    parts = _PART.findall(text)
    seconds = round(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    if "".join(number + unit for number, unit in parts) != text or seconds < 1:
        raise InvalidInput(f"{text!r} is not a length of time: write 90s, 30m, 12h, 7d or 2w")
    return seconds
