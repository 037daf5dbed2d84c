"""Recipes: TOML files that name a training method's parts, its environment and its numbers.

``configs/train/*.toml`` ship with the package, one for each paper and environment; a path to a file of one's own works
wherever a name does. A table that names a part holds its id and its settings:

    [credit]
    id = "gigpo"
    omega = 1.0

Everything is checked when a recipe is read: unknown names, values out of range, and parts that do not fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isfinite
from typing import Any, Literal

import msgspec

from ..client.policies.hosted import DEFAULT_KEY, Sampling
from ..envs.core import SEED_LIMIT
from ..envs.presets import EnvPreset, config_names, load_preset, read_config
from ..envs.registry import get_spec, is_registered
from ..envs.turn.prompts import get_style
from ..errors import InvalidRequest
from .algorithms import entropy, importance, kl, parts, value_loss
from .algorithms.aggregate import Mode
from .algorithms.parts import Part, require

Table = dict[str, Any]


class EnvTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the policy acts.

    Attributes:
        preset: name of an environment preset (``configs/envs``), or a path.
        split: tasks to train on.
        eval_split: held-out tasks.
        config: settings of the environment that differ from the preset's.
        turn: settings of the turn level that differ from the preset's.
    """

    preset: str
    split: str = "train"
    eval_split: str = "test"
    config: Table = msgspec.field(default_factory=dict)
    turn: Table = msgspec.field(default_factory=dict)

    def load(self) -> EnvPreset:
        """Return the preset with these settings in it."""
        preset = load_preset(self.preset)
        preset.config |= self.config
        preset.turn |= self.turn
        return preset


class NewPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A small policy with random weights and the environment's own words (``turngym policy new``).

    Attributes:
        size: tiny, small, medium or large.
        vocabulary: tokens at most.
        length: positions of the model.
        episodes: training episodes from which the words are learnt.
    """

    size: Literal["tiny", "small", "medium", "large"] = "tiny"
    vocabulary: int = 640
    length: int = 512
    episodes: int = 200

    def __post_init__(self) -> None:
        for name in ("vocabulary", "length", "episodes"):
            require(getattr(self, name) >= 1, f"model.new.{name} must be at least 1")


class ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The policy.

    Attributes:
        path: folder or hub name of a Hugging Face causal LM.
        new: makes one in the run's folder where no path is given, with the run's seed.
        dtype: of the weights.
        lora: settings of peft's ``LoraConfig``; None trains all weights.
        gradient_checkpointing: recompute activations.
    """

    path: str = ""
    new: NewPolicy | None = None
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    lora: Table | None = None
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        rank = (self.lora or {}).get("r", 1)
        require(isinstance(rank, int) and rank >= 1, "model.lora.r must be a whole number of at least 1")


class TeacherTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A hosted model that helps a supervised start; named as in evaluation plans.

    Attributes:
        base_url: address of an OpenAI-compatible chat API, for example "http://127.0.0.1:8000/v1".
        model: the model's name there.
        api_key_env: environment variable that holds the API key; the default may be unset.
        sampling: temperature, max_tokens and the like (``client/policies/hosted.py``).
        concurrency: most calls in flight.
        retries: how often a call that failed is repeated.
        attempts: answers that are asked for in one turn before rules stand in.
    """

    base_url: str
    model: str
    api_key_env: str = DEFAULT_KEY
    sampling: Sampling = Sampling()
    concurrency: int = 16
    retries: int = 5
    attempts: int = 3

    def __post_init__(self) -> None:
        address = self.base_url.startswith(("http://", "https://"))
        require(address, "start.teacher.base_url must begin with http:// or https://")
        require(bool(self.model), "start.teacher.model must name a model")
        require(self.concurrency >= 1, "start.teacher.concurrency must be at least 1")
        require(self.retries >= 0, "start.teacher.retries must not be negative")
        require(self.attempts >= 1, "start.teacher.attempts must be at least 1")
        sampling = self.sampling
        require(sampling.max_tokens >= 0, "start.teacher.sampling.max_tokens must not be negative")
        heat = sampling.temperature
        require(heat is None or 0 <= heat < inf, "start.teacher.sampling.temperature must be finite and not negative")
        nucleus = sampling.top_p
        require(nucleus is None or 0 < nucleus <= 1, "start.teacher.sampling.top_p must lie in (0, 1]")


class StartTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Supervised start before RL (RFT in T2PO, cold start in RLVMR).

    Attributes:
        policy: who plays the episodes: "self" the model as it is, "expert" the environment's expert, "teacher" the
            hosted model.
        noise: share of turns in which the expert does something at random.
        episodes: how many are played.
        threshold: episodes whose score is greater are kept.
        tags: who writes the expert's thoughts, with meta-reasoning tags where the style has them (RLVMR): "rules",
            "teacher" the hosted model, or "" for a plain statement of its moves.
        teacher: the hosted model.
        epochs: passes over the kept turns.
        batch: rows of a step.
        learning_rate: of AdamW.
        prompts: weight of the mean loss over the prompts' tokens beside that over the replies'. A policy with random
            weights learns the world's words, and to copy them, far sooner with 1 than from the replies alone (0).
    """

    policy: Literal["self", "expert", "teacher"] = "self"
    noise: float = 0.0
    episodes: int = 512
    threshold: float = 0.9
    tags: Literal["", "rules", "teacher"] = ""
    teacher: TeacherTable | None = None
    epochs: int = 5
    batch: int = 32
    learning_rate: float = 1e-5
    prompts: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.noise <= 1, "start.noise must lie in [0, 1]")
        for name in ("episodes", "epochs", "batch"):
            require(getattr(self, name) >= 1, f"start.{name} must be at least 1")
        require(0 < self.learning_rate < inf, "start.learning_rate must be finite and greater than 0")
        require(isfinite(self.threshold), "start.threshold must be finite")
        require(0 <= self.prompts < inf, "start.prompts must be finite and not negative")
        expert = not self.tags or self.policy == "expert"
        require(expert, 'start.tags says who writes the thoughts of an expert: set start.policy = "expert"')
        asked, there = "teacher" in (self.policy, self.tags), self.teacher is not None
        require(there or not asked, "a teacher needs a table [start.teacher] with its base_url and model")
        unused = 'nobody asks [start.teacher]: set start.tags = "teacher" or start.policy = "teacher"'
        require(asked or not there, unused)


class SamplingTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How turns are generated.

    Attributes:
        tasks: tasks of a step; a rollout's group is sampled for each.
        rows: a training row holds one "turn", or a whole "trajectory".
        max_tokens: tokens of a reply.
        max_prompt_tokens: tokens of a prompt.
        temperature: of the policy while training.
        top_p: nucleus.
        top_k: most likely tokens kept; 0 for all.
        slots: replies generated at a time.
    """

    tasks: int = 16
    rows: Literal["turn", "trajectory"] = "turn"
    max_tokens: int = 512
    max_prompt_tokens: int = 4096
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    slots: int = 64

    def __post_init__(self) -> None:
        for name in ("tasks", "max_tokens", "max_prompt_tokens", "slots"):
            require(getattr(self, name) >= 1, f"sampling.{name} must be at least 1")
        require(0 <= self.temperature < inf, "sampling.temperature must be finite and not negative")
        require(0 < self.top_p <= 1, "sampling.top_p must lie in (0, 1]")
        require(self.top_k >= 0, "sampling.top_k must not be negative; 0 keeps all tokens")


class CriticTable(value_loss.Config, frozen=True):
    """The critic: a value head on the policy's last hidden state (PPO).

    Attributes:
        clip: see ``algorithms/value_loss.py``.
        coefficient: of its loss.
        learning_rate: of the head.
    """

    learning_rate: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.learning_rate < inf, "critic.learning_rate must be finite and greater than 0")


class UpdateTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the policy is updated.

    Attributes:
        aggregation: from token losses to the loss; "" takes the loss part's own.
        mini_batch: rows of one optimizer step; 0 takes all rows of the step.
        micro_tokens: padded tokens of one forward pass; memory only, the loss does not depend on it.
        epochs: passes over a step's rows.
        learning_rate: of AdamW.
        warmup: share of the training steps in which the rate rises from 0.
        weight_decay: of AdamW.
        grad_clip: greatest norm of the gradient; None (in a recipe: inf) for no limit.
        betas: of AdamW.
        old_logprobs: "recomputed" by the trainer before the update, or as "sampled".
    """

    aggregation: Mode | Literal[""] = ""
    mini_batch: int = 0
    micro_tokens: int = 16_384
    epochs: int = 1
    learning_rate: float = 1e-6
    warmup: float = 0.0
    weight_decay: float = 0.01
    grad_clip: float | None = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    old_logprobs: Literal["recomputed", "sampled"] = "recomputed"

    def __post_init__(self) -> None:
        require(self.mini_batch >= 0, "update.mini_batch must not be negative; 0 takes all rows")
        for name in ("micro_tokens", "epochs"):
            require(getattr(self, name) >= 1, f"update.{name} must be at least 1")
        require(0 < self.learning_rate < inf, "update.learning_rate must be finite and greater than 0")
        require(0 <= self.warmup <= 1, "update.warmup must lie in [0, 1]")
        require(0 <= self.weight_decay < inf, "update.weight_decay must be finite and not negative")
        clip = self.grad_clip
        require(clip is None or clip > 0, "update.grad_clip must be greater than 0; inf is no limit")
        require(all(0 <= beta < 1 for beta in self.betas), "update.betas must lie in [0, 1)")


class RunTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long, and how it is watched.

    Attributes:
        steps: updates of the rollout policy; 0 makes the start and evaluates it.
        minutes: greatest wall-clock time of training; 0 for no limit.
        tokens: ends after the step in which so many tokens have been sampled in training; 0 for no limit.
        seed: of everything.
        eval_every: steps between evaluations; 0 evaluates at the end only.
        eval_tasks: held-out tasks of an evaluation.
        eval_temperature: of the policy while it is evaluated.
        save_every: steps between checkpoints.
        deterministic: in process, in a fixed order: a resumed run continues bitwise.
    """

    steps: int = 200
    minutes: float = 0.0
    tokens: int = 0
    seed: int = 0
    eval_every: int = 10
    eval_tasks: int = 256
    eval_temperature: float = 0.4
    save_every: int = 10
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "eval_every"):
            require(getattr(self, name) >= 0, f"run.{name} must not be negative")
        for name in ("eval_tasks", "save_every"):
            require(getattr(self, name) >= 1, f"run.{name} must be at least 1")
        require(0 <= self.minutes < inf, "run.minutes must be finite and not negative; 0 is no limit")
        require(0 <= self.seed < SEED_LIMIT, "run.seed must lie in [0, 2**53)")
        require(0 <= self.eval_temperature < inf, "run.eval_temperature must be finite and not negative")


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training method on an environment.

    Attributes:
        summary: one line: whose setting this is, and where it departs from it.
        env: environment.
        model: policy.
        start: supervised start; None for none.
        rollout: part of kind "rollout".
        sampling: generation.
        signal: part of kind "signals", the uncertainty that the controls read.
        token_control: part of kind "token_control".
        turn_control: part of kind "turn_control".
        filters: parts of kind "filters", applied in order.
        rewards: parts of kind "rewards", applied in order before credit is assigned.
        credit: part of kind "credit".
        shaping: parts of kind "shaping", applied in order to the advantages.
        loss: part of kind "losses".
        kl: penalty for leaving the reference policy; with coefficient 0 none is kept.
        entropy: bonus.
        importance: correction between the engine's and the trainer's probabilities; None for none.
        critic: value head; None for none.
        update: optimizer.
        run: length and watching.
    """

    env: EnvTable
    credit: Table
    summary: str = ""
    model: ModelTable = ModelTable()
    start: StartTable | None = None
    rollout: Table = msgspec.field(default_factory=lambda: {"id": "chains"})
    sampling: SamplingTable = SamplingTable()
    signal: Table | None = None
    token_control: Table | None = None
    turn_control: Table | None = None
    filters: list[Table] = []
    rewards: list[Table] = []
    shaping: list[Table] = []
    loss: Table = msgspec.field(default_factory=lambda: {"id": "ppo"})
    kl: kl.Config = kl.Config()
    entropy: entropy.Config = entropy.Config()
    importance: importance.Config | None = None
    critic: CriticTable | None = None
    update: UpdateTable = UpdateTable()
    run: RunTable = RunTable()

    def parts(self) -> Method:
        """Load every part.

        Raises:
            InvalidRequest: no such part or setting, a value out of range, or parts that do not fit together.
        """
        method = Method(
            rollout=_part("rollout", self.rollout),
            credit=_part("credit", self.credit),
            loss=_part("losses", self.loss),
            signal=_part("signals", self.signal) if self.signal is not None else None,
            token_control=_part("token_control", self.token_control) if self.token_control is not None else None,
            turn_control=_part("turn_control", self.turn_control) if self.turn_control is not None else None,
            filters=tuple(_part("filters", each) for each in self.filters),
            rewards=tuple(_part("rewards", each) for each in self.rewards),
            shaping=tuple(_part("shaping", each) for each in self.shaping),
        )
        for complaint in _contradictions(self, method):
            raise InvalidRequest(complaint, hint="Correct the recipe.")
        return method


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded parts of a recipe; see :class:`Recipe` for what each does."""

    rollout: Part
    credit: Part
    loss: Part
    signal: Part | None = None
    token_control: Part | None = None
    turn_control: Part | None = None
    filters: tuple[Part, ...] = ()
    rewards: tuple[Part, ...] = ()
    shaping: tuple[Part, ...] = ()

    def __iter__(self) -> Iterator[Part]:
        singles = (self.rollout, self.signal, self.token_control, self.turn_control, self.credit, self.loss)
        return (part for part in (*singles, *self.filters, *self.rewards, *self.shaping) if part is not None)


def _part(kind: str, table: Mapping[str, Any]) -> Part:
    settings = dict(table)
    if "id" not in settings:
        raise InvalidRequest(f"A part of kind {kind} has no id.", hint=f"One of: {', '.join(parts.ids(kind))}.")
    return parts.load(kind, settings.pop("id"), settings)


def _contradictions(recipe: Recipe, method: Method) -> Iterator[str]:
    """Yield what in a recipe does not fit together; what a part needs stands in its module's ``REQUIRES``."""
    given = {
        "turn rows": recipe.sampling.rows == "turn",
        "trajectory rows": recipe.sampling.rows == "trajectory",
        "tree": method.rollout.id != "chains",
        "critic": recipe.critic is not None,
        "signal": method.signal is not None,
    }
    advice = {
        "turn rows": 'set sampling.rows = "turn"',
        "trajectory rows": 'set sampling.rows = "trajectory"',
        "tree": "choose a rollout that grows a tree",
        "critic": "add a [critic] table",
        "signal": "add a [signal] table",
    }
    for part in method:
        for need in getattr(part.module, "REQUIRES", ()):
            if not given[need]:
                yield f"{part.kind} {part.id} needs {need}: {advice[need]}."
    if recipe.sampling.rows == "trajectory" and not _grows(recipe.env.load()):
        yield (
            'sampling.rows = "trajectory" needs prompts that go on from the turn before, and those of '
            f'{recipe.env.preset} are made anew: set sampling.rows = "turn", or a style that keeps the whole '
            'conversation (env.turn.style = "think-answer", env.turn.memory = -1).'
        )
    budget = getattr(method.token_control and method.token_control.config, "budget", None)
    if budget is not None and budget >= recipe.sampling.max_tokens:
        yield (
            f"The thinking budget ({budget}) can never bind: a reply ends at sampling.max_tokens "
            f"({recipe.sampling.max_tokens})."
        )
    if recipe.update.old_logprobs == "sampled" and recipe.importance is not None:
        yield "[importance] corrects recomputed log-probabilities, and update.old_logprobs are taken as sampled."


