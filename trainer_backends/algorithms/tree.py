"""The turn tree of one task: what was sampled in which state, and which turns to sample next.

A node is one sampled turn; its state is where that turn led, and the root's state is where the task begins. All
children of a node are different samples of the turn taken in that one state. A node is named by its *path*, the sample
numbers from the root on, given when the turn is asked for and not when it comes back: noise keyed by the path, and so
the whole tree, does not depend on which turn finishes first.

A :class:`Plan` says what to sample. Its driver samples a turn for every node it is handed, in any order and at any
time (no barrier per turn), reports it, and is handed further nodes, until none is open. The driver needs environments
that can fork: a node's turn is sampled in a copy of its parent's state.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import InvalidRequest, Unsupported


@dataclass(slots=True)
class Node:
    """A sampled turn, or the root.

    Attributes:
        number: place in ``Tree.nodes``.
        path: sample numbers from the root on; () for the root.
        parent: number of the parent, None for the root.
        children: numbers of the turns sampled in this node's state, in the order they were asked for.
        status: "open" until it is sampled; "inner" if the episode goes on, "leaf" if it ended, "lost" if it failed.
        entropy: H(n), mean of -log p over the sampled tokens of the turn, in nats (AT2PO eq. 2); 0 for the root.
        step_entropy: entropy over the turn's first tokens (see ``step_entropy.py``), for ARPO and AEPO.
        reward: outcome of the episode, for a leaf.
        turn: whatever the driver keeps with it.
        branched: this node's state was given further samples because of an entropy (ARPO, AEPO).
    """

    number: int
    path: tuple[int, ...]
    parent: int | None
    children: list[int] = field(default_factory=list)
    status: Literal["open", "inner", "leaf", "lost"] = "open"
    entropy: float = 0.0
    step_entropy: float = 0.0
    reward: float | None = None
    turn: Any = None
    branched: bool = False

    @property
    def depth(self) -> int:
        """Turns from the root on; 0 for the root."""
        return len(self.path)


class Tree:
    """Nodes of one task; the first is the root."""

    def __init__(self) -> None:
        self.nodes = [Node(0, (), None, status="inner")]

    @property
    def root(self) -> Node:
        """The state before the first turn."""
        return self.nodes[0]

    def draw(self, state: Node) -> Node:
        """Ask for one more turn in the state of a node.

        Raises:
            InvalidRequest: the node has no state to go on from.
        """
        if state.status != "inner":
            raise InvalidRequest(f"Node {name_of(state)} is {state.status}: no turn can be sampled after it.")
        node = Node(len(self.nodes), (*state.path, len(state.children)), state.number)
        state.children.append(node.number)
        self.nodes.append(node)
        return node

    def parent(self, node: Node) -> Node:
        """Return the parent; the root's is the root itself."""
        return self.nodes[node.parent or 0]

    def breadth_first(self) -> Iterator[Node]:
        """Yield all nodes, level by level, children in the order they were asked for."""
        waiting = deque([self.root])
        while waiting:
            node = waiting.popleft()
            yield node
            waiting.extend(self.nodes[number] for number in node.children)

    def leaves(self) -> list[Node]:
        """Return the nodes at which an episode ended, breadth first."""
        return [node for node in self.breadth_first() if node.status == "leaf"]

    def branch(self, node: Node) -> list[Node]:
        """Return the turns from the first one to ``node``."""
        turns = []
        while node.parent is not None:
            turns.append(node)
            node = self.nodes[node.parent]
        return turns[::-1]


def name_of(node: Node) -> str:
    """Return a readable name, "root" or for example "0.2.1"."""
    return ".".join(map(str, node.path)) or "root"


class Plan(abc.ABC):
    """Which turns of one task to sample; one object a task.

    Attributes:
        tree: what was sampled so far.
        open: turns asked for and not yet reported.
    """

    def __init__(self) -> None:
        self.tree = Tree()
        self.open = 0

    def begin(self) -> list[Node]:
        """Return the first turns to sample."""
        return self._ask(self._first())

    def sampled(
        self,
        node: Node,
        *,
        entropy: float = 0.0,
        step_entropy: float = 0.0,
        ended: bool = False,
        reward: float | None = None,
        turn: Any = None,
    ) -> list[Node]:
        """Report a sampled turn; return the turns to sample next.

        Args:
            node: one of those handed out.
            entropy: mean of -log p over its tokens.
            step_entropy: entropy over its first tokens.
            ended: the episode is over.
            reward: its outcome; needed when it is over.
            turn: kept with the node.

        Raises:
            InvalidRequest: the node is not open, or a leaf has no reward.
        """
        if node.status != "open":
            raise InvalidRequest(f"Turn {name_of(node)} was reported before.", hint="Report every turn once.")
        if ended and reward is None:
            raise InvalidRequest(f"Turn {name_of(node)} ended its episode without a reward.", hint="Pass reward=.")
        node.entropy, node.step_entropy, node.turn = entropy, step_entropy, turn
        node.status, node.reward = ("leaf", reward) if ended else ("inner", None)
        return self._go_on(self._after(node))

    def lost(self, node: Node) -> list[Node]:
        """Report that a turn could not be sampled; its episode has no leaf, and the rest goes on."""
        node.status = "lost"
        return self._go_on([])

    def _go_on(self, states: list[Node]) -> list[Node]:
        self.open -= 1
        if not states and self.open == 0:
            states = self._refill()
        return self._ask(states)

    def _ask(self, states: list[Node]) -> list[Node]:
        self.open += len(states)
        return [self.tree.draw(state) for state in states]

    @abc.abstractmethod
    def _first(self) -> list[Node]:
        """Return the states of the first turns: the root, several times."""

    def _after(self, node: Node) -> list[Node]:
        """Return the states to sample in, now that ``node`` is known; by default its own, if its episode goes on."""
        return [node] if node.status == "inner" else []

    def _refill(self) -> list[Node]:
        """Return the states to sample in when every episode has ended; [] ends the plan."""
        return []


def check_fork(can_fork: bool, part: str) -> None:
    """Raise :class:`Unsupported` where a tree is asked for and the environment cannot fork."""
    if not can_fork:
        raise Unsupported(
            f"The rollout {part!r} samples several turns in one state, and this environment cannot fork.",
            hint='Use the rollout "chains", or an environment whose fork() works.',
        )
