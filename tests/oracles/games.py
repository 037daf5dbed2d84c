"""Check tags, reward hooks and games against reference vectors and episodes.

Run: ``make oracle-test ORACLES=games`` with the folder of vectors in TURNGYM_ORACLES. Files that the folder lacks are
named and skipped; the last line is ``N files, M cases, F failed``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from runner import Case, run

from turngym import make
from turngym.envs.turn.grammar import GRAMMARS
from turngym.envs.turn.hooks import MetaReasoning, length_rewards
from turngym.records import Completion, Turn

GRAMMAR_OF = (
    # Case ids name the environment and the paper; the first row whose words all occur decides.
    (("search",), "search-answer"),
    (("sokoban",), "think-move"),
    (("sci", "rlvmr"), "meta-tags-loose"),
    (("rlvmr",), "meta-tags"),
    (("t2po",), "think-action"),
)
ALIASES = {"action_available": "admissible", "available": "admissible", "planning": "plan"}
MOVES = {"still": 0, "": 0, "up": 1, "down": 2, "left": 3, "right": 4}


def projections(data: dict[str, Any]) -> Iterator[Case]:
    """Check the released variant against the vectors in full, the default but for the executed tail of a reply."""
    for case in data["cases"]:
        grammar = GRAMMARS[next(name for words, name in GRAMMAR_OF if all(word in case["id"] for word in words))]
        texts, pool = case["inputs"]["texts"], case["inputs"].get("admissible")
        for text, want in zip(texts, case["outputs"]["results"], strict=True):
            want = {ALIASES.get(key, key): value for key, value in want.items()}
            for variant in ("released", "default"):
                reply = grammar.parse(text, variant)  # type: ignore[arg-type]
                got = {"format_valid": reply.format_valid, "plan": reply.plan or None, "valid": reply.format_valid}
                got["action"] = MOVES[reply.action] if grammar.choices else reply.action
                got["admissible"] = pool is not None and not reply.void and reply.action in pool
                if case["id"] == "alfworld_t2po" and pool is not None:
                    got["valid"] = reply.format_valid and reply.action in [command.lower() for command in pool]
                if grammar.choices:
                    got["valid"] = reply.format_valid and reply.action != ""
                if variant == "default" and reply.void and grammar.fallback:
                    want = {**want, "action": "", "admissible": False}
                wrong = {key: got[key] for key in want if got[key] != want[key]}
                yield f"{case['id']} {variant} {text!r:.50}", not wrong, f"got {wrong}, want {want}"


def meta_rewards(data: dict[str, Any]) -> Iterator[Case]:
    """Replay each episode's steps through the hook, as the turn level does."""
    for case in data["cases"]:
        r = case["params"]
        constants = {"plan": r["r_plan"], "explore": r["r_explore"], "reflect": r["r_reflect"]}
        hooks = {
            "released_code_reward": MetaReasoning(**constants, variant="released"),
            "algorithm3_reward_gamma1": MetaReasoning(**constants),
            "algorithm3_reward_gamma0_9": MetaReasoning(**constants, gamma=0.9),
        }
        for name, hook in hooks.items():
            turns: list[Turn] = []
            got: list[float] = []
            for index, step in enumerate(case["inputs"]["steps"]):
                turn = Turn(index, step["state"], Completion(""), action=step["action"], tag=step["tag"])
                turn.anchor, turn.next_anchor = step["state"], step["next_state"]
                turn.format_valid, turn.action_valid = step["format_valid"], step["admissible"]
                turns.append(turn)
                got.append(hook.turn(turns) or 0.0)
            for index, value in hook.end(turns, case["inputs"]["success"]).items():
                got[index] = value
            yield _close(f"{case['id']} {name}", got, case["outputs"][name], data["tolerance"])


def lengths(data: dict[str, Any]) -> Iterator[Case]:
    """Check eq. 15."""
    for case in data["cases"]:
        got = length_rewards(case["inputs"]["lengths"], case["inputs"]["correct"])
        yield _close(case["id"], got, case["outputs"]["length_reward"], data["tolerance"])


def _close(name: str, got: list[float], want: list[float], tolerance: dict[str, float]) -> Case:
    same = len(got) == len(want) and bool(np.allclose(got, want, **tolerance))
    return name, same, f"got {got}, want {want}"


def games(episodes: list[dict[str, Any]]) -> Iterator[Case]:
    """Replay recorded episodes from their recorded first states."""
    replay: dict[str, Callable[[dict[str, Any]], str]] = {"sokoban": sokoban, "frozen_lake": lake, "bandit": bandit}
    for number, episode in enumerate(episodes, start=1):
        wrong = replay[episode["env"]](episode)
        yield f"line {number}: {episode['env']} seed {episode['seed']}", not wrong, wrong


