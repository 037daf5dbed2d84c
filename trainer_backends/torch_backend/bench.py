"""What training costs: the parts of a step against its size, what sharing saves, TRL's GRPOTrainer, stock ``generate``.

``turngym bench train`` runs every case in a process of its own with one thread, on FrozenLake (and, where the length
of prompts matters, Sokoban) with new policies. Environments run in that process too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..recipes import Recipe, load_recipe, recipe_of

Row = dict[str, Any]
BASE = "small"
"""Recipe that the cases change."""
REPLY = 16
"""Tokens of a reply at most."""
STEPS = 3
"""Training steps that are measured, after one that is not."""
EPISODES, SAMPLES = (8, 32, 128, 512), 16
TURNS = (1, 7, 28)
BESIDE = 128
"""Episodes of a step in the comparison with TRL."""
CHAT = {
    "style": "think-answer",
    "memory": -1,
    "prompt": {"system": "", "first": "{observation}", "later": "{observation}"},
}
"""One growing conversation, the only form that a row of TRL's can have."""
SHARING: dict[str, Row] = {
    "frozen-lake": {},
    "sokoban": {"env": {"preset": "t2po-sokoban"}, "sampling": {"max_prompt_tokens": 1024, "max_tokens": 24}},
}
"""Environments whose turns are compared: prompts of 40 tokens, and prompts with instructions and a history."""
BATCH, REPLIES, LONGEST = 64, 256, 64
"""Of the comparison of generation: replies at a time, in all, and their greatest length in tokens."""
TITLES = {
    "train": "A training step on one thread: GRPO on FrozenLake, 0.3 million parameters, replies of 16 tokens",
    "train_trl": "A step of TRL's GRPOTrainer and of ours: same policy, tasks and batch, one thread each",
    "train_sharing": "An update's forward and backward pass: what turns begin with in common computed once, and not",
    "train_generation": f"{REPLIES} replies, {BATCH} at a time: stock generate and ours, one thread each",
}
NO_TRL = 'TRL was left out: it is not installed. Run: pip install "turngym[trl]"'


def tables() -> Iterator[tuple[str, list[Row]]]:
    """Measure everything; give the tables by name, each as soon as it is there."""
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        started = {
            "untaught": recipe(16, 1, run={"steps": 0}),
            "larger": recipe(16, 1, run={"steps": 0}, model={"new": {"size": "small", "length": 2048}}),
            "taught": recipe(16, 1, run={"steps": 0}, start={"noise": 0.5, "episodes": 800}, chat=True),
        }
        for name, env in SHARING.items():
            started[name] = recipe(16, 7, run={"steps": 0}, start={"noise": 0.5, "episodes": 400}, **env)
        policies = {}
        for name, made in started.items():
            out = Path(folder) / name
            _child("start", out=str(out), recipe=_data(made))
            policies[name] = str(out / "checkpoints" / "step-000000")
        yield "train", list(_costs(policies["untaught"]))
        yield "train_trl", list(_beside_trl(policies["taught"]))
        yield (
            "train_sharing",
            [
                _child("sharing", model=policies[name], recipe=_data(recipe(BESIDE, 7, **env)))
                for name, env in SHARING.items()
            ],
        )
        yield "train_generation", list(_generation([policies["untaught"], policies["larger"]]))


