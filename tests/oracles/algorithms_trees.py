"""Turn trees (AT2PO) and entropy branching (ARPO, AEPO), against the vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from turngym.trainer_backends.algorithms import forest as trees
from turngym.trainer_backends.algorithms import parts, step_entropy
from turngym.trainer_backends.algorithms.aggregate import Totals, aggregate
from turngym.trainer_backends.algorithms.forest import Forest
from turngym.trainer_backends.algorithms.rollout import aepo, arpo, entropy_tree
from turngym.trainer_backends.algorithms.rows import Rows
from turngym.trainer_backends.algorithms.tree import Node, Tree, name_of

Json = dict[str, Any]
Compared = Iterator[tuple[str, Any, Any]]
WEIGHTS = {"child_softmax": "softmax", "child_mean": "mean", "leaf_mean": "leaves", "child_ratio_paper_eq3": "ratio"}
DIFFERENCES = {"node_value": "value", "diff_parent": "parent", "diff_global": "root", "diff_localglobal": "both"}


def grown(records: list[Json]) -> tuple[Tree, dict[str, Node]]:
    """Build a tree from the vectors' nodes, parents first."""
    tree, named = Tree(), {}
    for record in records:
        if record["parent"] is None:
            node = tree.root
        else:
            node = tree.draw(named[record["parent"]])
            leaf = record.get("leaf", record.get("is_leaf"))
            node.status, node.reward = ("leaf", record.get("reward")) if leaf else ("inner", None)
        node.entropy = record["entropy"]
        named[record["id"]] = node
    return tree, named


