"""What is to be evaluated: environments, policies, tasks, seeds. A plan fixes every episode of its run."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from ...envs.core import SEED_LIMIT, member_seed, stable_rng
from ...envs.presets import EnvPreset, load_preset, preset_names
from ...envs.registry import is_registered
from ...envs.turn.hooks import make_hooks
from ...envs.turn.prompts import get_style
from ...errors import InvalidRequest, nearest
from ...protocol import Level
from ..policies import (
    ExpertPolicy,
    HostedPolicy,
    HumanPolicy,
    Policy,
    RandomPolicy,
    ReplayPolicy,
    Sampling,
    folders,
)
from ..policies.hosted import DEFAULT_KEY
from ..rollout import Job
from ..sources import Source, Wanted
from .layouts import Layout, check_layouts

ALL = "all"
KINDS = ("random", "expert", "human", "replay", "model", "folder")
Count = Annotated[int, msgspec.Meta(ge=1)]
Spread = Literal["even", "first", "random"]
# What may change between the start of a run and its resumption: where things run, not what is measured.
NOT_IDENTITY = ("summary", "left_out", "tables")
NOT_IDENTITY_OF_POLICY = ("base_url", "api_key_env", "price_input", "price_output", "device")
SAMPLED = ("model", "folder")
"""Kinds that sampling settings are for."""


class EvalEnv(EnvPreset, omit_defaults=True, forbid_unknown_fields=True):
    """One environment of a plan.

    Attributes:
        name: name in tables and reports; the environment's id (or the preset's name) by default.
    """

    name: str = ""


class PolicySpec(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One policy of a plan.

    Attributes:
        kind: "random", "expert", "human", "replay", "model", "folder", or "module:Class" for a policy of your own,
            which is called without arguments.
        name: name in tables and reports; by default the kind, or the model's or folder's name.
        seed: seed of a random policy.
        file: records file of a replay, or a folder of weights or of a training run.
        device: where a folder's policy runs: "cpu", "cuda" or "" for whichever there is.
        player: whose episodes of that file are replayed.
        model: name of a hosted model.
        base_url: its server.
        api_key_env: environment variable with its API key.
        sampling: its sampling settings, instead of the plan's.
        prefix: text its chat template writes before the reply and does not return.
        price_input: price of 1M prompt tokens.
        price_output: price of 1M reply tokens.
    """

    kind: str
    name: str = ""
    seed: int = 0
    file: str = ""
    player: str | None = None
    model: str = ""
    base_url: str | None = None
    api_key_env: str = DEFAULT_KEY
    sampling: Sampling | None = None
    prefix: str = ""
    price_input: float | None = None
    price_output: float | None = None
    device: str = ""

    def build(self, *, concurrency: int = 32, retries: int = 5, timeout: float = 600.0) -> Policy:
        """Make the policy; the arguments are those of a model.

        Raises:
            InvalidRequest: something is missing, or there is no such kind or class.
        """
        if self.kind == "random":
            return RandomPolicy(self.name, seed=self.seed)
        if self.kind == "expert":
            return ExpertPolicy(self.name)
        if self.kind == "human":
            return HumanPolicy(self.name)
        if self.kind == "replay":
            if not self.file:
                raise InvalidRequest("A replay needs a records file.", hint='Name it: file = "…/episodes.jsonl".')
            return ReplayPolicy(self.file, name=self.name, player=self.player)
        if self.kind == "model":
            return self._hosted(concurrency, retries, timeout)
        if self.kind == "folder":
            return folders.loader().load(
                self.file,
                name=self.name,
                sampling=self.sampling or Sampling(),
                device=self.device,
                concurrency=concurrency,
            )
        return self._own()

    def _hosted(self, concurrency: int, retries: int, timeout: float) -> HostedPolicy:
        if not self.model:
            raise InvalidRequest("A policy of kind model needs a model.", hint='Name it: model = "…" or --model.')
        return HostedPolicy(
            self.model,
            name=self.name,
            base_url=self.base_url,
            api_key_env=self.api_key_env,
            sampling=self.sampling,
            prefix=self.prefix,
            price_input=self.price_input,
            price_output=self.price_output,
            concurrency=concurrency,
            retries=retries,
            timeout=timeout,
        )

    def _own(self) -> Policy:
        module, _, cls = self.kind.partition(":")
        if not cls:
            raise InvalidRequest(
                f"No policy {self.kind!r:.60}.",
                hint=nearest(self.kind, KINDS) + ' Or your own: "module:Class", or the folder of a trained one.',
            )
        try:
            policy: Policy = getattr(importlib.import_module(module), cls)()
        except (ImportError, AttributeError) as error:
            raise InvalidRequest(f"Policy {self.kind}: {error}.", hint="Check the module and the class.") from error
        policy.name = self.name
        return policy


