"""Writes safetensors files, right ones and others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def file_of(header: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
    """A file with that header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def of_tensors(tensors: Mapping[str, bytes]) -> bytes:
    """A file with one-dimensional tensors of bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, data in tensors.items():
        end = at + len(data)
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, end]}
        at = end
    return file_of(header, b"".join(tensors.values()))