def recipe(episodes: int, turns: int, *, chat: bool = False, start: Any = None, **tables: Any) -> Recipe:
    """Return the recipe of a case: so many episodes of so many turns a step, one update over all of them."""
    data = msgspec.to_builtins(load_recipe(BASE))
    samples = min(episodes, SAMPLES)
    sampling: Row = {"tasks": episodes // samples, "max_tokens": REPLY, "slots": min(episodes, 256)}
    turn: Row = {"max_turns": turns}
    if chat:
        turn |= CHAT
        sampling |= {"rows": "trajectory", "max_prompt_tokens": 1024}
    changes: dict[str, Row] = {
        "env": {"turn": turn},
        "model": {"new": {"size": "tiny", "length": 2048}},
        "rollout": {"samples": samples},
        "sampling": sampling,
        "entropy": {"coefficient": 0.0},
        "update": {"mini_batch": 0, "learning_rate": 1e-6, "warmup": 0.0},
        "run": {"steps": STEPS + 1, "tokens": 0, "eval_every": 0, "eval_tasks": 1, "save_every": STEPS + 1},
    }
    for each in (changes, tables):
        for name, table in each.items():
            data[name] = {**(data.get(name) or {}), **table}
    data["start"] = None if start is None else {**data["start"], **start}
    return recipe_of(data, "The benchmark's recipe", "Report this.")


def _data(recipe: Recipe) -> Row:
    data: Row = msgspec.to_builtins(recipe)
    return data


def _child(case: str, **settings: Any) -> Row:
    """Run a case in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", __spec__.name, case]
    done = subprocess.run(
        command, input=json.dumps(settings), stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def start(recipe: Recipe, out: str) -> Row:
    """Make a policy."""
    from .trainer import Trainer

    asyncio.run(Trainer(recipe, Path(out)).train())
    return {}


# A step and its parts -------------------------------------------------------------------------------


def _costs(model: str) -> Iterator[Row]:
    for episodes, turns in [*((count, 7) for count in EPISODES), *((64, turns) for turns in TURNS)]:
        measured = _child("ours", model=model, recipe=_data(recipe(episodes, turns)))
        steps: list[Row] = measured["steps"]

        def total(*names: str, steps: list[Row] = steps) -> float:
            return float(sum(step[name] for step in steps for name in names))

        whole, generation = total("seconds"), total("generation_seconds")
        yield {
            "episodes": episodes,
            "turns": turns,
            "s_a_step": measured["s_a_step"],
            "tokens_per_s": total("sampled_tokens") / total("rollout_seconds"),
            "updates_per_s": total("updates") / total("update_seconds"),
            "environment_%": 100 * (total("rollout_seconds") - generation) / whole,
            "generation_%": 100 * generation / whole,
            "credit_%": 100 * total("credit_seconds") / whole,
            "update_%": 100 * total("measure_seconds", "update_seconds") / whole,
            "peak_mib": measured["peak_mib"],
        }


def ours(recipe: Recipe, model: str) -> Row:
    """Train; return the lines of the measured steps."""
    from .trainer import Trainer

    ends: list[float] = []
    steps: list[Row] = []

    def report(kind: str, metrics: Mapping[str, float]) -> None:
        if kind == "train":
            ends.append(time.perf_counter())
            steps.append({**metrics})

    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        asyncio.run(Trainer(recipe, Path(folder), model=model, report=report).train())
    for step, (began, ended) in zip(steps[1:], itertools.pairwise(ends), strict=True):
        step["seconds"] = ended - began
    seconds = statistics.median(step["seconds"] for step in steps[1:])
    sampled = statistics.fmean(step["sampled_tokens"] for step in steps[1:])
    return {"steps": steps[1:], "s_a_step": seconds, "sampled": sampled, "peak_mib": steps[-1]["peak_memory_mb"]}


def _beside_trl(model: str) -> Iterator[Row]:
    if importlib.util.find_spec("trl") is None:
        print(NO_TRL, file=sys.stderr)
        return
    for turns in (1, 7):
        settings = {"model": model, "recipe": _data(recipe(BESIDE, turns, chat=True))}
        measured = {"TRL": _child("trl", **settings), "turngym": _child("ours", **settings)}
        for name, row in measured.items():
            yield {
                "trainer": name,
                "episodes": BESIDE,
                "turns": turns,
                "sampled_tokens": round(row["sampled"]),
                "s_a_step": row["s_a_step"],
                "steps_times_TRL's": measured["TRL"]["s_a_step"] / row["s_a_step"],
                "peak_mib": row["peak_mib"],
            }


def trl(recipe: Recipe, model: str) -> Row:
    """Train with TRL; see ``bench_trl.py``."""
    from .bench_trl import train

    return train(recipe, model, STEPS)


# The update -----------------------------------------------------------------------------------------


def sharing(recipe: Recipe, model: str) -> Row:
    """Play the episodes of a step; compute their rows with and without sharing, three times each."""
    from ..backend import Experience
    from .batch import samples_of
    from .packing import lay_out
    from .trainer import Trainer

    episodes: list[Any] = []

    class Player(Trainer):
        def update(self, experience: Experience) -> dict[str, float]:
            episodes[:] = experience.episodes
            return super().update(experience)

    recipe = msgspec.structs.replace(recipe, run=msgspec.structs.replace(recipe.run, steps=1, save_every=1))
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        trainer = Player(recipe, Path(folder), model=model)
        asyncio.run(trainer.train())
    learner = trainer.learner
    samples = [sample for episode in episodes for sample in samples_of(episode, "turn")]

    def compute() -> None:
        learner.optimizer.zero_grad()
        for batch in learner.batches(samples):
            total = learner.run(samples, batch).logprobs_BT.sum()
            total.backward()  # type: ignore[no-untyped-call]

    shared = _median_of_three(compute)
    ratio, learner.ratio = learner.ratio, 0.0
    alone = _median_of_three(compute)
    tokens = sum(len(sample.ids) for sample in samples)
    packs = lay_out([sample.ids for sample in samples], ratio, recipe.update.micro_tokens)
    return {
        "environment": recipe.env.preset,
        "rows": len(samples),
        "tokens": tokens,
        "computed": sum(pack.size for pack in packs),
        "rows_alone_s": alone,
        "shared_s": shared,
        "times": alone / shared,
    }


# Generation -----------------------------------------------------------------------------------------


def _generation(models: list[str]) -> Iterator[Row]:
    for model in models:
        for even, samples in ((True, 1), (False, 1), (False, SAMPLES)):
            yield _child("generate", model=model, even=even, samples=samples)


def generate(model: str, even: bool, samples: int) -> Row:
    """Generate the same number of tokens with stock ``generate`` and with our engine, three times each.

    Args:
        model: folder of the policy.
        even: whether all replies are of one length.
        samples: replies to the same prompt.
    """
    import torch
    from transformers import GenerationConfig

    from .engine import Engine
    from .loading import load_model, set_threads
    from .sampling import Sampling

    loaded, _ = load_model(model, "cpu")
    set_threads(loaded, "cpu")
    draw = np.random.default_rng(0)
    # Lengths as replies have them: most are short, a few go on to the limit.
    lengths = np.full(REPLIES, LONGEST) if even else np.clip(draw.geometric(1 / 20, REPLIES), 4, LONGEST)
    prompts = draw.integers(8, loaded.config.vocab_size, (REPLIES // samples, 48)).repeat(samples, 0)
    options: Any = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, top_k=0, top_p=1.0, temperature=1.0, pad_token_id=0
    )
    loaded.generation_config.eos_token_id = None

    @torch.inference_mode()
    def stock() -> None:
        for place in range(0, REPLIES, BATCH):
            ids = torch.from_numpy(prompts[place : place + BATCH])
            options.max_new_tokens = options.min_new_tokens = int(lengths[place : place + BATCH].max())
            loaded.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=options)

    made = Engine(loaded, [], slots=BATCH)

    def engine() -> None:
        made.reset()  # nothing of a prompt is left
        for number, (ids, length) in enumerate(zip(prompts.tolist(), lengths.tolist(), strict=True)):
            made.submit(ids, Sampling(max_tokens=length), np.random.default_rng(number))
        assert sum(1 for _ in made.run()) == REPLIES

    stock_s, ours_s = _median_of_three(stock), _median_of_three(engine)
    tokens = int(lengths.sum())
    return {
        "parameters": loaded.num_parameters(),
        "prompts": "all differ" if samples == 1 else f"groups of {samples}",
        "lengths": f"all {LONGEST}" if even else f"4 to {LONGEST}, {lengths.mean():.0f} on average",
        "stock_tokens_per_s": tokens / stock_s,
        "tokens_per_s": tokens / ours_s,
        "times": stock_s / ours_s,
    }


def _median_of_three(call: Callable[[], None]) -> float:
    call()  # what is made once is made here
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


CASES: Mapping[str, Callable[..., Row]] = {
    "start": start,
    "ours": ours,
    "trl": trl,
    "sharing": sharing,
    "generate": generate,
}


def main() -> None:
    """Run the case that the command line names, with the settings on standard input; print its numbers."""
    settings = json.load(sys.stdin)
    if "recipe" in settings:
        settings["recipe"] = msgspec.convert(settings["recipe"], Recipe)
    print(json.dumps(CASES[sys.argv[1]](**settings)))


if __name__ == "__main__":
    main()
