"""Pictures of grid worlds as plain arrays, without a graphics library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CELL = 32  # pixels
_GROUND = {
    "wall": (92, 84, 78),
    "floor": (240, 234, 222),
    "target": (240, 234, 222),
    "ice": (214, 234, 248),
    "hole": (28, 46, 74),
    "goal": (214, 234, 248),
}
_MARKS = {
    "target": ("disc", 0.20, (214, 69, 65)),
    "goal": ("disc", 0.36, (46, 160, 67)),
    "box": ("square", 0.36, (193, 132, 58)),
    "placed": ("square", 0.36, (46, 160, 67)),
    "player": ("disc", 0.30, (38, 102, 207)),
}


def grid_picture(cells: Sequence[Sequence[str]]) -> NDArray[np.uint8]:
    """Draw a grid.

    Args:
        cells: rows of cell names: a ground ("wall", "floor", "target", "ice", "hole", "goal"), then marks joined by
            "+" ("box", "placed", "player"), for example "floor+player".

    Returns:
        Image of shape (rows * 32, columns * 32, 3).
    """
    image = np.empty((len(cells) * CELL, len(cells[0]) * CELL, 3), dtype=np.uint8)
    for row, names in enumerate(cells):
        for column, name in enumerate(names):
            image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = _tile(name)
    return image


def _tile(name: str) -> NDArray[np.uint8]:
    ground, *marks = name.split("+")
    tile = np.empty((CELL, CELL, 3), dtype=np.uint8)
    tile[:] = _GROUND[ground]
    tile[0, :] = tile[:, 0] = np.asarray(_GROUND[ground]) * 9 // 10
    offset = (np.arange(CELL) - (CELL - 1) / 2) / CELL
    for mark in [ground, *marks]:
        if mark in _MARKS:
            shape, radius, colour = _MARKS[mark]
            x, y = np.abs(offset)[None, :], np.abs(offset)[:, None]
            inside = np.hypot(x, y) < radius if shape == "disc" else np.maximum(x, y) < radius
            tile[inside] = colour
    return tile


def png_bytes(image: NDArray[np.uint8]) -> bytes:
    """Encode an image of shape (height, width, 3) as PNG."""
    height, width, _ = image.shape
    raw = np.hstack([np.zeros((height, 1), np.uint8), image.reshape(height, width * 3)]).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