def sokoban(episode: dict[str, Any]) -> str:
    """Observations, rewards, ends and the shortest solution must agree."""
    # RAGEN counts its actions 1 to 4 in this order.
    names = ["Up", "Down", "Left", "Right"]
    env = make("sokoban", room=episode["reset_obs"], max_steps=episode["config"]["max_steps"])
    observation, _ = env.reset(seed=0)
    if observation != episode["reset_obs"]:
        return f"first observation {observation!r}"
    if (shortest := len(list(make_plan(env)))) != episode["shortest"]:
        return f"shortest solution {shortest}, recorded {episode['shortest']}"
    for number, step in enumerate(episode["steps"]):
        observation, reward, terminated, truncated, info = env.step(names[step["action"] - 1])
        got = (observation, round(reward, 9), terminated or truncated, info["action_effective"], info["won"])
        recorded = step["info"]
        want = (step["obs"], round(step["reward"], 9), step["done"], recorded["action_is_effective"])
        if got != (*want, recorded["success"]):
            return f"step {number}: got {got}, want {want}"
    return ""


def make_plan(env: Any) -> Iterator[str]:
    """Yield the expert's actions on a copy."""
    twin = env.fork()
    twin.max_steps = 10_000
    for action in twin.expert():
        twin.step(action)
        yield action


def lake(episode: dict[str, Any]) -> str:
    """Each recorded move must be one that our dynamics allow; the observation, reward and end must then agree."""
    names = ["Left", "Down", "Right", "Up"]
    slippery = episode["config"]["is_slippery"]
    env = make("frozen-lake", rows=episode["desc"], slippery=slippery, max_steps=10_000)
    observation, _ = env.reset(seed=0)
    if observation != episode["reset_obs"]:
        return f"first observation {observation!r}"
    for number, step in enumerate(episode["steps"]):
        want = (step["obs"], float(step["reward"]), step["done"], step["info"]["success"])
        for seed in range(200):  # the reference drew from another stream: look for a draw that gives its outcome
            twin = env.fork(seed=seed)
            observation, reward, terminated, _, info = twin.step(names[step["action"] - 1])
            if (observation, reward, terminated, info["won"]) == want:
                env = twin
                break
            if not slippery:
                return f"step {number}: got {observation!r} {reward} {terminated}, want {want}"
        else:
            return f"step {number}: no draw gives {want}"
    return ""


def bandit(episode: dict[str, Any]) -> str:
    """Both arms' rewards, the order of the names and the success flag must agree."""
    low, high = episode["config"]["lo_arm_name"], episode["config"]["hi_arm_name"]
    env = make("bandit", pair=f"{low}-{high}", variant="released")
    order = [episode["actions"]["1"].lower(), episode["actions"]["2"].lower()]
    index = next(i for i in range(1000) if _order(env, i) == order)
    for step in episode["steps"]:
        arm = episode["actions"][str(step["action"])]
        for seed in range(200):
            env.reset(seed=seed, options={"task": f"train/{index}"})
            observation, reward, terminated, _, info = env.step(arm)
            if reward == step["reward"]:
                break
        got = (observation.lower(), reward, terminated, info["won"])
        want = (step["obs"].lower(), step["reward"], step["done"], step["info"]["success"])
        if got != want:
            return f"got {got}, want {want}"
    return ""


def _order(env: Any, index: int) -> list[str]:
    return [name.lower() for name in env.reset(seed=0, options={"task": f"train/{index}"})[1]["admissible"]]


CHECKS: dict[str, Callable[[Any], Iterator[Case]]] = {
    "action_projection.json": projections,
    "rlvmr_meta_reward.json": meta_rewards,
    "length_reward.json": lengths,
    "symbolic_games.jsonl": games,
}


def main() -> int:
    """Run every check whose file is there; return 0 if all cases passed and there was at least one."""
    folder = os.environ.get("TURNGYM_ORACLES")
    if not folder:
        print("skipped: TURNGYM_ORACLES names no folder of vectors")
        return 0
    return run({name: partial(_of_file, check) for name, check in CHECKS.items()}, Path(folder))


def _of_file(check: Callable[[Any], Iterator[Case]], path: Path) -> Iterator[Case]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return check(json.loads(text))
    lines = [json.loads(line) for line in text.splitlines()]
    return check([episode for episode in lines if "env" in episode])


if __name__ == "__main__":
    sys.exit(main())
