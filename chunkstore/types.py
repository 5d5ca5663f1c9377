"""Types that every module of the library may use."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
