"""Thoughts for experts' replies, so that a policy that imitates them has something to think.

An expert acts and does not think. The writer states what the expert is about to do, the way a player might: the moves
ahead, and then, in a part of the replies, a pause of dots in which nothing is decided any more. The pause goes on with
the same chance after every dot, so that its length varies, its end cannot be foreseen, and the uncertainty of a policy
that imitates it stands still: a control that stops idle thinking has something to stop.
"""

from __future__ import annotations

import random
import re

_REPLY = re.compile(r"<think>.*?</think>(\s*)<(action|answer)>(.*?)</\2>", re.DOTALL)
SEPARATOR = "||"


def plan_thought(
    reply: str,
    observation: str,
    draw: random.Random,
    *,
    ahead: int = 4,
    idle: float = 0.5,
    again: float = 0.85,
) -> str:
    """Return an expert's reply with a thought; the actions stay.

    Args:
        reply: a well-formed reply of the think-action or think-answer kind; others are returned as they are.
        observation: what the expert saw.
        draw: randomness of the length.
        ahead: moves that are stated.
        idle: share of replies with a pause.
        again: chance of one more dot after each.
    """
    found = _REPLY.fullmatch(reply.strip())
    if found is None:
        return reply
    moves = [move.strip() for move in found[3].split(SEPARATOR)]
    thought = " ".join(moves[:ahead])
    if draw.random() < idle:
        thought += " ."
        while draw.random() < again:
            thought += " ."
    return f"<think>{thought}</think>{found[1]}<{found[2]}>{found[3]}</{found[2]}>"


def rule_thought(reply: str, observation: str, draw: random.Random) -> str:
    """Return an expert's reply with a thought by rules, tagged where the style has tags; the actions stay."""
    if _META.fullmatch(reply.strip()):
        return tag_thought(reply, observation, draw)
    return plan_thought(reply, observation, draw, idle=0.0)


def tag_thought(reply: str, observation: str, draw: random.Random) -> str:
    """Return an expert's reply with one of RLVMR's four tags, chosen by rules; for offline use without a teacher.

    The first turn of an episode cannot be told from a reply alone, so that the rule looks at the observation: one that
    states the task is planned for, one that says that nothing happened is reflected on, one that lists things newly
    seen is explored, and everything else is monitored.
    """
    found = _META.fullmatch(reply.strip())
    if found is None:
        return reply
    action, seen = found[2].strip(), observation.lower()
    if "your task" in seen or "task description" in seen:
        tag, thought = "planning", f"1. {action}. 2. See what that shows. 3. Finish the task."
    elif "nothing happens" in seen or "no known action" in seen or "not" in seen.split(".")[0].split():
        tag, thought = "reflection", f"That did not help, so I try something else: {action}."
    elif "you see" in seen or draw.random() < 0.1:
        tag, thought = "explore", f"There may be something useful; {action}."
    else:
        tag, thought = "monitor", f"As planned; next: {action}."
    return f"<{tag}>{thought}</{tag}>{found[1]}<action>{found[2]}</action>"


_META = re.compile(r"<(?:planning|explore|reflection|monitor)>.*?</\w+>(\s*)<action>(.*?)</action>", re.DOTALL)
