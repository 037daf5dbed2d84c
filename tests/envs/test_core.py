"""TextEnv: joined actions, limits, anchors, seeds and forks, on an environment of a few lines."""

from __future__ import annotations

from turngym.envs.core import Effect, TextEnv, shown


class Counter(TextEnv):
    """Count "up" and "down"; the state is a list, so that a fork must copy it."""

    separator = "||"
    default_max_steps = 4

    @property
    def instructions(self) -> str:
        """The rules."""
        return "Say up or down."

    def _begin(self, split: str, index: int) -> None:
        self._state = [index]

    def _apply(self, action: str) -> Effect:
        if action not in ("up", "down", "wait"):
            return Effect(valid=False, effective=False, note=f"no {action}")
        self._state[0] += {"up": 1, "down": -1, "wait": 0}[action]
        return Effect(1.0, effective=action != "wait")

    def _observe(self) -> str:
        return str(self._state[0])

    def _admissible(self) -> list[str]:
        return ["up", "down", "wait"]


def begun(**config: int) -> Counter:
    env = Counter(**config)
    env.reset(seed=0, options={"task": "test/0"})
    return env


def test_joined_actions_are_one_step() -> None:
    observation, reward, terminated, truncated, info = begun().step("up || sideways ||wait")
    assert (observation, reward, terminated, truncated) == ("no sideways\n1", 2.0, False, False)
    assert (info["steps"], info["step"]) == (3, 3)
    # One bad part spoils validity, one good part is an effect; neither depends on the order.
    assert (info["action_valid"], info["action_effective"]) == (False, True)
    assert begun().step("wait")[4]["action_effective"] is False


def test_limits() -> None:
    assert begun(max_actions_per_step=2).step("up||up||up")[0] == "2"
    observation, reward, _, truncated, info = begun().step("||".join(["up"] * 5))
    assert (observation, reward, truncated, info["steps"]) == ("4", 4.0, True, 4)


def test_equal_states_have_equal_anchors() -> None:
    env = begun()
    first = env.step("up")[4]["anchor"]
    assert env.step("down")[4]["anchor"] != first
    # The note about the bad action stands in the observation and not in the anchor.
    assert env.step("up||sideways")[4]["anchor"] == first


def test_a_seed_that_was_not_given_is_drawn_anew() -> None:
    env = Counter()
    assert len({env.reset()[1]["seed"] for _ in range(8)}) == 8


def test_a_fork_copies_the_state() -> None:
    env = begun()
    twin = env.fork()
    twin.step("up")
    assert (env.render(), env._observe(), twin._observe()) == (None, "0", "1")


def test_a_quote_is_short_whatever_is_quoted() -> None:
    assert shown(" a \n b ") == "a b"
    assert shown("x" * 100, 10) == "x" * 9 + "…"
    assert shown("\ud800") == "?"
