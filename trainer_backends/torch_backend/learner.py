"""The update: forward passes over training rows, losses from the recipe's parts, optimizer steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import TurngymError
from ..algorithms.aggregate import Mode, Totals, aggregate
from ..algorithms.entropy import entropy_and_logprobs, entropy_bonus
from ..algorithms.importance import correct
from ..algorithms.kl import kl
from ..algorithms.parts import Part
from ..algorithms.rows import Rows
from ..algorithms.tensors import masked_mean
from ..algorithms.value_loss import value_loss
from ..recipes import Recipe
from .batch import MicroBatch, Sample, micro_batches
from .decoder import base_of, supported
from .optimizer import Optimizer
from .packing import Pack, cost_ratio, found, lay_out, mask_of, padded

MASKED = ("sdpa", "eager")
"""Implementations of attention that take a mask of one's own."""


class Diverged(TurngymError):
    """The loss or the gradient is no finite number."""

    code, status, title = "DIVERGED", 500, "Training diverged"


class Passed:
    """What one forward pass gives for the sampled tokens of some rows.

    Attributes:
        logprobs_BT: of the sampled tokens at the sampling temperature.
        entropies_BT: of the distributions at that temperature.
        values_BT: the critic's, None without one.
    """

    def __init__(self, logprobs_BT: Tensor, entropies_BT: Tensor, values_BT: Tensor | None) -> None:
        self.logprobs_BT = logprobs_BT
        self.entropies_BT = entropies_BT
        self.values_BT = values_BT


