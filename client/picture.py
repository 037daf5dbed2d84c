"""Reading the pictures that a hub sends."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from ..errors import ServerUnavailable

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 2**26


def read_png(data: bytes) -> NDArray[np.uint8]:
    """Decode a PNG as hubs write it: 8 bits a channel, RGB, rows unfiltered (ISO/IEC 15948).

    Returns:
        The image (height, width, 3).

    Raises:
        ServerUnavailable: it is no such PNG.
    """
    try:
        width, height, rows = _rows(data)
        pixels = np.frombuffer(rows, np.uint8).reshape(height, 1 + 3 * width)
        if pixels[:, 0].any():
            raise ValueError("the rows are filtered")
        return pixels[:, 1:].reshape(height, width, 3).copy()
    except (ValueError, struct.error, zlib.error) as error:
        raise ServerUnavailable(
            f"The hub's picture was not understood ({error}).", hint="Let hub and client be of the same version."
        ) from error


def _rows(data: bytes) -> tuple[int, int, bytes]:
    if data[:8] != SIGNATURE:
        raise ValueError("no PNG")
    width, height, depth, colour, _, _, interlace = struct.unpack_from(">IIBBBBB", data, 16)
    if (depth, colour, interlace) != (8, 2, 0) or width * height > MAX_PIXELS:
        raise ValueError("no plain RGB picture")
    position, packed = 8, b""
    while position < len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        if kind == b"IDAT":
            packed += data[position + 8 : position + 8 + length]
        position += 12 + length
    unpacker = zlib.decompressobj()
    return width, height, unpacker.decompress(packed, height * (1 + 3 * width))
