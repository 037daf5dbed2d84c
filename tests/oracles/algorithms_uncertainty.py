"""Token entropy and T2PO's uncertainty signals, token control and turn control, against the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.algorithms.entropy import entropy_and_logprobs
from turngym.trainer_backends.algorithms.markers import Markers
from turngym.trainer_backends.algorithms.thinking import BUDGET, Step
from turngym.trainer_backends.algorithms.uncertainty import statistics, turn_signal

Json = dict[str, Any]
Compared = Iterator[tuple[str, Any, Any]]
CLOSE = 7
"""Stands for the closing tag; what it is does not matter to the signal."""


def tensor(values: Any) -> torch.Tensor:
    """Return a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def token_entropy(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Entropy, log-probability, and the entropy's gradient with respect to the scaled logits."""
    temperature = params["temperature"]
    logits = tensor(inputs["logits"]).requires_grad_()
    entropy, logprobs = entropy_and_logprobs(logits, torch.tensor(inputs["labels"]), temperature)
    entropy.sum().backward()
    yield "entropy", entropy, outputs["entropy"]
    yield "log_prob", logprobs, outputs["log_prob"]
    assert logits.grad is not None
    yield "gradient", logits.grad * temperature, outputs["grad_scaled_logits"]


def first_forced(logits: torch.Tensor, settings: Json, signal: Json) -> tuple[int | None, str | None, list[float]]:
    """Return the 0-based step at which TTI first forces, why, and the signal of every token until the queue ends."""
    made = parts.load("signals", signal.pop("id"), signal)()
    control = parts.load("token_control", "tti", settings)(
        Markers(closing=((CLOSE,),), queue=(CLOSE,)), made, dtype=torch.float64
    )
    control.add(0, thinking=True)
    for row in logits:
        forced = control.step(row.unsqueeze(0), torch.tensor([0]))
        if bool(forced.mask_B[0]):
            break
    trace = control.remove(0)
    at = trace.forced_T.nonzero().flatten().tolist()
    assert trace.scores_T is not None
    return (at[0] if at else None), (trace.causes[0] if at else None), trace.scores_T.tolist()


def tti_paper(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The literal equation 3, in both normalisations, and the rule on it."""
    logits = tensor(inputs["logits"])
    found = statistics(logits.unsqueeze(0), params["j"])
    yield "entropy", found.entropy[0], outputs["entropy"]
    yield "confidence", found.confidence[0], outputs["confidence"]
    given = {"alpha": params["alpha"], "top_j": params["j"], "normalisation": params["normalisation"]}
    part = parts.load("signals", "paper", given | {"sign": "literal"})
    scores = part().scores(found)[0]
    yield "M", scores, outputs["M"]
    yield "delta", [None, *scores.diff().abs().tolist()], outputs["delta"]
    for number, trigger in enumerate(outputs["triggers"]):
        settings = {
            "window": trigger["N"],
            "epsilon": trigger["epsilon"],
            "min_tokens": trigger["L_min"],
            "budget": trigger["L_max"],
        }
        yield f"trigger {number}", paper_rule(scores, settings), (trigger["t_star"], trigger["cause"])
        if params["normalisation"] == "running":
            step, cause, _ = first_forced(logits, settings, {"id": "paper", "sign": "literal", **given})
            # Forced at t* + 1, which is 0-based step t*; a trigger at the last token has no step to act on.
            expected = trigger["t_star"] if trigger["t_star"] != len(logits) else None
            yield (
                f"forced {number}",
                (step, cause if step else None),
                (expected, trigger["cause"] if expected else None),
            )


def paper_rule(scores: torch.Tensor, settings: Json) -> tuple[int | None, str | None]:
    """Return t* (from 1) and the cause that the rule gives for signals that are known beforehand."""
    tti = parts.load("token_control", "tti", settings)
    rule = tti.module.PaperRule(tti.config)
    memory = {
        name: torch.full((1, field.width) if field.width else (1,), field.fill) for name, field in rule.fields.items()
    }
    memory = {name: value.double() for name, value in memory.items()}
    for t, score in enumerate(scores, 1):
        step = Step(torch.tensor([t]), torch.tensor([True]), torch.tensor([t - 1]), score.view(1), torch.tensor([0]))
        decision = rule.decide(step, memory)
        if bool(decision.next):
            return t, "budget" if int(decision.cause) == BUDGET else "stagnation"
    return None, None


def tti_released(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The released score and its rule, with a state of its own for the sequence."""
    logits = tensor(inputs["logits"])
    signal = {"id": "released", "alpha": 1 - params["combine_alpha"]}
    scores = parts.load("signals", "released", {"alpha": signal["alpha"]})().scores(statistics(logits.unsqueeze(0)))[0]
    # The file stops where the tag is forced.
    shown = len(outputs["score"])
    yield "score", scores[:shown], outputs["score"]
    settings = {
        "variant": "released",
        "window": params["patience"],
        "epsilon": params["epsilon"],
        "budget": params["think_budget"],
    }
    step, cause, online = first_forced(logits, settings, signal)
    yield "forced_step", step, outputs["forced_step"]
    yield "cause", cause, outputs["cause"]
    yield "online score", online[:shown], outputs["score"]


def tds(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The turn signal, and whole episodes of decisions."""
    if "M" in inputs:
        scores = tensor([inputs["M"]])
        mask = torch.ones_like(scores)
        for name, expected in outputs.items():
            if name.startswith("floor_"):
                yield name, turn_signal(scores, mask, floor=float(name.removeprefix("floor_")))[0], expected
        yield "arithmetic_mean", turn_signal(scores, mask, mean="arithmetic")[0], outputs["arithmetic_mean"]
        return
    control = parts.load("turn_control", "tds", {"eta": params["eta"], "max_generations": params["B_max"]})()
    control.begin("env")
    for turn, expected in zip(inputs["turn_attempt_M"], outputs["turns"], strict=True):
        previous = control.previous("env")
        attempt = -1
        for scores in turn:
            attempt += 1
            mask = torch.ones(1, len(scores))
            phi = float(turn_signal(tensor([scores]), mask, floor=params["floor"])[0])
            if not control.decide("env", phi, len(scores)):
                break
        gamma = None if previous is None else abs(phi - previous)
        yield "attempt_used", attempt, expected["attempt_used"]
        yield "generations", attempt + 1, expected["generations"]
        yield "phi", phi, expected["phi"]
        yield "gamma", gamma, expected["gamma"]
        exhausted = gamma is not None and gamma < params["eta"]
        yield "budget_exhausted", exhausted, expected["budget_exhausted"]


CHECKS = {
    "token_entropy.json": token_entropy,
    "t2po_uncertainty_tti_paper.json": tti_paper,
    "t2po_tti_released_code.json": tti_released,
    "t2po_tds.json": tds,
}