def selection(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Which turns are sampled again."""
    tree, named = grown(inputs["nodes"])
    names = {node.number: name for name, node in named.items()}
    penalty = params.get("alpha", params.get("branch_penalty"))
    found = entropy_tree.candidates(tree)
    if "candidates_in_order" in outputs:
        yield "candidates", [names[node.number] for node in found], outputs["candidates_in_order"]
    scores = {names[node.number]: entropy_tree.score(tree, node, penalty) for node in found}
    yield "scores", scores, outputs.get("score", outputs.get("scores"))
    picked = entropy_tree.select(tree, params["K"], penalty=penalty)
    yield "selected", [names[node.number] for node in picked], outputs["selected"]
    if "fork_state_of" in outputs:
        yield "forks", [names[tree.parent(node).number] for node in picked], outputs["fork_state_of"]


def both(named: dict[str, Node], forest: Forest, mode: str, params: Json, unfinished: str) -> Iterator[Any]:
    """Yield values and advantages by name."""
    found, _ = trees.values(forest, weights=WEIGHTS[mode], normalise=params["leaf_value_norm"], unfinished=unfinished)
    yield {name: found[node.number] for name, node in named.items()}
    for difference in DIFFERENCES.values():
        each = trees.advantages(forest, found, difference)
        yield {name: each[node.number] for name, node in named.items()}


def tree_values(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Values and advantages in every mode of the released code, which gives unfinished turns the value 0."""
    tree, named = grown(inputs["nodes"])
    forest = Forest.of([tree], torch.float64)
    for mode in ("child_softmax", "child_mean", "leaf_mean"):
        value, *differences = both(named, forest, mode, params, "zero")
        yield f"{mode} V", value, outputs[mode]["V"]
        for name, got in zip(DIFFERENCES, differences, strict=True):
            yield f"{mode} {name}", got, outputs[mode]["A"][name]
    paper, _ = trees.values(forest, weights="ratio", normalise=params["leaf_value_norm"])
    printed = outputs["outputs_paper_eq3"]["V"]
    yield "eq. 3", {name: paper[named[name].number] for name in printed}, printed
    records = {record["id"]: record for record in inputs["nodes"]}
    for leaf in outputs["child_softmax"]["per_leaf_tokens_when_A_is_V"]:
        nodes, mask = [], []
        for name in leaf["path"]:
            nodes += [named[name].number] * (records[name]["obs"] + records[name]["act"])
            mask += [0] * records[name]["obs"] + [1] * records[name]["act"]
        rows = Rows(loss_mask_BT=torch.tensor([mask]), forest=forest, nodes_BT=torch.tensor([nodes]))
        settings = {"weights": "softmax", "normalise": params["leaf_value_norm"], "unfinished": "zero"}
        credit = parts.load("credit", "turn-tree", settings)(rows)
        # The vectors give the advantage of the tool's tokens too; they are not trained.
        expected = [a * m for a, m in zip(leaf["advantage_per_token"], leaf["loss_mask"], strict=True)]
        yield f"mask of {leaf['leaf']}", mask, leaf["loss_mask"]
        yield f"tokens of {leaf['leaf']}", credit.advantages_BT[0], expected


def node_values(inputs: Json, params: Json, outputs: Json) -> Compared:
    """One mode of values, with all differences."""
    tree, named = grown(inputs["nodes"])
    value, *differences = both(named, Forest.of([tree], torch.float64), params["node_value_mode"], params, "zero")
    yield "V", value, outputs["value"]
    for name, got in zip(DIFFERENCES, differences, strict=True):
        yield name, got, outputs["advantage"][name]


def rollout(inputs: Json, params: Json, outputs: Json) -> Compared:
    """A whole rollout with a scripted policy, turns reported last in, first out."""
    script = {step["node"]: step for step in inputs["policy_script"]}
    settings = {"chains": params["M"], "rounds": params["L"], "picks": params["K"], "penalty": params["alpha"]}
    plan = parts.load("rollout", "entropy-tree", settings)(seed=0, can_fork=True)
    waiting = plan.begin()
    while waiting:
        node = waiting.pop()
        step = script[name_of(node)]
        entropy = step_entropy.turn_entropy(torch.tensor(step["action_logprobs"], dtype=torch.float64))
        ended = step["kind"] == "answer"
        waiting += plan.sampled(node, entropy=float(entropy), ended=ended, reward=step["reward"], turn=step)
    tree = plan.tree
    yield "picks", [[name_of(node) for node in picked] for picked in plan.rounds], outputs["selected_per_iteration"]
    yield "leaves", len(tree.leaves()), outputs["leaves_before_pruning"]
    forest = Forest.of([tree], torch.float64)
    found, _ = trees.values(forest, weights=WEIGHTS[params["node_value_mode"]], normalise=params["leaf_value_norm"])
    taken = trees.advantages(forest, found, DIFFERENCES[params["node_adv_mode"]])
    yield "V_root", found[0], outputs["V_root"]
    expected = {node["id"]: [node["entropy"], node["V"], node["A"]] for node in outputs["nodes"]}
    named = {name_of(node): node for node in tree.nodes if node.parent is not None}
    yield "nodes", {name: [n.entropy, found[n.number], taken[n.number]] for name, n in named.items()}, expected
    leaves = [[name_of(leaf), [name_of(turn) for turn in tree.branch(leaf)]] for leaf in tree.leaves()]
    yield "sequences", leaves, [[leaf["leaf"], leaf["turns"]] for leaf in outputs["leaf_sequences"]]
    yield from counted(tree, forest, script, outputs)


def counted(tree: Tree, forest: Forest, script: Json, outputs: Json) -> Compared:
    """Tokens trained with and without repeats, and the equal loss of both."""
    tokens = torch.tensor([len(script[name_of(n)]["action_logprobs"]) if n.path else 0 for n in tree.nodes])
    repeats = [sum(int(tokens[turn.number]) for turn in tree.branch(leaf)) for leaf in tree.leaves()]
    yield "trained", repeats, [leaf["trained_tokens"] for leaf in outputs["leaf_sequences"]]
    yield "with repeats", sum(repeats), outputs["trained_token_count_with_repeats"]
    yield "distinct", int(tokens.sum()), outputs["distinct_action_tokens"]
    # Any token loss that depends on the node alone must aggregate to the same number.
    losses = {n.number: torch.tensor(script[name_of(n)]["action_logprobs"]).double() for n in tree.nodes if n.path}
    rows = [torch.cat([losses[turn.number] for turn in tree.branch(leaf)]) for leaf in tree.leaves()]
    repeated = sum(row.mean() for row in rows) / len(rows)
    weights = trees.prefix_weights(forest, tokens)
    once = torch.cat([losses[n.number] for n in tree.nodes if n.path])[None]
    each = torch.cat([weights[n.number].expand(int(tokens[n.number])) for n in tree.nodes if n.path])[None]
    totals = Totals(tokens.sum(), len(rows), once.shape[-1])
    mask = torch.ones_like(once)
    loss = aggregate(once, mask, "seq-mean-token-sum", totals=totals, token_weights_BT=each)
    yield "loss of distinct tokens", loss, repeated


def released_rule(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The released branching rules with the uniform draw given."""
    draw, change, weight = inputs["uniform_draw"], inputs["delta_H"], params["entropy_weight"]
    balanced = aepo.released_score(draw, change, inputs["l"], weight=weight, slope=params["penalty_slope"])
    yield "aepo_prob", balanced, outputs["aepo_prob"]
    yield "aepo_branch", balanced >= params["tau"], outputs["aepo_branch"]
    adaptive = arpo.released_score(draw, change, weight)
    yield "arpo_prob", adaptive, outputs["arpo_prob"]
    yield "arpo_branch", adaptive <= params["tau"], outputs["arpo_branch"]


def arpo_branching(inputs: Json, params: Json, outputs: Json) -> Compared:
    """Decisions of both codes, and the entropy that they rest on."""
    if "top10_logprobs_per_token" in inputs:
        logprobs = torch.tensor(inputs["top10_logprobs_per_token"], dtype=torch.float64)
        first = params["max_tokens"]
        for name, reduce in (("H_authors", "sum"), ("H_mean_per_token_alternative", "mean")):
            got = step_entropy.of_top_logprobs(logprobs, params["vocab_size"], first=first, reduce=reduce)
            yield name, got, outputs[name]
        return
    change, weight = inputs["H_now"] - inputs["H_initial"], params["entropy_weight"]
    threshold = params["branch_probability"]
    score = arpo.released_score(inputs["U"], change, weight)
    yield "arpo", {"score": score, "branch": score <= threshold}, outputs["arpo"]
    slope = params["aepo_penalty_slope"]
    score = aepo.released_score(inputs["U"], change, inputs["consecutive"], weight=weight, slope=slope)
    yield "aepo", {"score": score, "branch": score >= threshold}, outputs["aepo"]


def probability(inputs: Json, params: Json, outputs: Json) -> Compared:
    """AEPO's equations 6 and 7."""
    base, weight, slope = params["alpha"], params["gamma"], params["penalty_slope"]
    value = aepo.probability(inputs["delta_H"], inputs["l"], base=base, weight=weight, slope=slope)
    yield "P", value, outputs["P"]
    yield "branch", value > params["tau"], outputs["branch"]


def allocation(inputs: Json, params: Json, outputs: Json) -> Compared:
    """AEPO's number of chains as the released code computes it."""
    m = aepo.allocate(params["k"], inputs["H_root"], inputs["H_steps"], beta=0.5, rounding="released")
    yield "m", m, outputs["m"]
    yield "branches", params["k"] - m, outputs["branch_budget"]
    mean = sum(inputs["H_steps"]) / len(inputs["H_steps"]) if inputs["H_steps"] else inputs["H_root"]
    for name, expected in outputs["outputs_paper_eq5_unrounded"].items():
        beta = float(name.removeprefix("beta_"))
        yield name, aepo.chains(params["k"], inputs["H_root"], mean, beta=beta), expected


def chains(inputs: Json, params: Json, outputs: Json) -> Compared:
    """AEPO's equation 5, unrounded and with both roundings."""
    k, first, tools, beta = inputs["k"], inputs["H_root"], inputs["H_tool_avg"], params["beta"]
    yield "m_real", aepo.chains(k, first, tools, beta=beta), outputs["m_real"]
    released = aepo.allocate(k, first, [tools], beta=beta, rounding="released")
    yield "m_released_code", released, outputs["m_released_code"]
    yield "m_round_clipped", aepo.allocate(k, first, [tools], beta=beta), outputs["m_round_clipped"]


def entropy(inputs: Json, params: Json, outputs: Json) -> Compared:
    """The entropy of a tool step, summed as released and averaged."""
    logprobs = torch.tensor(inputs["topk_logprobs"], dtype=torch.float64)
    first, top, size = params["first_tokens"], params["topk"], params["vocab_size"]
    for name, reduce in (("released_sum_over_tokens_over_logV", "sum"), ("per_token_mean_over_logV", "mean")):
        got = step_entropy.of_top_logprobs(logprobs, size, first=first, top=top, reduce=reduce)
        yield name, got, outputs[name]


CHECKS = {
    "tree_selection.json": selection,
    "atpo_expansion_select.json": selection,
    "tree_values.json": tree_values,
    "atpo_tree_values.json": node_values,
    "tree_rollout.json": rollout,
    "arpo_branching.json": arpo_branching,
    "aepo_arpo_branch_released_code.json": released_rule,
    "aepo_branch_probability.json": probability,
    "aepo_allocation.json": allocation,
    "aepo_m_allocation.json": chains,
    "aepo_step_entropy.json": entropy,
}
