from __future__ import annotations

from pathlib import Path

import pytest

from turngym.client.evaluation.presets import eval_preset_names, load_eval_preset
from turngym.client.evaluation.runner import evaluate
from turngym.errors import InvalidRequest, Unavailable


def test_the_presets_are_there() -> None:
    assert {"quick", "ragen", "t2po"} <= set(eval_preset_names())
    ragen = load_eval_preset("ragen")
    assert (ragen.episodes, ragen.sampling.temperature, ragen.turn) == (
        256,
        0.5,
        {"style": "think-answer", "max_turns": 5},
    )
    t2po = load_eval_preset("t2po").sampling
    assert (t2po.temperature, t2po.top_p, t2po.top_k) == (0.6, 0.95, 20)


@pytest.mark.parametrize("name", ["t2po-webshop", "t2po-alfworld", "rlvmr-alfworld", "ragen-webshop"])
def test_the_papers_tables_have_all_their_numbers(name: str, tmp_path: Path) -> None:
    plan = load_eval_preset(name)
    plan.policies, plan.episodes = ["expert"], 12
    try:
        results = evaluate(plan, tmp_path)
    except Unavailable as error:
        pytest.skip(f"data: {error}")
    assert results.missing == 0 and len(results.tables) == len(plan.tables)
    for table in results.tables:
        (row,) = table.rows
        for head, cell in zip(table.heads, row.cells, strict=True):
            # Token counts are a model's.
            known = not head.label.startswith(("tokens", "cut off"))
            assert (cell.mean is not None) is known, (table.title, head)
            assert cell.std is None or plan.seeds > 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('envs = ["bandit"]\nepisode = 3', "Did you mean 'episodes'"),
        ('envs = ["bandit"]\n[sampling]\ntemprature = 0.5', "Did you mean 'temperature'"),
        ('envs = ["bandit"]\n[[policies]]\nkind = "model"\nbase-url = "x"', "Did you mean 'base_url'"),
        ('[[envs]]\nenv = "bandit"\nconfg = {}', "Did you mean 'config'"),
        ('envs = ["bandit"]\nepisodes = 0', "Expected `int` >= 1"),
        ('envs = ["bandit"]\nspread = "evn"', "Invalid enum value"),
        ('policies = ["random"]', "missing required field `envs`"),
        ("envs = [", "Correct the TOML"),
    ],
)
def test_a_file_that_does_not_fit_says_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        load_eval_preset(str(path))


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('envs = ["bandit"]\n[[policies]]\nkind = "model"\nmodel = "m"\n[policies.sampling]\ntop_k = 3')
    (policy,) = load_eval_preset(str(path)).policies
    assert not isinstance(policy, str) and policy.sampling is not None and policy.sampling.top_k == 3


def test_no_such_preset() -> None:
    with pytest.raises(InvalidRequest, match="Did you mean 'ragen'"):
        load_eval_preset("ragn")