class Learner:
    """A policy's weights, its critic's, and their optimizer.

    Args:
        model: a Hugging Face causal LM.
        recipe: numbers of the update.
        loss: the policy loss.
        reference: frozen copy for the KL penalty, None without one.
    """

    def __init__(self, model: Any, recipe: Recipe, loss: Part, reference: Any = None) -> None:
        self.model = model
        self.recipe = recipe
        self.loss = loss
        self.reference = reference
        self.head: nn.Linear | None = None
        if recipe.critic is not None:
            self.head = nn.Linear(model.config.hidden_size, 1).to(self.device)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        base = base_of(model)
        packs = supported(model) and base.config._attn_implementation in MASKED
        self.ratio = cost_ratio(base.model) if packs else 0.0
        self.optimizer = Optimizer(self._groups(), betas=recipe.update.betas)
        self.updates = 0

    def _groups(self) -> list[dict[str, Any]]:
        update = self.recipe.update
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # Norms and biases are not decayed.
        groups: list[dict[str, Any]] = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": update.weight_decay},
            {"params": [p for p in trained if p.ndim < 2]},
        ]
        for group in groups:
            group["lr"] = update.learning_rate
        if self.head is not None and self.recipe.critic is not None:
            rate = self.recipe.critic.learning_rate
            groups.append({"params": list(self.head.parameters()), "lr": rate})
        return groups

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    # Forward ---------------------------------------------------------------------------------------

    def batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        """Yield the rows in parts that :meth:`run` can take at a time."""
        return micro_batches(samples, self.recipe.update.micro_tokens, self.ratio)

    def run(self, samples: Sequence[Sample], batch: MicroBatch | None = None, model: Any = None) -> Passed:
        """Compute log-probabilities, entropies and values of sampled tokens.

        Args:
            samples: rows.
            batch: those of them that are computed, see :meth:`batches`; None for all, in their order.
            model: the policy's if None.
        """
        if batch is None:
            numbers = list(range(len(samples)))
            batch = MicroBatch(numbers, lay_out([sample.ids for sample in samples], self.ratio, sys.maxsize))
        chosen = {number: samples[number] for number in batch.rows}
        # The distribution of a token stands one place before it.
        packs, nodes, before = found(batch.packs, {number: sample.places for number, sample in chosen.items()})
        # Rows share sampled tokens too: each is computed once.
        width = max(pack.size for pack in batch.packs)
        _, once, which = np.unique(packs * width + nodes, return_index=True, return_inverse=True)
        where = tuple(torch.from_numpy(each[once]).to(self.device) for each in (packs, before))
        hidden, logits = self._states(self.model if model is None else model, batch.packs, where)
        ids = np.concatenate([np.asarray(sample.ids)[sample.places] for sample in chosen.values()])[once]
        temperature = self.recipe.sampling.temperature or 1.0
        entropies, logprobs = entropy_and_logprobs(logits, torch.from_numpy(ids).to(self.device), temperature)
        values = None if self.head is None or hidden is None else self.head(hidden.float()).squeeze(-1)

        counts = [len(sample.places) for sample in chosen.values()]
        row = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(self.device)
        column = torch.from_numpy(np.concatenate([np.arange(count) for count in counts])).to(self.device)
        each = torch.from_numpy(which.ravel()).to(self.device)

        def spread(flat: Tensor) -> Tensor:
            return flat.new_zeros(len(counts), max(counts)).index_put((row, column), flat[each])

        return Passed(spread(logprobs), spread(entropies), None if values is None else spread(values))

    def _states(self, model: Any, packs: Sequence[Pack], where: tuple[Tensor, ...]) -> tuple[Tensor | None, Tensor]:
        """Return hidden states, where the critic needs them, and logits at some (packs, nodes) only."""
        ids, positions, ends = padded(packs)
        ids = ids.to(self.device)
        if supported(model):
            base = base_of(model)
            # Without branches no mask: no token looks at the padding after its row, and attention skips half.
            mask = None if ends is None else mask_of(ends.to(self.device), base.dtype)
            positions = None if positions is None else positions.to(self.device)
            out = base.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
            hidden = out.last_hidden_state[where]
            return hidden, base.lm_head(hidden)
        known = torch.arange(ids.shape[1]) < torch.tensor([pack.size for pack in packs]).unsqueeze(-1)
        # Other families may do something to their logits that only their own forward knows.
        out = model(
            input_ids=ids,
            attention_mask=known.long().to(self.device),
            use_cache=False,
            output_hidden_states=self.head is not None,
        )
        return (None if self.head is None else out.hidden_states[-1][where]), out.logits[where]

    @torch.no_grad()
    def measure(self, samples: Sequence[Sample], rows: Rows) -> Rows:
        """Return the rows with old log-probabilities, entropies, values and the reference's log-probabilities."""
        sampled = self.recipe.update.old_logprobs == "sampled"
        whole = self.recipe.sampling.top_p == 1 and self.recipe.sampling.top_k == 0
        if sampled and whole and rows.entropies_BT is not None and self.head is None and self.reference is None:
            # The engine drew from the very distributions that would be computed here.
            return replace(rows, old_logprobs_BT=rows.need("rollout_logprobs_BT", "update"))
        shape = rows.loss_mask_BT.shape
        names = ["old_logprobs_BT", "entropies_BT"]
        names += ["values_BT"] if self.head is not None else []
        names += ["ref_logprobs_BT"] if self.reference is not None else []
        measured: dict[str, Any] = {name: torch.zeros(shape) for name in names}
        self.model.eval()
        for batch in self.batches(samples):
            passed = self.run(samples, batch)
            width = passed.logprobs_BT.shape[1]
            index = torch.tensor(batch.rows)
            measured["old_logprobs_BT"][index, :width] = passed.logprobs_BT.cpu()
            measured["entropies_BT"][index, :width] = passed.entropies_BT.cpu()
            if passed.values_BT is not None:
                measured["values_BT"][index, :width] = passed.values_BT.cpu()
            if self.reference is not None:
                logprobs = self.run(samples, batch, self.reference).logprobs_BT
                measured["ref_logprobs_BT"][index, :width] = logprobs.cpu()
        if sampled:
            measured["old_logprobs_BT"] = rows.need("rollout_logprobs_BT", "update")
        return replace(rows, **measured)

    # Update ----------------------------------------------------------------------------------------

    def update(
        self,
        samples: Sequence[Sample],
        rows: Rows,
        advantages_BT: Tensor,
        returns_BT: Tensor | None,
        rng: Any,
        step: int = 0,
    ) -> Iterator[dict[str, float]]:
        """Take optimizer steps over the rows; yield the metrics of each.

        Args:
            samples: the rows' tokens.
            rows: their tensors, measured.
            advantages_BT: what credit and shaping gave.
            returns_BT: the critic's targets.
            rng: ``numpy`` generator of the order of rows.
            step: training steps before this one.

        Raises:
            Diverged: a loss or gradient is not finite, the weights are as before that step; or the weights are not.
        """
        update, rate = self.recipe.update, self.rate(step)
        counted = set(rows.counted_B.nonzero().squeeze(-1).tolist())
        units = _units(samples, counted, whole=rows.token_weights_BT is not None)
        for _ in range(update.epochs):
            batch: list[int] = []
            for place in rng.permutation(len(units)):
                batch += units[place]
                if update.mini_batch and len(batch) >= update.mini_batch:
                    yield self._step(samples, rows, advantages_BT, returns_BT, batch, rate)
                    batch = []
            if batch:
                yield self._step(samples, rows, advantages_BT, returns_BT, batch, rate)

    def _step(
        self,
        samples: Sequence[Sample],
        rows: Rows,
        advantages: Tensor,
        returns: Tensor | None,
        batch: Sequence[int],
        rate: float,
    ) -> dict[str, float]:
        self.model.train()
        weights = rows.token_weights_BT
        index = torch.tensor(list(batch))
        totals = Totals.of(rows.loss_mask_BT[index], None if weights is None else weights[index])
        if weights is not None:
            # Weighted rows stand for the leaves that they are part of.
            totals = replace(totals, rows=float(sum(samples[number].leaf for number in batch)))
        sums: dict[str, float] = {}
        self.optimizer.zero_grad()
        chosen = [samples[number] for number in batch]
        for micro in self.batches(chosen):
            numbers = [batch[place] for place in micro.rows]
            part = _part(rows, numbers, max(len(samples[number].places) for number in numbers), self.device)
            width = part.loss_mask_BT.shape[1]
            at = torch.tensor(numbers)
            loss, metrics = self._loss(
                self.run(chosen, micro),
                part,
                advantages[at, :width].to(self.device),
                None if returns is None else returns[at, :width].to(self.device),
                totals,
            )
            self._check(loss, numbers)
            self.optimizer.backward(loss)
            share = float(part.loss_mask_BT.sum()) / max(1.0, float(rows.loss_mask_BT[index].sum()))
            for name, value in metrics.items():
                # Losses add up over micro-batches, means are weighted by their tokens.
                sums[name] = sums.get(name, 0.0) + float(value) * (1.0 if name.endswith("loss") else share)
        most = self.recipe.update.grad_clip
        norm = self.optimizer.clip(inf if most is None else most)
        self._check(norm, batch)
        self.optimizer.step(rate)
        self._check(nn.utils.get_total_norm(self.optimizer.params), batch, "The weights' norm")
        self.updates += 1
        return {**sums, "gradient_norm": float(norm), "learning_rate": rate * self.recipe.update.learning_rate}

    def rate(self, step: int) -> float:
        """Return the learning rate's factor in a training step: it rises during the warm-up, then stays."""
        steps = self.recipe.update.warmup * self.recipe.run.steps
        return min(1.0, (step + 1) / steps) if steps > 1 else 1.0

    def _loss(
        self, passed: Passed, rows: Rows, advantages: Tensor, returns: Tensor | None, totals: Totals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        recipe, mask = self.recipe, rows.loss_mask_BT
        rows = replace(rows, logprobs_BT=passed.logprobs_BT)

        default: Mode = getattr(self.loss.module, "AGGREGATION", "token-mean")
        mode = default if recipe.update.aggregation == "" else recipe.update.aggregation
        if rows.token_weights_BT is not None:
            mode = "seq-mean-token-sum"  # the weights hold the mean over a leaf's tokens

        def total(loss_BT: Tensor) -> Tensor:
            return aggregate(loss_BT, mask, mode, totals=totals, token_weights_BT=rows.token_weights_BT)

        policy = self.loss(rows, advantages)
        loss_BT, metrics = policy.loss_BT, dict(policy.metrics)
        if recipe.importance is not None:
            old, sampled = rows.need("old_logprobs_BT", "importance"), rows.need("rollout_logprobs_BT", "importance")
            correction = correct(old, sampled, mask, recipe.importance)
            loss_BT = loss_BT * correction.weights_BT
            metrics |= correction.metrics
        metrics["policy_loss"] = total(loss_BT).detach()
        metrics["entropy"] = masked_mean(passed.entropies_BT.detach(), mask)
        loss = total(loss_BT + entropy_bonus(passed.entropies_BT, recipe.entropy.coefficient))
        if self.reference is not None:
            distance = kl(passed.logprobs_BT, rows.need("ref_logprobs_BT", "kl"), recipe.kl.estimator)
            metrics["kl"] = masked_mean(distance.detach(), mask)
            loss = loss + recipe.kl.coefficient * total(distance)
        if passed.values_BT is not None and returns is not None and recipe.critic is not None:
            old_values = rows.need("values_BT", "critic")
            value = value_loss(passed.values_BT, old_values, returns, mask, clip=recipe.critic.clip)
            metrics |= {**value.metrics, "value_loss": total(value.loss_BT).detach()}
            loss = loss + recipe.critic.coefficient * total(value.loss_BT)
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _check(self, value: Tensor, batch: Sequence[int], what: str = "The loss or its gradient") -> None:
        if not torch.isfinite(value):
            self.optimizer.zero_grad()
            raise Diverged(
                f"{what} is {float(value.detach())} in update {self.updates + 1}.",
                hint="Lower the learning rate, or look at the saved batch.",
                rows=list(batch),
            )


def _units(samples: Sequence[Sample], counted: set[int], *, whole: bool) -> list[list[int]]:
    """Return the rows that may not be torn apart: each by itself, or all of a tree."""
    if not whole:
        return [[number] for number in sorted(counted)]
    trees: dict[str, list[int]] = {}
    for number in sorted(counted):
        trees.setdefault(samples[number].episode.group, []).append(number)
    return list(trees.values())


def _part(rows: Rows, numbers: Sequence[int], width: int, device: torch.device) -> Rows:
    """Return some rows, cut to the width they need, on the device of the weights."""
    index = torch.tensor(list(numbers))
    cut: dict[str, Any] = {}
    for each in fields(rows):
        value = getattr(rows, each.name)
        if isinstance(value, Tensor):
            taken = value[index] if value.shape[0] == rows.loss_mask_BT.shape[0] else value
            cut[each.name] = (taken[:, :width] if taken.ndim == 2 else taken).to(device)
    return replace(rows, **cut)
