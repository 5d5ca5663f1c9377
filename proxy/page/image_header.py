"""Kind and size of an image, from its first bytes. Pure.

The browser decodes images. This module decides which ones it gets: four kinds of pixel images
(never SVG, which is a document with scripts), and none larger than a browser can decode safely,
whatever a small file claims to unpack to.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput

SIZE_BYTES_MAX = 16 * 1024 * 1024
PIXELS_MAX = 50_000_000
SIDE_PIXELS_MAX = 20_000
_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF markers, T.81 table B.1


class ImageHeader(NamedTuple):
    """The media type and the size in pixels."""

    media: str
    width: int
    height: int


def read_header(head: bytes) -> ImageHeader | None:
    """Returns the header of an image; None if it begins like none of the four kinds. Raises:
    InvalidInput if it begins like one and continues differently."""
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return ImageHeader("image/png", *_png(head))
        if head.startswith((b"GIF87a", b"GIF89a")):
            return ImageHeader("image/gif", *struct.unpack_from("<HH", head, 6))
        if head.startswith(b"\xff\xd8\xff"):
            return ImageHeader("image/jpeg", *_jpeg(head))
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return ImageHeader("image/webp", *_webp(head))
    except (struct.error, IndexError) as error:
        raise InvalidInput("this image is truncated, or its size comes too late") from error
    return None


def check_image(header: ImageHeader, size_bytes: int) -> None:
    """Raises: InvalidInput for an image that is too large to show."""
    media, width, height = header
    if size_bytes > SIZE_BYTES_MAX:
        raise InvalidInput(f"the image has more than {SIZE_BYTES_MAX >> 20} MiB: download it")
    if not (width and height):
        raise InvalidInput("the image has no pixels")
    if width * height > PIXELS_MAX or max(width, height) > SIDE_PIXELS_MAX:
        raise InvalidInput(
            f"the image claims {width} x {height} pixels, too many for a preview ({media})"
        )


def _png(head: bytes) -> tuple[int, int]:
    if head[12:16] != b"IHDR":
        raise InvalidInput("this is not a valid PNG image: it does not begin with IHDR")
    width, height = struct.unpack_from(">II", head, 16)
    return width, height


def _jpeg(head: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if head[at] != 0xFF:
            raise InvalidInput("this is not a valid JPEG image: a marker is missing")
        marker = head[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        if marker in (0xD9, 0xDA):
            raise InvalidInput("this is not a valid JPEG image: its size is missing")
        at += 2 + max(2, struct.unpack_from(">H", head, at + 2)[0])


def _webp(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        width = int.from_bytes(head[24:27], "little") + 1
        return width, int.from_bytes(head[27:30], "little") + 1
    raise InvalidInput("this is not a valid WebP image")
