"""What the algorithms cost: time and memory against batch size, next to the loops that the papers' code runs.

``turngym bench algorithms`` measures every case in a process of its own, one thread, on the CPU. The loops to compare
with are written here, in the plain form that the released trainers have: one row, one token, one string at a time.
Both get the same input, and their results must agree.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .algorithms.aggregate import aggregate
from .algorithms.credit import bilevel_gae, gae, gigpo, grpo
from .algorithms.credit._anchors import cluster
from .algorithms.diagnosis.turn_kl import turn_kl_entropy
from .algorithms.entropy import token_entropy
from .algorithms.losses import atpo
from .algorithms.markers import Markers
from .algorithms.rows import Rows
from .algorithms.signals import released
from .algorithms.thinking import overwrite
from .algorithms.token_control import tti

Row = dict[str, Any]
LENGTH = 1000
"""Tokens of a row with a critic."""
REPLY = 6192
"""Tokens of a row of whole trajectories."""
VOCABULARY = 151_936
"""Qwen3's."""
SCORED = 500
"""Tokens of a row with an outcome reward."""
TURNS = 15
GROUP = 8 * TURNS
"""Turn rows of a task: eight trajectories of fifteen turns."""
CHARACTERS = 1500
PATIENCE = 5.0
"""Seconds after which a case is not repeated any more."""
THINGS = (
    "apple armchair bathtub book bowl box bread cabinet candle cart chair countertop cup desk drawer dresser egg fork "
    "fridge garbagecan kettle keychain knife ladle laptop lettuce microwave mug newspaper pan pen pencil pillow plate "
    "pot potato safe saltshaker shelf sidetable sinkbasin sofa spatula spoon toaster toilet tomato vase watch"
)


class Pair(NamedTuple):
    """A computation and the plain loop for the same.

    Attributes:
        ours: the library's function on its input.
        plain: the loop, or None where it would take too long.
        share: part of the input that the loop gets; its time is scaled up by it.
    """

    ours: Callable[[], Any]
    plain: Callable[[], Any] | None
    share: float = 1.0


class Case(NamedTuple):
    """One row of the table.

    Attributes:
        part: what is measured.
        rows: batch size.
        prepare: makes the input for a number of rows.
        size: the size in words; {rows} stands for the number.
        compare: whether the plain loop runs at this size.
    """

    part: str
    rows: int
    prepare: Callable[[int], Pair]
    size: str = "{rows} rows"
    compare: bool = True


