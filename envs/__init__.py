"""Environments: importing this package registers their gymnasium ids (``turngym/Sokoban-v0`` and so on)."""

from __future__ import annotations

from .registry import register_gymnasium

register_gymnasium()
