"""Turn trees: what is sampled, in which order it may come back, and what a tree is worth."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngym.errors import InvalidRequest, MissingInput, Unsupported
from turngym.trainer_backends.algorithms import forest as trees
from turngym.trainer_backends.algorithms import parts, step_entropy
from turngym.trainer_backends.algorithms.aggregate import Totals, aggregate
from turngym.trainer_backends.algorithms.forest import Forest
from turngym.trainer_backends.algorithms.losses import ppo
from turngym.trainer_backends.algorithms.rollout import aepo, arpo, entropy_tree
from turngym.trainer_backends.algorithms.rows import Rows
from turngym.trainer_backends.algorithms.tree import Node, Plan, Tree, name_of

Script = Callable[[Node], dict[str, Any]]
SETTINGS: dict[str, dict[str, Any]] = {
    "chains": {"samples": 5},
    "entropy-tree": {"chains": 3, "rounds": 2, "picks": 3},
    "arpo": {"samples": 9, "initial": 4, "variant": "released"},
    "aepo": {"samples": 9, "initial": 4, "variant": "released"},
}


def script(seed: int, *, depth: int = 4) -> Script:
    """A policy whose turns depend on their path alone."""

    def turn(node: Node) -> dict[str, Any]:
        draw = random.Random(f"{seed} {node.path}")
        ended = node.depth >= depth or draw.random() < 0.25
        reward = float(draw.random() < 0.5) if ended else None
        return {"entropy": draw.random(), "step_entropy": draw.random(), "ended": ended, "reward": reward}

    return turn


def grow(plan: Plan, policy: Script, order: Callable[[list[Node]], int] = lambda waiting: 0) -> Tree:
    """Run a plan to its end; ``order`` chooses which open turn comes back next."""
    waiting = plan.begin()
    while waiting:
        node = waiting.pop(order(waiting))
        waiting += plan.sampled(node, **policy(node))
    assert plan.open == 0
    return plan.tree


def plan_of(name: str, **changes: Any) -> Plan:
    return parts.load("rollout", name, SETTINGS[name] | changes)(seed=7, can_fork=True)


def shape(tree: Tree) -> set[tuple[Any, ...]]:
    return {(node.path, node.status, node.entropy, node.reward) for node in tree.nodes}


def test_every_rollout_has_a_case() -> None:
    assert sorted(SETTINGS) == parts.ids("rollout")


@pytest.mark.parametrize("name", ["chains", "entropy-tree"])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_tree_does_not_depend_on_who_finishes_first(name: str, seed: int) -> None:
    shuffled = random.Random(seed)
    first = grow(plan_of(name), script(seed))
    other = grow(plan_of(name), script(seed), lambda waiting: shuffled.randrange(len(waiting)))
    assert shape(first) == shape(other)


@pytest.mark.parametrize("name", sorted(SETTINGS))
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_budget_is_spent_exactly(name: str, seed: int) -> None:
    plan = plan_of(name)
    shuffled = random.Random(seed)
    tree = grow(plan, script(seed), lambda waiting: shuffled.randrange(len(waiting)))
    assert len(tree.leaves()) == plan.config.samples
    assert all(node.status in ("inner", "leaf") for node in tree.nodes)
    assert all((node.status == "leaf") == (not node.children) for node in tree.nodes)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("name", ["arpo", "aepo"])
def test_branching_is_the_same_under_a_seed_and_different_under_another(name: str, variant: str) -> None:
    def tree(seed: int) -> set[tuple[Any, ...]]:
        plan = parts.load("rollout", name, SETTINGS[name] | {"variant": variant, "initial": 2})(
            seed=seed, can_fork=True
        )
        return shape(grow(plan, script(3, depth=6)))

    assert tree(1) == tree(1)
    # The papers' rules draw no lots.
    assert len({frozenset(tree(seed)) for seed in range(6)}) == (1 if variant == "paper" else 6)


@pytest.mark.parametrize("name", ["entropy-tree", "arpo", "aepo"])
def test_trees_refuse_environments_that_cannot_fork(name: str) -> None:
    with pytest.raises(Unsupported, match="cannot fork"):
        parts.load("rollout", name)(seed=0, can_fork=False)
    assert parts.load("rollout", "chains")(seed=0, can_fork=False).begin()


def test_lost_turns_end_their_episode_and_nothing_else() -> None:
    plan = plan_of("entropy-tree")
    policy, waiting, lost = script(5), plan.begin(), 0
    while waiting:
        node = waiting.pop(0)
        if node.path in {(0,), (1,)}:
            lost += 1
            waiting += plan.lost(node)
        else:
            waiting += plan.sampled(node, **policy(node))
    assert plan.open == 0
    assert lost == 2
    assert len(plan.tree.leaves()) == 3 + 2 * 3 - lost


def test_a_task_on_which_every_turn_is_lost_ends() -> None:
    for name in SETTINGS:
        plan = plan_of(name)
        waiting = plan.begin()
        for _ in range(200):
            if not waiting:
                break
            waiting += plan.lost(waiting.pop())
        assert not waiting
        assert plan.tree.leaves() == []


def test_misuse_is_refused() -> None:
    plan = plan_of("chains")
    node = plan.begin()[0]
    with pytest.raises(InvalidRequest, match="without a reward"):
        plan.sampled(node, ended=True)
    plan.sampled(node, ended=True, reward=1.0)
    with pytest.raises(InvalidRequest, match="reported before"):
        plan.sampled(node, ended=True, reward=1.0)
    with pytest.raises(InvalidRequest, match="0 is leaf"):
        plan.tree.draw(node)


def two_levels() -> Tree:
    """Root -> a (H .5), b (leaf, 0); a -> a1 (H .8, leaf, 1), a2 (H .3, leaf, -1)."""
    plan = parts.load("rollout", "chains", {"samples": 2})(seed=0, can_fork=True)
    a, b = plan.begin()
    (a1,) = plan.sampled(a, entropy=0.5)
    a2 = plan.tree.draw(a)
    plan.open += 1
    plan.sampled(b, entropy=0.2, ended=True, reward=0.0)
    plan.sampled(a1, entropy=0.8, ended=True, reward=1.0)
    plan.sampled(a2, entropy=0.3, ended=True, reward=-1.0)
    return plan.tree


def test_values_by_hand() -> None:
    forest = Forest.of([two_levels()], torch.float64)
    raw, alive = trees.values(forest, weights="ratio", normalise=False)
    a = 0.8 / 1.1 * 1 - 0.3 / 1.1
    assert raw.tolist() == pytest.approx([0.5 / 0.7 * a, a, 0.0, 1.0, -1.0])
    assert alive.all()
    # Rewards 0, 1, -1: mean 0, population deviation sqrt(2/3).
    scaled, _ = trees.values(forest, weights="mean")
    x = 1 / ((2 / 3) ** 0.5 + 1e-6)
    assert scaled.tolist() == pytest.approx([0.0, 0.0, 0.0, x, -x])
    leaves, _ = trees.values(forest, weights="leaves", normalise=False)
    assert leaves.tolist() == pytest.approx([0.0, 0.0, 0.0, 1.0, -1.0])
    top = 0.5 / 0.7 * a
    local = trees.advantages(forest, raw, "parent")
    assert local.tolist() == pytest.approx([top, a - top, -top, 1 - a, -1 - a])
    whole = trees.advantages(forest, raw, "root")
    assert whole.tolist() == pytest.approx([top, a - top, -top, 1 - top, -1 - top])
    both = trees.advantages(forest, raw, "both")
    assert both.tolist() == pytest.approx([top, *(local + whole).tolist()[1:]])


def test_ratio_weights_fall_back_to_equal_ones_without_entropy() -> None:
    tree = two_levels()
    for node in tree.nodes:
        node.entropy = 0.0
    found, _ = trees.values(Forest.of([tree]), weights="ratio", normalise=False)
    assert found[0] == 0.0
    assert torch.isfinite(found).all()


def test_unfinished_turns_are_dropped_or_as_released_worth_nothing() -> None:
    tree = two_levels()
    tree.draw(tree.nodes[1]).status = "lost"
    forest = Forest.of([tree], torch.float64)
    _, alive = trees.values(forest, weights="mean", normalise=False)
    assert alive.tolist() == [True] * 5 + [False]
    tree.nodes[4].reward = 1.0
    dropped, _ = trees.values(Forest.of([tree], torch.float64), weights="mean", normalise=False)
    diluted, _ = trees.values(Forest.of([tree], torch.float64), weights="mean", normalise=False, unfinished="zero")
    assert dropped[1] == 1.0
    assert diluted[1] == pytest.approx(2 / 3)


def test_trees_do_not_touch_one_another() -> None:
    several = [grow(plan_of("entropy-tree"), script(seed)) for seed in range(4)]
    together, _ = trees.values(Forest.of(several, torch.float64), weights="softmax")
    apart = [trees.values(Forest.of([tree], torch.float64), weights="softmax")[0] for tree in several]
    assert torch.allclose(together, torch.cat(apart), rtol=1e-12)


def test_equal_rewards_give_exactly_nothing() -> None:
    plan = plan_of("entropy-tree")
    waiting = plan.begin()
    while waiting:
        node = waiting.pop()
        waiting += plan.sampled(node, entropy=0.3, ended=node.depth == 3, reward=0.1)
    found, _ = trees.values(Forest.of([plan.tree]))
    assert not found.any()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_training_distinct_tokens_once_gives_the_same_loss_and_gradient(seed: int) -> None:
    tree = grow(plan_of("entropy-tree"), script(seed))
    forest = Forest.of([tree], torch.float64)
    noise = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 5, (len(forest),), generator=noise)
    tokens[0] = 0
    start = torch.cat([tokens.new_zeros(1), tokens.cumsum(0)])
    theta = torch.randn(int(tokens.sum()), generator=noise, dtype=torch.float64, requires_grad=True)
    old = theta.detach() + 0.3 * torch.randn(theta.shape, generator=noise, dtype=torch.float64)
    found, _ = trees.values(forest)

    def loss_of(places: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(nodes)
        return ppo.ppo(theta[places], old[places], found[nodes], mask).loss_BT

    def of(node: Node) -> torch.Tensor:
        return torch.arange(int(start[node.number]), int(start[node.number + 1]))

    rows = []
    for leaf in tree.leaves():
        turns = tree.branch(leaf)
        places = torch.cat([of(turn) for turn in turns])
        nodes = torch.cat([torch.full((int(tokens[turn.number]),), turn.number) for turn in turns])
        rows.append(aggregate(loss_of(places, nodes)[None], torch.ones(1, len(places)), "seq-mean-token-mean"))
    repeated = torch.stack(rows).mean()
    (expected,) = torch.autograd.grad(repeated, theta)

    nodes = torch.repeat_interleave(torch.arange(len(forest)), tokens)
    weights = trees.prefix_weights(forest, tokens)[nodes][None]
    totals = Totals(len(nodes), len(rows), len(nodes))
    once = loss_of(torch.arange(len(nodes)), nodes)[None]
    loss = aggregate(once, torch.ones_like(once), "seq-mean-token-sum", totals=totals, token_weights_BT=weights)
    (got,) = torch.autograd.grad(loss, theta)
    assert torch.allclose(loss, repeated)
    assert torch.allclose(got, expected)


def test_credit_needs_its_tree_and_masks_what_was_not_sampled() -> None:
    part = parts.load("credit", "turn-tree", {"normalise": False})
    with pytest.raises(MissingInput, match="forest"):
        part(Rows(loss_mask_BT=torch.ones(1, 2)))
    rows = Rows(
        loss_mask_BT=torch.tensor([[1, 0, 1, 0]]),
        forest=Forest.of([two_levels()]),
        nodes_BT=torch.tensor([[1, 3, 3, -1]]),
    )
    credit = part(rows).advantages_BT
    assert credit[0, 1] == credit[0, 3] == 0
    assert credit[0, 2] == 1.0


def test_picks_count_against_one_another_when_asked_to() -> None:
    tree = Tree()
    for entropy in (0.5, 0.48, 0.2):
        node = tree.draw(tree.root)
        node.status, node.entropy = "inner", entropy
    child = tree.draw(tree.nodes[1])
    child.status, child.entropy = "inner", 0.39
    plain = entropy_tree.select(tree, 3, penalty=0.05, root=False)
    fresh = entropy_tree.select(tree, 3, penalty=0.05, root=False, refresh=True)
    assert [name_of(node) for node in plain] == ["0", "0.0", "1"]
    assert [name_of(node) for node in fresh] == ["0", "0.0", "0"]
    assert len(entropy_tree.select(tree, 9, root=False, repeat=False)) == 4
    assert len(entropy_tree.select(tree, 9, root=False)) == 9


def test_aepo_penalty_counts_the_chain_in_the_paper_and_the_task_as_released() -> None:
    tree = Tree()
    a, b = tree.draw(tree.root), tree.draw(tree.root)
    a.status = b.status = "inner"
    a.branched = True
    below_a, below_b = tree.draw(a), tree.draw(b)
    paper = parts.load("rollout", "aepo")(seed=0, can_fork=True)
    released = parts.load("rollout", "aepo", {"variant": "released"})(seed=0, can_fork=True)
    for plan in (paper, released):
        plan.tree = tree
    assert (paper.consecutive(below_a), paper.consecutive(below_b)) == (1, 0)
    assert (released.consecutive(below_a), released.consecutive(below_b)) == (1, 1)


def test_aepo_monitors_first_and_counts_the_first_chain() -> None:
    def even(node: Node) -> dict[str, Any]:
        ended = node.depth == 3
        return {"step_entropy": 1.0, "ended": ended, "reward": 0.0 if ended else None}

    plan = parts.load("rollout", "aepo", {"samples": 16})(seed=0, can_fork=True)
    assert len(plan.begin()) == 1
    plan = parts.load("rollout", "aepo", {"samples": 16})(seed=0, can_fork=True)
    tree = grow(plan, even)
    assert plan.allocated == 8
    assert len(tree.leaves()) == 16
    assert aepo.allocate(16, 5.0, [], beta=0.2) == 8
    assert aepo.allocate(16, 900.0, [-900.0], beta=5.0) == 16
    assert aepo.allocate(16, -900.0, [900.0], beta=5.0) == 1


def test_baseline_entropy_is_the_chains_own() -> None:
    """The released code keeps the first entropies of earlier batches as baselines."""
    plan = parts.load("rollout", "arpo", {"samples": 6, "initial": 2})(seed=0, can_fork=True)
    first, second = plan.begin()
    (a,) = plan.sampled(first, step_entropy=0.1)
    (b,) = plan.sampled(second, step_entropy=0.9)
    # 0.5 is a rise for the first chain and a fall for the second.
    assert len(plan.sampled(a, step_entropy=0.5)) == 2
    assert len(plan.sampled(b, step_entropy=0.5)) == 1


def test_entropy_of_a_turn() -> None:
    logprobs = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log().repeat(30, 1)
    mean = step_entropy.of_top_logprobs(logprobs, vocabulary=4)
    assert mean == pytest.approx(0.5)
    assert step_entropy.of_top_logprobs(logprobs, vocabulary=4, reduce="sum") == pytest.approx(10.0)
    assert step_entropy.turn_entropy(torch.tensor([-1.0, -3.0])) == 2.0
    assert step_entropy.turn_entropy(torch.tensor([])) == 0.0


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("entropy-tree", {"chians": 3}, "chains"),
        ("arpo", {"initial": 17}, "initial must lie between 1 and samples"),
        ("aepo", {"variant": "both"}, "variant"),
        ("chains", {"samples": 0}, "samples must be at least 1"),
        ("chain", {}, "chains"),
    ],
)
def test_bad_settings_name_the_nearest_valid_one(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parts.load("rollout", name, settings)
    assert words in f"{caught.value} {caught.value.hint}"


def test_scores_by_hand() -> None:
    tree = Tree()
    a, b = tree.draw(tree.root), tree.draw(tree.root)
    for node, entropy in ((a, 0.5), (b, 0.4)):
        node.status, node.entropy = "inner", entropy
    only = tree.draw(a)
    only.status, only.entropy = "inner", 0.3
    # a and b are siblings: one penalty each; a turn without siblings has none, and the root pays for its second child.
    scores = {name_of(node): entropy_tree.score(tree, node, 0.1) for node in tree.nodes}
    assert scores == pytest.approx({"root": -0.1, "0": 0.4, "1": 0.3, "0.0": 0.3})
    entropies = torch.tensor([1.0, 2.0], dtype=torch.float64)
    tree = two_levels()
    tree.nodes[3].entropy, tree.nodes[4].entropy = entropies.tolist()
    found, _ = trees.values(Forest.of([tree], torch.float64), weights="softmax", normalise=False)
    share = entropies.softmax(0)
    assert found[1] == pytest.approx(float(share[0] - share[1]))


def test_a_picked_turn_is_sampled_again_in_the_state_before_it() -> None:
    plan = parts.load("rollout", "entropy-tree", {"chains": 1, "rounds": 1, "picks": 1, "root": False})(
        seed=0, can_fork=True
    )
    (first,) = plan.begin()
    (second,) = plan.sampled(first, entropy=0.1)
    (third,) = plan.sampled(second, entropy=0.9)
    (again,) = plan.sampled(third, entropy=0.5, ended=True, reward=1.0)
    assert name_of(again) == "0.1"


def test_released_and_printed_rules_by_hand() -> None:
    assert arpo.released_score(0.6, 0.5, 0.2) == pytest.approx(0.5)
    assert arpo.released_score(0.1, 3.0, 0.2) == 0.0
    assert aepo.released_score(0.6, 0.5, 4, weight=0.2, slope=0.05) == pytest.approx(0.7 * 0.8)
    assert aepo.probability(0.5, 2, base=0.5, weight=0.2, slope=0.2) == pytest.approx(0.6 * 0.6)
    assert aepo.probability(0.5, 9, base=0.5, weight=0.2, slope=0.2) == 0.0
    real = aepo.chains(16, 3.0, 1.0, beta=0.2)
    assert real == pytest.approx(16 / (1 + 2.718281828459045**-0.4))
    assert aepo.allocate(16, 3.0, [1.0], beta=0.2) == 10  # 9.58
    assert aepo.allocate(16, 3.0, [1.2], beta=0.2, rounding="released") == 10  # 9.41


@pytest.mark.parametrize(("variant", "change", "branches"), [("paper", 0.0, 0), ("paper", 0.01, 1), ("paper", -1.0, 0)])
def test_the_papers_arpo_branches_where_the_entropy_rose(variant: str, change: float, branches: int) -> None:
    plan = parts.load("rollout", "arpo", {"samples": 4, "initial": 1, "variant": variant})(seed=0, can_fork=True)
    (first,) = plan.begin()
    (second,) = plan.sampled(first, step_entropy=0.5)
    assert len(plan.sampled(second, step_entropy=0.5 + change)) == 1 + branches


def test_the_released_arpo_branches_more_often_where_the_entropy_rose() -> None:
    def branched(change: float) -> int:
        count = 0
        for seed in range(200):
            plan = parts.load("rollout", "arpo", {"samples": 4, "initial": 1, "variant": "released"})(
                seed=seed, can_fork=True
            )
            (first,) = plan.begin()
            (second, *_) = plan.sampled(first, step_entropy=0.0)
            count += len(plan.sampled(second, step_entropy=change)) - 1
        return count

    assert branched(-2.0) < 40 < 80 < branched(0.0) < 120 < 160 < branched(2.0)


def test_the_released_aepo_branches_at_the_threshold() -> None:
    plan = parts.load("rollout", "aepo", {"samples": 9, "initial": 1, "pre_monitoring": False, "variant": "released"})(
        seed=0, can_fork=True
    )
    (first,) = plan.begin()
    plan.uniform = lambda node, beam: 0.5  # type: ignore[method-assign]
    assert len(plan.sampled(first, step_entropy=0.3)) == 2
