"""ScienceWorld as a :class:`TextEnv`: the real simulator, its thirty tasks, splits, scores and solutions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from ...errors import InvalidRequest, NotReset, nearest
from ..core import Effect, TextEnv
from .jvm import check_installed
from .simulation import Answer, Simulation, Start, gold_path
from .tasks import Task, named, simplified, splits

OBSERVATIONS = ("plain", "full")
ADMISSIBLE = ("list", "none")
REWARDS = ("score", "final")
SUCCESS_RULES = ("paper", "released")
LONGEST_ACTION = 1000
"""Characters of an action that reach the simulator; no action it knows is a fifth as long."""
_UNKNOWN = ("No known action matches", "Unknown action.")
_NOT_UNDERSTOOD = (*_UNKNOWN, "Ambiguous request:")
_TEMPLATES = (
    "open OBJ, close OBJ (a door or a container); go to PLACE; look around, look at OBJ, look in OBJ; pick up OBJ, put "
    "down OBJ, move OBJ to OBJ, pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ (what a container holds), eat OBJ; "
    "activate OBJ, deactivate OBJ, use OBJ on OBJ, read OBJ, flush OBJ; {more}focus on OBJ (to show the task's "
    "object); wait (10 moments), wait1 (one); inventory; task (states the task)"
)
_TELEPORT = "teleport to PLACE (at once, from anywhere); "
_CONNECT = "connect OBJ to OBJ, disconnect OBJ (electrical parts); "


class History(NamedTuple):
    """The actions that the simulator understood or asked back about, newest first."""

    before: History | None
    action: str


class Situation(NamedTuple):
    """What is known after an action; never changed, so that forks share it."""

    answer: Answer
    understood: History | None = None


class ScienceWorld(TextEnv):
    """Experiments of elementary science in a house of ten places: boil, measure, wire, mix, grow, classify.

    The observation is the simulator's text. A task is over when the simulator says so, with a score of up to 100
    points; a wrong decision (focusing on a wrong object) gives -100 and ends it too. ``info["score_points"]`` is the
    simulator's score, ``info["score"]`` a hundredth of it and at least 0; ``info["released_success"]`` tells whether
    RLVMR's code would count the task as solved.

    Needs the ``scienceworld`` package and a Java; ``pool`` in ``simulation`` says what can be set.

    Args:
        tasks: play these only, by name, id ("4-2") or RLVMR's number (0 to 29 in the order of names).
        simplifications: "easy" (all that leave the task possible; what RLVMR and others report), "" for none, or a
            list of teleportAction, openDoors, openContainers, selfWateringFlowerPots, noElectricalAction.
        admissible: "list" computes all valid actions after every action, as the original's wrapper does; "none" saves
            that time, and ``info["admissible"]`` is empty.
        observation: "plain", or "full" with the room and the inventory added, which takes no time in the world.
        reward: "score" gives the change of the score, in hundreds of points; "final" gives ``success_reward`` at the
            end of a won task and nothing else, as RLVMR trains.
        success_rule: won means a score of 100 ("paper": the right final answer), or any positive score at the end
            ("released": RLVMR's code).
        success_reward: what "final" gives.

    Raises:
        MissingExtra: the simulator's package or Java is missing; the hint says what to install.
    """

    default_max_steps: ClassVar[int] = 100
    deterministic: ClassVar[bool] = True
    reward_range: ClassVar[tuple[float, float]] = (-2.0, 1.0)
    splits = {name: len(table) for name, table in splits(named(None)).items()}  # noqa: RUF012 - the base's own form
    expert_success: ClassVar[float] = 0.65  # of all test variations; what is missing takes over 100 actions

    def __init__(
        self,
        *,
        tasks: Sequence[str | int] | None = None,
        simplifications: str | Sequence[str] = "easy",
        admissible: str = "list",
        observation: str = "plain",
        reward: str = "score",
        success_rule: str = "paper",
        success_reward: float = 1.0,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        _one_of("admissible", admissible, ADMISSIBLE)
        _one_of("observation", observation, OBSERVATIONS)
        _one_of("reward", reward, REWARDS)
        _one_of("success_rule", success_rule, SUCCESS_RULES)
        if isinstance(success_reward, bool) or not isinstance(success_reward, int | float):
            raise InvalidRequest(f"success_reward is {success_reward!r:.60}.", hint="Give a number.")
        chosen = named(tasks)
        self.simplifications = simplified(simplifications, chosen)
        self.admissible, self.observation = admissible, observation
        self.reward, self.success_rule, self.success_reward = reward, success_rule, float(success_reward)
        self._tables = splits(chosen)
        self.splits = {name: len(table) for name, table in self._tables.items()}  # type: ignore[misc]
        check_installed()
        self._task: Task
        self._variation = 0
        self._simulation: Simulation | None = None
        self._state: Situation

    @classmethod
    def check_needs(cls, **config: Any) -> None:
        """Check that the simulator and a Java are there."""
        check_installed()

    @property
    def instructions(self) -> str:
        """What the agent may do, and the task, which the observations do not state."""
        easy = self.simplifications == "easy"
        more = _TELEPORT if easy or "teleportAction" in self.simplifications else ""
        if self._task.electrical if easy and self.task else "noElectricalAction" not in self.simplifications:
            more += _CONNECT
        rules = (
            f"You are in a house with things for experiments. Your actions: {_TEMPLATES.format(more=more)}. OBJ and "
            "PLACE are names from what you see. Where a name fits several things you are asked for a number."
        )
        return f"{rules} {self.description}".strip()

    @property
    def simulation(self) -> Simulation:
        """The run of the simulator behind it; using it directly leaves this environment behind.

        Raises:
            NotReset: there was no ``reset``.
        """
        if self._simulation is None:
            raise NotReset("There is no simulation before reset.", hint="Call reset first.")
        return self._simulation

    @property
    def answer(self) -> Answer:
        """All that the simulator said after the last action."""
        return self._state.answer

    @property
    def description(self) -> str:
        """The task in the simulator's words; empty before ``reset``."""
        return "" if self._simulation is None else self._simulation.description

    def _begin(self, split: str, index: int) -> None:
        self._task, self._variation = self._tables[split][index]
        start = Start(
            self._task.name,
            self._variation,
            self.simplifications,
            self.admissible == "list",
            self.observation == "full",
        )
        self._simulation = Simulation(start)
        self._state = Situation(self._simulation.reset())

    def _apply(self, action: str) -> Effect:
        before, understood = self._state
        answer = self.simulation.act(action[:LONGEST_ACTION])
        valid = not answer.observation.startswith(_NOT_UNDERSTOOD)
        # An ambiguous action waits for a number, which a solution gives as its next action.
        known = not answer.observation.startswith(_UNKNOWN)
        self._state = Situation(answer, History(understood, action) if known else understood)
        # The original ends a task at any negative score too.
        terminated = answer.completed or answer.points < 0
        if self.reward == "score":
            reward = (answer.points - before.points) / 100
        else:
            reward = self.success_reward if terminated and self._won() else 0.0
        return Effect(reward, terminated, valid, answer.moves != before.moves or answer.points != before.points)

    def _observe(self) -> str:
        answer = self._state.answer
        if self.observation == "plain":
            return answer.observation
        return f"{answer.observation}\n\n{answer.look.strip()}\n{answer.inventory.strip()}"

    def _admissible(self) -> list[str]:
        return list(self._state.answer.valid)

    def _won(self) -> bool:
        answer = self._state.answer
        return answer.completed and answer.points >= (100 if self.success_rule == "paper" else 1)

    def _score(self) -> float:
        return max(0, self._state.answer.points) / 100

    def _extra_info(self) -> dict[str, Any]:
        answer = self._state.answer
        return {
            "task_name": self._task.name,
            "task_id": self._task.id,
            "variation": self._variation,
            "score_points": answer.points,
            "moves": answer.moves,
            "released_success": answer.completed and answer.points > 0,
        }

    def task_type(self) -> str:
        """Return the name of the task, one of thirty."""
        return self._task.name

    def fork(self, seed: int | None = None) -> TextEnv:
        """Return an independent copy; it costs nothing until its first action, which replays the actions so far."""
        twin = super().fork(seed)
        assert isinstance(twin, ScienceWorld)
        twin._simulation = None if self._simulation is None else self._simulation.fork()
        return twin

    def _copy_state(self, state: Situation) -> Situation:
        return state

    def close(self) -> None:
        """Give the simulation's place back; another action would rebuild it."""
        if self._simulation is not None:
            self._simulation.release()

    @property
    def solution(self) -> tuple[str, ...]:
        """The simulator's own solution of the task from its start; computing it takes up to seconds."""
        return _solution(self._task.name, self._variation, self.simplifications)

    def expert_action(self) -> str | None:
        """Return the next action of the simulator's own solution.

        Returns:
            The action; "wait1" behind the solution's last; None once any other action was understood.
        """
        if self.done:
            return None
        done, node = [], self._state.understood
        while node is not None:
            done.append(node.action.lower())  # the turn level writes "unknown d seed", which the simulator takes too
            node = node.before
        done.reverse()
        path = self.solution
        if done[: len(path)] != [action.lower() for action in path[: len(done)]]:
            return None
        return path[len(done)] if len(done) < len(path) else "wait1"


@lru_cache(maxsize=1024)
def _solution(task: str, variation: int, simplifications: str) -> tuple[str, ...]:
    return gold_path(Start(task, variation, simplifications))


def _one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(f"Unknown {name} {value!r:.60}.", hint=nearest(str(value), choices))