def algorithms() -> list[Row]:
    """Measure every case, each in a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    rows = []
    for case in CASES:
        command = [sys.executable, "-m", __name__, case.part, str(case.rows)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        rows.append(json.loads(done.stdout))
    return rows


def measure(case: Case, *, repeats: int = 7) -> Row:
    """Return processor time (median) and peak memory of one case, and what the plain loop takes.

    Raises:
        AssertionError: the two results differ.
    """
    torch.set_num_threads(1)
    case.prepare(max(1, case.rows // 50)).ours()  # loads what is loaded once
    pair = case.prepare(case.rows)
    peak = peak_mib(pair.ours)
    times = [_seconds(pair.ours)[0]]
    while len(times) < repeats and sum(times) < PATIENCE:
        times.append(_seconds(pair.ours)[0])
    ours = statistics.median(times)
    row: Row = {"what": case.part, "size": case.size.format(rows=f"{case.rows:,}"), "ms": 1e3 * ours, "peak_mib": peak}
    row |= {"loop_ms": None, "times": None}
    if pair.plain is not None and case.compare:
        seconds, expected = _seconds(pair.plain)
        got = pair.ours()
        torch.testing.assert_close(got[: len(expected)], expected, rtol=1e-4, atol=1e-5)
        row |= {"loop_ms": 1e3 * seconds / pair.share, "times": seconds / pair.share / ours}
    return row


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def peak_mib(call: Callable[[], Any]) -> float | None:
    """Return how far a call raises this process's memory, in MiB; None where the system does not tell (not Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
    except OSError:
        return None
    before = _status("VmRSS")
    call()
    return max(0, _status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


# Similar anchors.


def thing(draw: random.Random) -> str:
    """Return one thing of a room."""
    return f" a {draw.choice(THINGS.split())} {draw.randrange(1, 30)},"


def room(draw: random.Random) -> str:
    """Return an observation in ALFWorld's style."""
    text = "You are in the middle of a room. Looking quickly around you, you see"
    while len(text) < CHARACTERS:
        text += thing(draw)
    return text[:CHARACTERS]


def altered(draw: random.Random, text: str) -> str:
    """Return the room with ten other things in it."""
    things = text.split(",")
    for _ in range(10):
        things[draw.randrange(1, len(things) - 1)] = thing(draw)[:-1]
    return ",".join(things)[:CHARACTERS]


def anchors(distinct: int, similar: bool = False) -> Callable[[int], Pair]:
    """Return the case of ``distinct`` texts a group: other rooms, or one room with changes."""

    def prepare(rows: int) -> Pair:
        draw = random.Random(0)
        texts: list[str] = []
        for _ in range(0, rows, GROUP):
            first = room(draw)
            pool = [altered(draw, first) if similar else room(draw) for _ in range(distinct)]
            # Every text occurs, and those that are left over are drawn.
            group = pool + draw.choices(pool, k=GROUP - distinct)
            draw.shuffle(group)
            texts += group
        texts, groups = texts[:rows], [row // GROUP for row in range(rows)]
        share = rows // 8
        return Pair(
            lambda: cluster(texts, groups, 0.9),
            lambda: plain_clusters(texts[:share], groups[:share], 0.9),
            share=share / rows,
        )

    return prepare


def plain_clusters(texts: list[str], groups: list[int], threshold: float) -> list[int]:
    """Compare every row with the first member of every cluster of its group."""
    firsts: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    clusters: list[int] = []
    opened = 0
    for text, group in zip(texts, groups, strict=True):
        for number, first in firsts[group]:
            if SequenceMatcher(None, text, first).ratio() >= threshold:
                clusters.append(number)
                break
        else:
            firsts[group].append((opened, text))
            clusters.append(opened)
            opened += 1
    return clusters


# Step returns.


def steps(rows: int) -> Pair:
    """Turn rows in the order of time, trajectories interleaved."""
    count = max(1, rows // TURNS)
    trajectories = torch.arange(rows) % count
    turns = torch.arange(rows) // count
    rewards = torch.rand(rows, dtype=torch.float64)
    names = np.array([f"trajectory-{number:032d}" for number in trajectories.tolist()], dtype=object)
    return Pair(
        lambda: gigpo.step_returns(rewards, trajectories, turns, gamma=0.95),
        lambda: plain_returns(rewards, names, 0.95),
    )


def plain_returns(rewards: Tensor, names: Any, gamma: float) -> Tensor:
    """Look through all rows for those of a trajectory: once for each trajectory, and once for each row's place."""
    returns = {}
    for name in np.unique(names):
        places = np.where(names == name)[0]
        running, sums = 0.0, np.zeros(len(places))
        for k in reversed(range(len(places))):
            running = rewards[places[k]].item() + gamma * running
            sums[k] = running
        returns[name] = sums
    in_order = np.zeros(len(names))
    for row, name in enumerate(names):
        places = np.where(names == name)[0]
        in_order[row] = returns[name][np.where(places == row)[0][0]]
    return torch.from_numpy(in_order)


# Outcomes within groups.


def outcomes(rows: int) -> Pair:
    """Rows of 500 tokens, eight to a group."""
    rewards = torch.zeros(rows, SCORED)
    rewards[:, -1] = torch.randint(2, (rows,)).float()
    mask, groups = torch.ones(rows, SCORED), torch.arange(rows) // 8
    names = [f"task-{group:032d}" for group in groups.tolist()]
    config = grpo.Config()

    def ours() -> Tensor:
        return grpo.advantages(config, Rows(loss_mask_BT=mask, token_rewards_BT=rewards, group_B=groups)).advantages_BT

    return Pair(ours, lambda: plain_outcomes(rewards, mask, names))


def plain_outcomes(rewards: Tensor, mask: Tensor, names: list[str]) -> Tensor:
    """Collect the scores of every group in lists, and normalise row by row."""
    scores = rewards.sum(-1)
    of_group = defaultdict(list)
    for row, name in enumerate(names):
        of_group[name].append(scores[row])
    means = {name: torch.mean(torch.tensor(values)) for name, values in of_group.items()}
    stds = {name: torch.std(torch.tensor(values)) for name, values in of_group.items()}
    for row, name in enumerate(names):
        scores[row] = (scores[row] - means[name]) / (stds[name] + 1e-6)
    return scores.unsqueeze(-1).tile([1, rewards.shape[1]]) * mask


# Advantages with a critic.


def critic(rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rewards, values, mask and turns: five turns of 200 tokens, the last 40 of each an observation."""
    place = torch.arange(LENGTH).expand(rows, LENGTH)
    turns, mask = place // 200, place % 200 < 160
    rewards = (place % 200 == 159) * (0.1 + torch.rand(rows, LENGTH))
    return rewards, torch.randn(rows, LENGTH), mask, turns


def tokens(rows: int) -> Pair:
    """Token-level GAE."""
    rewards, values, mask, _ = critic(rows)
    return Pair(
        lambda: gae.gae(rewards, values, mask, gamma=0.99, lam=0.95),
        lambda: plain_gae(rewards, values, mask.float(), 0.99, 0.95),
    )


def plain_gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Go back token by token, all rows at once."""
    advantages = torch.zeros_like(rewards)
    after = later = torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        new = rewards[:, t] + gamma * after - values[:, t] + gamma * lam * later
        inside = mask[:, t]
        later = inside * new + (1 - inside) * later
        after = inside * values[:, t] + (1 - inside) * after
        advantages[:, t] = later * inside
    return advantages


def levels(rows: int) -> Pair:
    """Bi-level GAE; every turn has a reward, as the released code needs it."""
    rewards, values, mask, turns = critic(rows)
    return Pair(
        lambda: bilevel_gae.bilevel_gae(rewards, values, mask, turns, gamma=0.99, lam=0.95, gamma_turn=0.95),
        lambda: plain_levels(rewards, values, mask, 0.99, 0.95, 0.95),
    )


def plain_levels(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, high: float) -> Tensor:
    """Go back row by row: over the tokens with a reward, then over all."""
    advantages, paid = torch.zeros_like(rewards), rewards.clone()
    for row in range(len(rewards)):
        ends = rewards[row].nonzero().flatten()
        later: Any = 0.0
        for place in reversed(range(len(ends))):
            end = ends[place]
            after: Any = values[row, ends[place + 1]] if place + 1 < len(ends) else 0.0
            later = paid[row, end] + high * after - values[row, end] + high * lam * later
            advantages[row, end] = later
        paid[row, ends] = advantages[row, ends] + values[row, ends]
        trained = mask[row].nonzero().flatten()
        for place in reversed(range(len(trained))):
            t = trained[place]
            if t in ends:
                after, later = 0.0, 0.0
            else:
                after = values[row, trained[place + 1]]
            later = paid[row, t] + gamma * after - values[row, t] + gamma * lam * later
            advantages[row, t] = later
    return advantages


# Losses, entropies and token control.


def turns(count: int) -> Callable[[int], Pair]:
    """Return the case of rows of 6,192 tokens in ``count`` turns; the last fifth of each turn is an observation."""

    def prepare(rows: int) -> Pair:
        length = REPLY // count
        place = torch.arange(REPLY).expand(rows, REPLY)
        ids, mask = place // length, place % length < 0.8 * length
        old = -torch.rand(rows, REPLY)
        logprobs, advantages = old + 0.01 * torch.rand(rows, REPLY), torch.randn(rows, 1).expand(rows, REPLY)

        def ours() -> Tensor:
            loss = atpo.atpo(logprobs, old, advantages, mask, ids).loss_BT
            entropy = turn_kl_entropy(logprobs, old, mask, ids)
            return torch.stack([aggregate(loss, mask, atpo.AGGREGATION), entropy.mean()])

        return Pair(ours, lambda: plain_turns(logprobs, old, advantages, mask.float(), 3e-3, 4e-3))

    return prepare


def plain_turns(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    """Find every row's runs of trained tokens, and go through them: their mean, and their share of the row's change."""
    change = logprobs - old
    of_rows = (change * mask).sum(-1)
    means = torch.zeros_like(change)
    entropies = []
    for row in range(len(mask)):
        edges = torch.diff(mask[row], prepend=torch.zeros(1), append=torch.zeros(1))
        starts, ends = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
        shares = []
        for start, end in zip(starts, ends, strict=True):
            part = change[row, start:end]
            means[row, start:end] = part.sum() / (end - start)
            shares.append(part.sum() / of_rows[row].item())
        weights = torch.softmax(torch.tensor(shares), dim=0)
        entropies.append(-(weights * torch.log(weights + 1e-10)).sum().item() / math.log(len(shares)))
    ratio = torch.exp(torch.clamp(logprobs - logprobs.detach() + means.detach(), max=10.0))
    free, bound = -advantages * ratio, -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    loss = torch.maximum(free, bound)
    ((bound > free) * mask).sum().div(mask.sum()).item()  # what they log: the share of clipped tokens, and the KL
    (-change * mask).sum().div(mask.sum()).item()
    return torch.stack([((loss * mask).sum(-1) / mask.sum(-1)).mean(), torch.tensor(entropies).mean()])


def thinking(rows: int) -> Pair:
    """One decoding step of TTI for replies over Qwen3's vocabulary."""
    logits, last = 3 * torch.randn(rows, VOCABULARY), torch.ones(rows, dtype=torch.long)
    control = tti.make(tti.Config(), Markers(((2,),), ((3,),), (3,)), released.make(released.Config()))
    for slot in range(rows):
        control.add(slot, thinking=True)

    def ours() -> Tensor:
        overwrite(logits, control.step(logits, last))
        return control.slots["previous"]

    return Pair(ours, lambda: plain_thinking(logits))


def plain_thinking(logits: Tensor) -> Tensor:
    """Take the softmax of one row after another, and two numbers of each to the host."""
    scores = []
    for row in logits:
        probabilities = torch.softmax(row, dim=-1)
        logprobs = torch.log(probabilities + 1e-12)
        entropy = -(probabilities * logprobs).sum().item()
        certainty = 1 - min(max(entropy / math.log(len(row)), 0.0), 1.0)
        scores.append(0.6 * logprobs.max().item() + 0.4 * certainty)
    return torch.tensor(scores)


def uncertain(rows: int) -> Pair:
    """Entropies of tokens and their gradient, from logits over 32,000 tokens."""
    logits = torch.randn(rows, 32_000, requires_grad=True)

    def gradient(entropy: Callable[[Tensor], Tensor]) -> Tensor:
        (found,) = torch.autograd.grad(entropy(logits).sum(), logits)
        return found

    return Pair(lambda: gradient(token_entropy), lambda: gradient(plain_entropy))


def uncertain_by_softmax(rows: int) -> Pair:
    """The plain form alone, for its memory."""
    pair = uncertain(rows)
    assert pair.plain is not None
    return Pair(pair.plain, None)


def plain_entropy(logits: Tensor) -> Tensor:
    """Write the formula down and leave the rest to autograd."""
    return torch.logsumexp(logits, -1) - (torch.softmax(logits, -1) * logits).sum(-1)


CASES = [
    Case("similar anchors, 40 texts a group", 1920, anchors(40)),
    Case("similar anchors, 40 texts a group", 19_200, anchors(40), compare=False),
    Case("similar anchors, all texts differ", 1920, anchors(GROUP)),
    Case("similar anchors, all texts differ", 19_200, anchors(GROUP), compare=False),
    Case("similar anchors, one room changed", 1920, anchors(40, similar=True)),
    Case("step returns", 1920, steps),
    Case("step returns", 12_800, steps),
    Case("step returns", 128_000, steps, compare=False),
    Case("GRPO", 1920, outcomes, f"{{rows}} x {SCORED}"),
    Case("GRPO", 19_200, outcomes, f"{{rows}} x {SCORED}"),
    Case("GAE", 32, tokens, f"{{rows}} x {LENGTH}"),
    Case("GAE", 320, tokens, f"{{rows}} x {LENGTH}"),
    Case("bi-level GAE", 32, levels, f"{{rows}} x {LENGTH}"),
    Case("bi-level GAE", 320, levels, f"{{rows}} x {LENGTH}", compare=False),
    Case("turn-ratio loss, 7 turns a row", 64, turns(7), f"{{rows}} x {REPLY}"),
    Case("turn-ratio loss, 7 turns a row", 640, turns(7), f"{{rows}} x {REPLY}"),
    Case("turn-ratio loss, 50 turns a row", 64, turns(50), f"{{rows}} x {REPLY}"),
    Case("turn-ratio loss, 50 turns a row", 640, turns(50), f"{{rows}} x {REPLY}"),
    Case("TTI, one step", 64, thinking, f"{{rows}} x {VOCABULARY:,}"),
    Case("TTI, one step", 640, thinking, f"{{rows}} x {VOCABULARY:,}"),
    Case("entropy and gradient", 256, uncertain, "{rows} x 32,000"),
    Case("entropy and gradient", 2560, uncertain, "{rows} x 32,000"),
    Case("the same through softmax", 256, uncertain_by_softmax, "{rows} x 32,000", compare=False),
    Case("the same through softmax", 2560, uncertain_by_softmax, "{rows} x 32,000", compare=False),
]


if __name__ == "__main__":
    wanted = (sys.argv[1], int(sys.argv[2]))
    print(json.dumps(measure(next(case for case in CASES if (case.part, case.rows) == wanted))))
