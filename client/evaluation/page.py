"""What reports have in common: one HTML file with its style, its script and its data inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import msgspec

from ...records import Episode, Turn, scrub
from .plan import label_of

TEXT_SHOWN = 8000  # characters of one observation or reply
BYTES_SHOWN = 24_000_000  # of all episodes of a page
OUTCOMES = {"won": "won", "lost": "lost", "truncated": "cut", "context overflow": "over", "failed": "bad"}
"""How episodes end -> colour class."""


def build_page(body: str, parts: Mapping[str, str], data: Mapping[str, Any] | None = None) -> bytes:
    """Return a page as UTF-8 HTML that needs no other file.

    Args:
        body: HTML with placeholders ``{{name}}``; ``{{episodes}}`` stands for the browser of episodes.
        parts: what is put in for the other placeholders, "title" among them; HTML.
        data: "policies" (names in their order) and "episodes" (see :func:`embedded`), for the browser of episodes.
    """
    scripts = ["page.js"] if data is None else ["page.js", "episodes.js"]
    filled = {
        **parts,
        "style": _asset("page.css"),
        "script": "\n".join(map(_asset, scripts)),
        "data": _script_safe(data or {}),
    }
    template = _asset("page.html").replace("{{body}}", body)
    template = template.replace("{{episodes}}", "" if data is None else _asset("episodes.html"))
    # One pass, so that text that looks like a placeholder is left alone inside what was put in.
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], template)
    return scrub(page).encode("utf-8")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def embedded(episodes: Iterable[Episode]) -> tuple[dict[str, dict[str, Any]], int]:
    """Return episodes by id as the browser of episodes takes them, and how many were left out for their size."""
    found: dict[str, dict[str, Any]] = {}
    used = dropped = 0
    for episode in episodes:
        data = _episode(episode)
        size = len(msgspec.json.encode(data))
        if used + size > BYTES_SHOWN:
            dropped += 1
            continue
        used += size
        found[episode.id] = data
    return found, dropped


def _episode(episode: Episode) -> dict[str, Any]:
    prompt = episode.turns[0].prompt if episode.turns else None
    return {
        "policy": episode.policy,
        "env": label_of(episode.group, episode.env),
        "task": episode.task,
        "type": episode.task_type,
        "attempt": episode.attempt,
        "seed": episode.seed,
        "outcome": outcome(episode.status, episode.won, "context_overflow" in episode.metrics),
        "score": round(episode.score, 4),
        "reward": round(episode.reward, 4),
        "seconds": round(episode.seconds, 3),
        "error": episode.error and {key: _cut(str(episode.error.get(key, ""))) for key in ("title", "detail", "hint")},
        "final": _cut(episode.final_observation),
        "prompt": [{"role": m["role"], "content": _cut(m["content"])} for m in prompt] if prompt else None,
        "turns": [_turn(turn) for turn in episode.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    """Return a turn without what is at its default, so that a file of many turns stays small."""
    text = turn.completion.text
    data: dict[str, Any] = {
        "o": _cut(turn.observation),
        "a": _cut(turn.action),
        "t": _cut(text) if text != turn.action else None,
        "r": round(turn.reward, 6),
        "rs": {name: round(value, 6) for name, value in turn.rewards.items()} if set(turn.rewards) != {"env"} else None,
        "revised": turn.revised,
        "invalid": not turn.action_valid,
        "malformed": turn.info.get("parse_error") or "malformed" if turn.format_valid is False else None,
        "void": turn.void,
        "tag": turn.tag,
        "tokens": turn.completion.completion_tokens,
        "forced": sum(turn.completion.forced or ()),
        "discarded": turn.completion.info.get("discarded"),
        "finish": turn.completion.finish_reason if turn.completion.finish_reason != "stop" else None,
    }
    return {name: value for name, value in data.items() if value not in (None, False, "", []) or name in ("o", "a")}


def outcome(status: str, won: bool, overflow: bool) -> str:
    """Return how an episode ended, as one of ``OUTCOMES``."""
    if status == "failed":
        return "failed"
    if won:
        return "won"
    if overflow:
        return "context overflow"
    return "truncated" if status == "truncated" else "lost"


def _script_safe(data: Any) -> str:
    """Return JSON that no text in it can end the script element with."""
    text = scrub(msgspec.json.encode(data).decode("utf-8"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}\n… {len(text) - TEXT_SHOWN:,} more characters"
