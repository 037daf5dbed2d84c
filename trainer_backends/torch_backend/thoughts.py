"""Thoughts for experts' replies, so that a policy that imitates them has something to think.

An expert acts and does not think. The writer states what the expert is about to do, the way a player might: the moves
ahead, and then, for a part of the replies, one to several repetitions of the conclusion. So thoughts have varied and
partly redundant length, and a control that stops idle thinking has something to stop.
"""

from __future__ import annotations

import random
import re

_REPLY = re.compile(r"<think>.*?</think>(\s*)<(action|answer)>(.*?)</\2>", re.DOTALL)
SEPARATOR = "||"


def plan_thought(reply: str, observation: str, draw: random.Random, *, ahead: int = 4, most: int = 6) -> str:
    """Return an expert's reply with a thought and with its first action only.

    Args:
        reply: a well-formed reply of the think-action or think-answer kind; others are returned as they are.
        observation: what the expert saw.
        draw: randomness of the length.
        ahead: moves that are stated.
        most: greatest number of repetitions.
    """
    found = _REPLY.fullmatch(reply.strip())
    if found is None:
        return reply
    moves = [move.strip() for move in found[3].split(SEPARATOR)]
    thought = " ".join(moves[:ahead])
    repeats = draw.randint(0, most) if draw.random() < 0.5 else 0
    thought += f" . {moves[0]}" * repeats
    return f"<think>{thought}</think>{found[1]}<{found[2]}>{moves[0]}</{found[2]}>"