def _grows(preset: EnvPreset) -> bool:
    """Return whether prompts may go on from one another; of an environment that only a hub knows they may."""
    turn = preset.turn
    if "style" not in turn and not is_registered(preset.env):
        return True
    style = get_style(turn["style"] if "style" in turn else get_spec(preset.env).style)
    memory = style.memory if turn.get("memory") is None else turn["memory"]
    kept = memory if isinstance(memory, int) and memory >= 0 else inf
    limits = (turn.get("max_turns"), preset.config.get("max_steps"))
    turns = min((limit for limit in limits if isinstance(limit, int)), default=inf)
    return turns <= 1 + (kept if style.mode == "chat" else 0)


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes."""
    return config_names("train")


def recipe_of(data: Mapping[str, Any], what: str, hint: str) -> Recipe:
    """Return the recipe of some tables, checked with all its parts; None stands for a table that is not there.

    Raises:
        InvalidRequest: a setting is unknown or does not fit; the message begins with ``what``.
    """
    try:
        made = msgspec.convert({key: value for key, value in data.items() if value is not None}, Recipe)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{what}: {error}.", hint=hint) from error
    made.parts()
    return made


def load_recipe(name: str) -> Recipe:
    """Return the recipe of that name or path, checked with all its parts and its environment preset.

    Raises:
        InvalidRequest: no such recipe, or something in it is wrong; the message names it.
    """
    recipe = read_config("train", name, Recipe)
    load_preset(recipe.env.preset)
    recipe.parts()
    return recipe
