"""Training in this process: collect, assign credit, update; watch, evaluate, save; go on where it was cut off."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from ...client.evaluation.metrics import measure, summarise
from ...client.policies import Policy
from ...client.policies.hosted import OVERFLOW
from ...client.rollout import Job
from ...client.sources import HubSource, LocalSource, Source, Wanted
from ...envs.core import stable_rng
from ...envs.turn.hooks import apply_group_hooks, make_hooks
from ...errors import InvalidRequest, ServerUnavailable
from ...records import Completion, Episode, EpisodeWriter, read_episodes
from ..algorithms.diagnosis.staleness import staleness
from ..algorithms.outcomes import Outcomes
from ..backend import Experience, Grown, TrainerBackend
from ..recipes import Recipe
from ..watching.folder import read_run
from . import assembly, checkpoint, start
from .batch import Sample, rows_of, samples_of
from .collect import Group, jobs, played_through, tree
from .learner import Diverged, Learner
from .lines import in_order, keep_lines, naming, slim, step_of
from .loading import all_threads, load_model, set_threads
from .measures import Clock, Metrics, measures, memory, sampled_tokens, spread, tree_measures
from .tree_rows import reward_leaves, samples_of_trees

Report = Callable[[str, Mapping[str, Any]], None]
WAIT_S = 5.0
"""Seconds between two looks at an environment server that is down."""
TELL_S = 15.0
"""Seconds between two reports of how many episodes of a start are played."""


class Trainer(TrainerBackend):
    """One training run in one folder: a backend in this process, and the loop around it.

    Args:
        recipe: method, environment and numbers.
        out: folder of the run; one that holds a run of the same recipe is continued.
        model: Hugging Face folder or hub name; None takes the recipe's.
        url: address of a hub; None makes the environments in this process.
        device: "cpu" or "cuda".
        report: told of everything that is logged: (kind, metrics).

    Raises:
        InvalidRequest: the recipe does not fit, there is no model, or the folder holds another run.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        *,
        model: str | None = None,
        url: str | None = None,
        device: str = "cpu",
        report: Report | None = None,
    ) -> None:
        if recipe.run.deterministic and url is not None:
            raise InvalidRequest(
                "run.deterministic = true, but a hub answers in an order of its own.",
                hint="Leave --url and --hub out, or set run.deterministic = false.",
            )
        self.recipe = recipe
        self.out = out
        self.method = recipe.parts()
        self.url = url
        self.report = report or (lambda kind, metrics: None)
        assembly.claim(out, recipe, model)
        preset = recipe.env.load()
        self.wanted = Wanted(preset.env, preset.config, "turn", preset.turn)
        self.group_hooks = [hook for hook in make_hooks(preset.turn.get("hooks", {})) if hook.of_groups()]
        self.step = 0
        self.seconds = 0.0
        self.tokens = 0
        self._saved = -1
        """Step of the newest checkpoint."""
        last = checkpoint.newest(out / "checkpoints")
        first = model or recipe.model.path or assembly.new_policy_of(recipe, preset, out)
        if last is None:
            self.model, self.tokenizer = load_model(first, device, recipe.model, seed=recipe.run.seed)
        else:
            self.model, self.tokenizer = self._weights(last, device)
        set_threads(self.model, device)
        self.reference = assembly.reference(recipe, self.model, first, out) if recipe.kl.coefficient else None
        self.learner = Learner(self.model, recipe, self.method.loss, self.reference)
        self.policy = assembly.policy_of(recipe, self.method, self.model, self.tokenizer)
        if last is not None:
            self._restore(last)

    # State -----------------------------------------------------------------------------------------

    def _weights(self, path: Path, device: str) -> tuple[Any, Any]:
        """Return model and tokenizer of a checkpoint of this run.

        Raises:
            RecordError: it is damaged.
        """
        try:
            return load_model(str(path), device, self.recipe.model, seed=self.recipe.run.seed)
        except InvalidRequest as error:
            raise checkpoint.damaged(path, error.detail) from error

    def _restore(self, path: Path) -> None:
        tensors, state = checkpoint.load(path)
        self.learner.optimizer.load_state_dict(tensors["optimizer"])
        if self.learner.head is not None:
            self.learner.head.load_state_dict(tensors["head"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.tokens = state["tokens"]
        self.learner.updates = state["updates"]
        self.policy.version = self._saved = self.step
        self._forget_later()
        self.report("resumed", {"step": self.step})

    def _forget_later(self) -> None:
        """Drop what came after the checkpoint: those steps are taken again."""
        checkpoint.forget_later(self.out / "checkpoints", self.step)
        keep_lines(self.out / "metrics.jsonl", lambda line: msgspec.json.decode(line)["step"] <= self.step)
        header, step = b'{"schema"', self.step
        # Training episodes bear the step they led up from, evaluations the step they came after.
        keep_lines(self.out / "episodes.jsonl", lambda line: line.startswith(header) or step_of(line) < step)
        keep_lines(self.out / "eval.jsonl", lambda line: line.startswith(header) or step_of(line) <= step)
        for path in self.out.glob("part-*.jsonl"):
            # Played in another company, the episodes that are missing would not be the same to the bit.
            if path != self._part_file() or self.recipe.run.deterministic:
                path.unlink()

    def _part_file(self) -> Path:
        return self.out / f"part-{self.step:06d}.jsonl"

    def save(self) -> Path:
        """Write a checkpoint of this very moment, unless it was written."""
        if self._saved == self.step:
            return checkpoint.path_of(self.out / "checkpoints", self.step)
        learner = self.learner
        tensors = {"optimizer": learner.optimizer.state_dict()}
        if learner.head is not None:
            tensors["head"] = learner.head.state_dict()
        state = {"seconds": self.seconds, "tokens": self.tokens, "updates": learner.updates}
        path = checkpoint.save(self.out / "checkpoints", self.step, self.model, self.tokenizer, tensors, state)
        self._saved = self.step
        for part in self.out.glob("part-*.jsonl"):
            if part != self._part_file():
                part.unlink()
        return path

    # Training --------------------------------------------------------------------------------------

    async def train(self) -> Mapping[str, Any]:
        """Train to the end of the recipe; return the metrics of the last evaluation, with its step."""
        run = self.recipe.run
        source: Source = LocalSource() if self.url is None else HubSource(self.url)
        try:
            size = await self._reachable(lambda: source.size(self.wanted, self.recipe.env.split))
            if checkpoint.newest(self.out / "checkpoints") is None:
                for name in ("metrics.jsonl", "episodes.jsonl", "eval.jsonl"):
                    (self.out / name).unlink(missing_ok=True)  # of a start that was cut off
                if self.recipe.start is not None:
                    await self._start(source, size)
                self.save()
            if self.step == 0 and run.eval_every and self._evaluated() is None:
                await self.evaluate(source)
            while self.step < run.steps and not self._over():
                started = time.perf_counter()
                await self._train_step(source, size)
                self.seconds += time.perf_counter() - started
                if run.eval_every and self.step % run.eval_every == 0 and self.step < run.steps:
                    await self.evaluate(source)
                if self.step % run.save_every == 0:
                    self.save()
            final = self._evaluated() or await self.evaluate(source)
            self.save()
            return final
        finally:
            await source.aclose()

    def _evaluated(self) -> Mapping[str, Any] | None:
        """Return the evaluation of this very step, if it was made before the run was cut off."""
        return next((entry for entry in read_run(self.out).evals if entry["step"] == self.step), None)

    async def _start(self, source: Source, size: int) -> None:
        """Imitate good episodes before reinforcement begins."""
        table = self.recipe.start
        assert table is not None
        began = time.perf_counter()
        # The start learns from tasks at the far end of the order that training follows.
        order = _order(self.recipe.run.seed, 0, size)
        wanted = [
            Job(f"start.{place}", self.wanted, f"{self.recipe.env.split}/{order(size - 1 - place)}", seed=place)
            for place in range(min(table.episodes, size))
        ]
        seed = self.recipe.run.seed
        play = partial(self._played, source=source)
        episodes, metrics = await start.examples(table, self.policy, wanted, play, self.out, seed)
        self._log("start", metrics)
        rows = self.recipe.sampling.rows
        self._seed_torch("start")
        with all_threads():
            steps = start.fine_tune(self.model, episodes, table, self.learner, rows, seed)
            for number, metrics in enumerate(steps):
                if number % 10 == 0:
                    self._log("start", metrics)
        self.policy.engine.reset()
        if self.reference is not None:
            self.reference.load_state_dict(self.model.state_dict())
        self.seconds += time.perf_counter() - began

    async def _played(self, policy: Policy, wanted: Sequence[Job], source: Source) -> AsyncIterator[Episode]:
        """Play the episodes of a start with their prompts, and tell how far that is: a teacher may take hours."""
        told, slots = time.monotonic(), self.recipe.sampling.slots
        episodes = played_through(policy, wanted, source, slots, self._wait, keep_prompts=True)
        played = 0
        async for episode in episodes:
            played += 1
            if time.monotonic() - told > TELL_S:
                self.report("playing", {"episodes": float(played), "of": float(len(wanted))})
                told = time.monotonic()
            yield episode

    def _over(self) -> bool:
        run = self.recipe.run
        return bool(run.minutes and self.seconds >= 60 * run.minutes) or bool(run.tokens and self.tokens >= run.tokens)

    async def _train_step(self, source: Source, size: int) -> None:
        clock = Clock()
        groups = self._groups(size)
        self.policy.seed = int(stable_rng("step", self.recipe.run.seed, self.step).integers(2**53))
        control = self.method.turn_control
        self.policy.turn_control = None if control is None else control()
        engine = self.policy.engine
        before = (engine.generated, engine.prefilled, engine.seconds)
        experience, kept = await self._collect(source, groups)
        clock.lap("rollout_seconds")
        self._check_room(experience.episodes)
        metrics = measures(experience.episodes) | tree_measures(experience.trees)
        sampled = engine.generated - before[0] + sampled_tokens(kept)
        self.tokens += sampled
        metrics |= {
            "sampled_tokens": float(sampled),
            "prompt_tokens": float(engine.prefilled - before[1]),
            "generation_seconds": engine.seconds - before[2],
        }
        metrics |= clock.laps | self.update(experience)
        self._file(experience.episodes)
        self._log("train", metrics | memory(self.learner.device))

    def _check_room(self, episodes: Sequence[Episode]) -> None:
        """Check that some reply was sampled in this run: where no prompt fits, training would learn nothing."""
        ends = {each.turns[0].completion.finish_reason if each.turns else "" for each in episodes}
        if ends == {OVERFLOW} and not self.tokens and not self.policy.engine.generated:
            raise InvalidRequest(
                f"No prompt fits: all {len(episodes)} have more than {self.policy.room} tokens.",
                hint="In a new folder, lower sampling.max_tokens or raise sampling.max_prompt_tokens.",
            )

    def _groups(self, size: int) -> list[Group]:
        """Return the tasks of this step: every task once before any comes again, in an order of the run's seed."""
        recipe = self.recipe
        wanted = recipe.sampling.tasks
        groups = []
        for number in range(self.step * wanted, (self.step + 1) * wanted):
            epoch, place = divmod(number, size)
            order = _order(recipe.run.seed, epoch, size)
            seed = int(stable_rng("group", recipe.run.seed, number).integers(2**53))
            groups.append(
                Group(f"s{self.step:06d}.g{number % wanted}", self.wanted, f"{recipe.env.split}/{order(place)}", seed)
            )
        return groups

    async def _collect(self, source: Source, groups: list[Group]) -> tuple[Experience, list[Episode]]:
        """Return a step's experience, and which of its episodes were played before the run was cut off."""
        rollout_part = self.method.rollout
        # A step that was cut off left its finished episodes here; they were played by these very weights.
        part_file = self._part_file()
        writer = EpisodeWriter(part_file)
        try:
            if rollout_part.id == "chains":
                kept = list(read_episodes(part_file))
                episodes = {episode.id: episode for episode in kept}
                samples, slots = rollout_part.config.samples, self.recipe.sampling.slots
                missing = [job for group in groups for job in jobs(group, samples) if job.id not in episodes]
                async for episode in played_through(self.policy, missing, source, slots, self._wait):
                    writer.write(episode)
                    episodes[episode.id] = episode
                return Experience(in_order(list(episodes.values()))), kept
            vocabulary = int(self.model.config.vocab_size)
            grown = [tree(self.policy, group, rollout_part, source, vocabulary, self._wait) for group in groups]
            trees = list(await asyncio.gather(*grown))
            return Experience([episode for each in trees for episode in (*each.episodes, *each.failed)], trees), []
        finally:
            writer.close()

    @property
    def policy_version(self) -> int:
        """Training steps done."""
        return self.step

    async def generate(self, prompt_ids: Sequence[int], rng: np.random.Generator) -> Completion:
        """Return one reply; see :class:`~turngym.trainer_backends.backend.TrainerBackend`."""
        return await self.policy.generate(prompt_ids, rng)

    def update(self, experience: Experience) -> Metrics:
        """Filter, assign credit, take the optimizer's steps; return the metrics, with the seconds of each part.

        Raises:
            Diverged: loss, gradient or weights are no finite numbers; the batch is saved, and what was saved stays.
        """
        clock = Clock()
        self._seed_torch("update")
        metrics = self._learn(experience, clock)
        # Keys and values of the old weights are of no use any more.
        self.policy.engine.reset()
        self.step += 1
        self.policy.version = self.step
        return metrics | clock.laps

    def _seed_torch(self, what: str) -> None:
        """Seed torch's own generator, which dropout draws from: what follows does not depend on what was before."""
        torch.manual_seed(int(stable_rng(what, "torch", self.recipe.run.seed, self.step).integers(2**53)))

    def load(self, path: Path) -> None:
        """Go back to a checkpoint of this run: weights, optimizer, counters; records of later steps are dropped.

        Raises:
            RecordError: it is damaged.
        """
        saved, _ = self._weights(path, str(self.model.device))
        self.model.load_state_dict(saved.state_dict())
        self.policy.engine.reset()
        self._restore(path)

    def _learn(self, experience: Experience, clock: Clock) -> Metrics:
        recipe, method = self.recipe, self.method
        played = [each for each in experience.episodes if each.status in ("terminated", "truncated")]
        if not played:
            return {"trained_rows": 0.0}
        if self.group_hooks:
            played = _hooked(self.group_hooks, played)
            reward_leaves(played, experience.trees)
        keep = torch.ones(len(played), dtype=torch.bool)
        for part in method.filters:
            keep &= part(Outcomes.of(played))
        chosen = [episode for episode, kept in zip(played, keep.tolist(), strict=True) if kept]
        metrics = {"kept_share": float(keep.float().mean())}
        samples, extra = self._samples(chosen, experience.trees)
        if not samples:
            return {**metrics, "trained_rows": 0.0}
        rows = replace(rows_of(samples), **extra)
        with all_threads():
            rows = self.learner.measure(samples, rows)
        clock.lap("measure_seconds")
        for part in method.rewards:
            rows = part(rows)
        credit = method.credit(rows)
        advantages = credit.advantages_BT
        for part in method.shaping:
            advantages = part(rows, advantages)
        clock.lap("credit_seconds")
        metrics |= spread(rows, advantages)
        rng = stable_rng("update", recipe.run.seed, self.step)
        try:
            with all_threads():
                steps = list(self.learner.update(samples, rows, advantages, credit.returns_BT, rng, self.step))
        except Diverged as error:
            self._keep_batch(samples, error)
            raise
        clock.lap("update_seconds")
        for name in {name for each in steps for name in each}:
            metrics[name] = float(np.mean([each[name] for each in steps if name in each]))
        metrics |= {"updates": float(len(steps)), "trained_rows": float(len(samples))}
        late = staleness(
            rollout_batch=len(chosen),
            group_size=1,  # all groups' episodes are counted already
            mean_turns=len(samples) / len(chosen),
            update_batch=recipe.update.mini_batch or len(samples),
        )
        return metrics | {"staleness_lag": late.lag, "staleness_ratio": late.ratio}

    def _samples(self, episodes: list[Episode], trees: list[Grown]) -> tuple[list[Sample], dict[str, Any]]:
        """Return the training rows, and what else their tensors need."""
        kind = self.recipe.sampling.rows
        if not trees:
            return [sample for episode in episodes for sample in samples_of(episode, kind)], {}
        merged = "tree" in getattr(self.method.credit.module, "REQUIRES", ())
        return samples_of_trees(episodes, trees, kind, merged=merged)

    def _keep_batch(self, samples: Sequence[Sample], error: Diverged) -> None:
        path = self.out / "diverged.json"
        rows = [samples[number] for number in error.extra["rows"]]
        path.write_bytes(msgspec.json.encode([{"episode": row.episode.id, "ids": row.ids} for row in rows]))
        last = checkpoint.newest(self.out / "checkpoints")
        begin = "Begin a new run" if last is None else f"Begin a new run with --model {last}"
        error.hint = f"{begin} and a lower learning rate. The offending rows are in {path}."

    # Watching --------------------------------------------------------------------------------------

    def _file(self, episodes: Sequence[Episode]) -> None:
        """Move a step's episodes into the run's file."""
        writer = EpisodeWriter(self.out / "episodes.jsonl")
        try:
            for episode in episodes:
                writer.write(slim(episode))
        finally:
            writer.close()

    async def evaluate(self, source: Source, tasks: int | None = None) -> Metrics:
        """Play held-out tasks once each; log and return success with its 95% interval."""
        run, env = self.recipe.run, self.recipe.env
        size = await source.size(self.wanted, env.eval_split)
        count = min(size, tasks or run.eval_tasks)
        groups = [
            Group(f"e{self.step:06d}.{place}", self.wanted, f"{env.eval_split}/{place}", place)
            for place in range(count)
        ]
        policy, training = self.policy, self.policy.sampling
        policy.sampling = msgspec.structs.replace(training, temperature=run.eval_temperature, top_p=1.0, top_k=0)
        policy.seed, control, policy.turn_control = 0, policy.turn_control, None
        try:
            wanted, slots = [job for group in groups for job in jobs(group, 1)], self.recipe.sampling.slots
            episodes = [episode async for episode in played_through(policy, wanted, source, slots, self._wait)]
        finally:
            policy.sampling, policy.turn_control = training, control
            # A run that resumes after an evaluation goes on without its keys and values, too.
            policy.engine.reset()
        row = measure([summarise(episode) for episode in episodes])
        metrics = {f"eval_{name}": value for name, value in measures(episodes).items()}
        if row.success is not None:
            metrics |= {"eval_success_low": row.success.low, "eval_success_high": row.success.high}
        writer = EpisodeWriter(self.out / "eval.jsonl")
        try:
            for episode in in_order(episodes):
                writer.write(slim(episode))
        finally:
            writer.close()
        self._log("eval", metrics)
        return {"step": float(self.step), **metrics}

    def _log(self, kind: str, metrics: Metrics) -> None:
        line = {"kind": kind, "step": self.step, "seconds": round(self.seconds, 3), **metrics}
        path = self.out / "metrics.jsonl"
        with naming(path), open(path, "ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.report(kind, {"step": float(self.step), **metrics})

    async def _reachable(self, ask: Callable[[], Any]) -> Any:
        """Ask a server that may not be up yet."""
        while True:
            try:
                return await ask()
            except ServerUnavailable as error:
                await self._wait(0, error.detail)

    async def _wait(self, lost: int, why: str) -> None:
        """Wait for a server that is away; so many episodes are to be played again."""
        self.report("waiting", {"episodes": float(lost), "why": why})
        await asyncio.sleep(WAIT_S)


@functools.lru_cache(4)
def _order(seed: int, epoch: int, size: int) -> Callable[[int], int]:
    """Return a permutation of 0 … size-1, made without listing it where it is long."""
    if size <= 1_000_000:
        order = stable_rng("order", seed, epoch).permutation(size)
        return lambda place: int(order[place])
    return lambda place: int(stable_rng("order", seed, epoch, place).integers(size))


def _hooked(hooks: Sequence[Any], episodes: list[Episode]) -> list[Episode]:
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    return [each for group in groups.values() for each in apply_group_hooks(hooks, group)]