class EvalPlan(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A whole evaluation.

    The same plan means the same episodes: tasks, noise seeds and, for scripted policies, actions.

    Attributes:
        envs: environment ids, names of environment presets (``configs/envs``), tables, or "all".
        policies: kinds of policy ("random", "expert") or tables.
        summary: one line for people.
        splits: splits of tasks.
        episodes: tasks per environment and split; a smaller split is taken whole.
        pass_k: attempts at each task; they differ in their noise and in the policy's sampling.
        seeds: how often all of it is played: with ``seed``, ``seed`` + 1 and so on.
        spread: "even": tasks spread over the whole split; "first": its first ones; "random": drawn by the seed.
        seed: seed of the whole evaluation.
        level: "turn" (prompts and completions) or "text" (bare actions).
        config: arguments for every environment, over the preset's own.
        turn: arguments of ``TurnEnv`` for every environment, over the preset's own.
        sampling: sampling settings of every model.
        keep_prompts: keep the prompt of every turn in the records and not only of the first.
        tables: tables to print beside the common one.
    """

    envs: list[str | EvalEnv]
    policies: list[str | PolicySpec] = msgspec.field(default_factory=list)
    summary: str = ""
    splits: list[str] = msgspec.field(default_factory=lambda: ["test"])
    episodes: Count = 256
    pass_k: Count = 1
    seeds: Count = 1
    spread: Spread = "even"
    seed: Annotated[int, msgspec.Meta(ge=0, lt=SEED_LIMIT)] = 0
    level: Level = "turn"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    turn: dict[str, Any] = msgspec.field(default_factory=dict)
    sampling: Sampling = Sampling()
    keep_prompts: bool = False
    tables: list[Layout] = msgspec.field(default_factory=list)


class ResolvedPlan(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A plan in which every name, preset and default has been filled in; fields as in :class:`EvalPlan`.

    Attributes:
        sizes: environment name -> split -> number of tasks played.
        left_out: environments that "all" would have named: id -> what is missing and how to get it.
    """

    envs: list[EvalEnv]
    policies: list[PolicySpec]
    splits: list[str]
    episodes: int
    pass_k: int
    spread: Spread
    seed: int
    level: Level
    keep_prompts: bool
    sizes: dict[str, dict[str, int]]
    summary: str = ""
    tasks: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    seeds: int = 1
    tables: list[Layout] = msgspec.field(default_factory=list)
    left_out: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of episodes."""
        tasks = sum(played for splits in self.sizes.values() for played in splits.values())
        return tasks * self.pass_k * self.seeds * len(self.policies)

    def identity(self) -> dict[str, Any]:
        """Return what must be equal for two runs to be one: all but names of servers and prices."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        for name in NOT_IDENTITY:
            data.pop(name, None)
        for policy in data["policies"]:
            for name in NOT_IDENTITY_OF_POLICY:
                policy.pop(name, None)
        return data

    def jobs(self) -> Iterator[Job]:
        """Yield every episode. Attempts and policies of one task follow each other, so that a part is comparable.

        Attempts are numbered through all seeds: attempt // pass_k is the number of the seed.
        """
        for env in self.envs:
            wanted = Wanted(env.env, env.config, self.level, env.turn if self.level == "turn" else {})
            for split in self.splits:
                for number in range(self.seeds):
                    key = (self.seed + number, env.env, split)
                    sizes = self.tasks[env.name][split], self.sizes[env.name][split]
                    for index in chosen(*sizes, self.spread, key):
                        yield from self._attempts(env.name, wanted, f"{split}/{index}", number)

    def _attempts(self, name: str, wanted: Wanted, task: str, number: int) -> Iterator[Job]:
        noise = int(stable_rng("evaluation", self.seed + number, wanted.env, task).integers(SEED_LIMIT))
        for member in range(self.pass_k):
            attempt = number * self.pass_k + member
            for policy in self.policies:
                yield Job(
                    id=f"{policy.name}:{name}:{task}:{attempt}",
                    wanted=wanted,
                    task=task,
                    seed=member_seed(noise, member),
                    attempt=attempt,
                    group=f"{name}:{task}",
                    policy=policy.name,
                )


def chosen(size: int, count: int, spread: Spread, key: tuple[str | int, ...] = ()) -> Sequence[int]:
    """Return ``count`` task indices of a split of ``size`` tasks; ``key`` decides which, where they are drawn."""
    if spread == "first":
        return range(count)
    if spread == "random":
        drawn: list[int] = stable_rng("tasks", *key).choice(size, count, replace=False).tolist()
        return sorted(drawn)
    return [number * size // count for number in range(count)]


async def resolve(plan: EvalPlan, source: Source, ready: Collection[str] = ()) -> ResolvedPlan:
    """Fill in a plan, and check it against the environments.

    Args:
        plan: what to evaluate.
        source: where the environments are.
        ready: names of policies that need not be made; whatever else looks like a path is one.

    Raises:
        InvalidRequest, UnknownEnvironment, UnknownTask: something in the plan does not exist or does not fit.
    """
    if not plan.policies:
        raise InvalidRequest("No policy is named.", hint="Give --policy expert, or --model NAME --base-url URL.")
    envs: list[EvalEnv] = []
    left_out = await source.lacking() if ALL in plan.envs else {}
    for item in plan.envs:
        names = [name for name in await source.envs() if name not in left_out] if item == ALL else [item]
        envs += [await _environment(name, plan, source) for name in names]
    policies = [_policy(item, plan, ready) for item in plan.policies]
    if plan.level == "text" and any(policy.kind in SAMPLED for policy in policies):
        raise InvalidRequest("A model needs prompts, which the text level has not.", hint="Use the turn level.")
    check_layouts(plan.tables)
    _unique("environment", [env.name for env in envs])
    _unique("policy", [policy.name for policy in policies])
    _unique("split", plan.splits)
    tasks: dict[str, dict[str, int]] = {}
    for env in envs:
        wanted = Wanted(env.env, env.config, plan.level, env.turn if plan.level == "turn" else {})
        tasks[env.name] = {split: await source.size(wanted, split) for split in plan.splits}
    return ResolvedPlan(
        envs=envs,
        policies=policies,
        splits=plan.splits,
        episodes=plan.episodes,
        pass_k=plan.pass_k,
        seeds=plan.seeds,
        tables=plan.tables,
        spread=plan.spread,
        seed=plan.seed,
        level=plan.level,
        keep_prompts=plan.keep_prompts,
        summary=plan.summary,
        left_out=left_out,
        tasks=tasks,
        sizes={name: {s: min(size, plan.episodes) for s, size in by.items()} for name, by in tasks.items()},
    )


async def _environment(item: str | EvalEnv, plan: EvalPlan, source: Source) -> EvalEnv:
    if isinstance(item, EvalEnv):
        env = item
    elif item in preset_names() and not is_registered(item):
        preset = load_preset(item)
        env = EvalEnv(preset.env, preset.summary, preset.config, preset.turn, name=item)
    elif is_registered(item) or item in await source.envs():
        env = EvalEnv(item)
    else:
        hint = nearest(item, [*await source.envs(), *preset_names(), ALL])
        raise InvalidRequest(f"No environment or environment preset {item!r:.60}.", hint=hint)
    turn: dict[str, Any] = {}
    if plan.level == "turn":
        turn = {"style": await source.style(env.env), **env.turn, **plan.turn}
        get_style(str(turn["style"]))
        _check_hooks(turn, plan.pass_k)
    elif plan.turn:
        raise InvalidRequest("The text level has no turn settings.", hint='Leave them out, or use level "turn".')
    return EvalEnv(env.env, env.summary, {**env.config, **plan.config}, turn, name=env.name or env.env)


def _check_hooks(turn: dict[str, Any], pass_k: int) -> None:
    for hook in make_hooks(turn.get("hooks", {})):
        if hook.of_groups() and pass_k < 2:
            raise InvalidRequest(
                f"The reward hook {hook.name} compares the attempts at a task, and there is one of each.",
                hint="Give --pass-k 2 or more, or leave the hook out.",
            )


def _policy(item: str | PolicySpec, plan: EvalPlan, ready: Collection[str]) -> PolicySpec:
    spec = item if isinstance(item, PolicySpec) else PolicySpec(item)
    if spec.kind not in KINDS and spec.kind not in ready and folders.is_path(spec.kind):
        spec = msgspec.structs.replace(spec, kind="folder", file=spec.kind)
    if spec.kind == "folder":
        # A run that goes on has another newest checkpoint tomorrow, which is another policy.
        file = folders.loader().locate(os.path.expanduser(spec.file))
        spec = msgspec.structs.replace(spec, file=file, name=spec.name or folders.label(file))
    name = spec.name or spec.model or spec.kind.rpartition(":")[2]
    sampling = (spec.sampling or plan.sampling) if spec.kind in SAMPLED else None
    return msgspec.structs.replace(spec, name=name, sampling=sampling)


def _unique(what: str, names: list[str]) -> None:
    if not names:
        raise InvalidRequest(f"No {what} is named.", hint=f"Name at least one {what}.")
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"Two of the {what} names are {name!r}.", hint="Give each a name of its own.")


def folder_name(plan: ResolvedPlan) -> str:
    """Return a name for the run's folder: equal for equal plans, so that the same command resumes its run."""
    data = msgspec.json.encode(plan.identity(), order="sorted")
    words = [_short([env.name for env in plan.envs]), _short([policy.name for policy in plan.policies])]
    return "-".join([*words, hashlib.blake2b(data, digest_size=4).hexdigest()])


def _short(names: list[str]) -> str:
    text = "+".join(name.rpartition("/")[2] for name in names[:3]) + (f"+{len(names) - 3}" if len(names) > 3 else "")
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text)[:60]


def label_of(group: str, env: str) -> str:
    """Return the environment's name in its plan from an episode's group, or its id where there is none."""
    return group.rpartition(":")[0] or env
