"""Recipes: every one that ships loads with all its parts, and a wrong one says what is right."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch: pip install 'turngym[torch]'")

from turngym.envs.presets import load_preset
from turngym.errors import InvalidRequest
from turngym.trainer_backends.algorithms import parts
from turngym.trainer_backends.recipes import Recipe, load_recipe, recipe_names
from turngym.trainer_backends.torch_backend.command import changed

LEAST = """
[env]
preset = "t2po-sokoban"

[credit]
id = "grpo"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_with_all_its_parts(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.summary
    assert recipe.model.path or recipe.model.new
    tables = tomllib.loads(files("turngym").joinpath("configs", "train", f"{name}.toml").read_text())
    used = {(part.kind, part.id) for part in recipe.parts()}
    named = {tables[kind]["id"] for kind in ("rollout", "credit") if kind in tables}
    assert named <= {part_id for _, part_id in used}


def test_every_paper_has_a_recipe() -> None:
    papers = {"t2po", "rlvmr", "starpo", "starpo-s", "at2po", "aepo", "arpo"}
    baselines = {"ppo", "grpo", "dapo", "gspo", "reinforce-pp", "cispo", "gppo", "gigpo"}
    names = recipe_names()
    assert {each for each in papers | baselines if not any(name.startswith(each + "-") for name in names)} == set()


def test_the_papers_numbers() -> None:
    t2po = load_recipe("t2po-alfworld")
    assert (t2po.sampling.tasks, t2po.rollout["samples"]) == (16, 8)
    assert t2po.parts().token_control.config.window == 15
    assert t2po.parts().credit.config.gamma == 0.95
    assert load_preset(t2po.env.preset).turn["max_turns"] == 50
    starpo = load_recipe("starpo-s-sokoban")
    assert starpo.parts().filters[0].config.ratio == 0.25
    assert starpo.parts().loss.config.clip_high == 0.28
    assert load_recipe("at2po-webshop").parts().rollout.config.samples == 22


def test_what_is_not_named_has_defaults(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, LEAST))
    method = recipe.parts()
    assert (method.rollout.id, method.loss.id) == ("chains", "ppo")
    assert [part.id for part in method] == ["chains", "grpo", "ppo"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LEAST.replace("grpo", "grop"), "Did you mean 'grpo'"),
        (LEAST + "normalize = 'std'", "Did you mean 'normalise'"),
        (LEAST + "epsilon = -1.0", "epsilon must not be negative"),
        (LEAST + "[update]\nlearning_rat = 1e-6", "Did you mean 'learning_rate'"),
        (LEAST + "[updates]\nepochs = 2", "Did you mean 'update'"),
        (LEAST + "[update]\nepochs = 0", "update.epochs must be at least 1"),
        (LEAST + "[sampling]\ntemperature = -1.0", "sampling.temperature"),
        (LEAST.replace("t2po-sokoban", "t2po-sokobann"), "Did you mean 't2po-sokoban'"),
        (LEAST.replace('id = "grpo"', 'id = "turn-tree"'), "needs tree"),
        (LEAST + '[token_control]\nid = "tti"', "needs signal"),
        (LEAST + '[token_control]\nid = "budget"\nbudget = 600', "can never bind"),
        (LEAST + '[importance]\ncap = 2.0\n[update]\nold_logprobs = "sampled"', "[importance] corrects"),
        (LEAST.replace('id = "grpo"', "gamma = 1.0"), "has no id"),
        ("summary = 3", "mine.toml"),
    ],
)
def test_a_wrong_recipe_says_what_is_right(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_recipe(write(tmp_path, text))
    assert words in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("model.new", ["vocabulary = 0", "length = 0", "episodes = 0"]),
        ("model.lora", ["r = 0", "r = -4", "r = 1.5"]),
        ("start", ["noise = 1.5", "episodes = 0", "epochs = 0", "batch = 0", "learning_rate = 0.0", "prompts = -1.0"]),
        ("sampling", ["tasks = 0", "slots = 0", "max_tokens = 0", "max_prompt_tokens = 0", "temperature = inf"]),
        ("sampling", ["temperature = nan", "top_p = 0.0", "top_p = 1.1", "top_k = -1"]),
        ("critic", ["learning_rate = 0.0", "learning_rate = -1.0", "coefficient = -1.0", "clip = 0.0"]),
        ("kl", ["coefficient = -1.0"]),
        ("update", ["mini_batch = -1", "micro_tokens = 0", "epochs = 0", "learning_rate = 0.0", "learning_rate = inf"]),
        ("update", ["warmup = 1.5", "weight_decay = -0.1", "grad_clip = 0.0", "grad_clip = -1.0", "grad_clip = nan"]),
        ("update", ["betas = [2, 3]", "betas = [0.9, 1.0]", "betas = [-0.1, 0.9]"]),
        ("run", ["steps = -1", "minutes = -1.0", "minutes = nan", "tokens = -1"]),
        ("run", ["seed = -1", "seed = 9007199254740992", "eval_every = -1"]),
        ("run", ["eval_tasks = 0", "eval_temperature = -0.1", "save_every = 0"]),
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_named(tmp_path: Path, table: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as caught:
            load_recipe(write(tmp_path, f"{LEAST}[{table}]\n{value}"))
        assert value.split()[0] in f"{caught.value}" and table.split(".")[0] in f"{caught.value}", value


def test_a_gradient_may_be_of_any_norm(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, f"{LEAST}[update]\ngrad_clip = inf"))
    assert recipe.update.grad_clip == math.inf
    assert changed(recipe, {"update.grad_clip": None}).update.grad_clip is None


GROWING = """
[env]
preset = "PRESET"
[env.turn]
TURN
[credit]
id = "grpo"
[sampling]
rows = "trajectory"
"""


@pytest.mark.parametrize(
    ("preset", "turn", "fits"),
    [
        ("ragen-sokoban", "", True),
        ("t2po-sokoban", "", False),
        ("t2po-sokoban", "max_turns = 1", True),
        ("t2po-sokoban", 'style = "think-answer"', False),  # the preset's memory forgets turns
        ("t2po-sokoban", 'style = "think-answer"\nmemory = -1\nprompt = {}', True),
        ("ragen-sokoban", "memory = 2", False),
        ("ragen-sokoban", "memory = 4", True),
        ("ragen-sokoban", 'style = "meta-tags"', False),
    ],
)
def test_whole_trajectories_need_prompts_that_grow(tmp_path: Path, preset: str, turn: str, fits: bool) -> None:
    path = write(tmp_path, GROWING.replace("PRESET", preset).replace("TURN", turn))
    if fits:
        assert load_recipe(path).sampling.rows == "trajectory"
    else:
        with pytest.raises(InvalidRequest, match=r"go on from the turn before.*env.turn.memory = -1"):
            load_recipe(path)


def test_what_only_a_hub_knows_is_left_to_training(tmp_path: Path) -> None:
    preset = tmp_path / "elsewhere.toml"
    preset.write_text('env = "known-elsewhere"')
    path = write(tmp_path, GROWING.replace("PRESET", str(preset)).replace("TURN", ""))
    assert load_recipe(path).sampling.rows == "trajectory"


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_recipe("t2po-webshp")
    assert "t2po-webshop" in caught.value.hint


def test_every_part_loads_with_its_defaults_and_has_its_entry() -> None:
    for kind, entry in parts.ENTRY.items():
        for part_id in parts.ids(kind):
            needed = {"limit": 4096} if part_id == "overlong" else {}
            part = parts.load(kind, part_id, needed)
            assert callable(getattr(part.module, entry)), (kind, part_id)
            assert part.module.__doc__
            assert part.config.__struct_config__.frozen


def test_a_recipe_is_data() -> None:
    assert Recipe.__struct_config__.frozen
