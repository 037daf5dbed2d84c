"""Domains, grammars and problems of our own: what the engine makes of the file formats, and what it refuses."""

from __future__ import annotations

import random

import pytest

from turngym.envs.alfworld.engine import Game
from turngym.errors import GameError

DOMAIN = """
; a shed with boxes
(define (domain shed)
  (:requirements :adl :typing :action-costs)
  (:types keeper box thing - object metal - thing)
  (:predicates (near ?k - keeper ?b - box) (in ?t - thing ?b - box) (holds ?k - keeper ?t - thing) (busy ?k - keeper)
    (lidded ?b - box) (open ?b - box) (rusty ?t - thing) (shiny ?t - thing) (visited ?b - box))
  (:functions (total-cost) - number)
  (:action walk :parameters (?k - keeper ?from - box ?to - box)
    :precondition (and (near ?k ?from) (or (lidded ?to) (not (lidded ?to))))
    :effect (and (not (near ?k ?from)) (near ?k ?to) (visited ?to) (increase (total-cost) 1)))
  (:action lift :parameters (?k - keeper ?b - box)
    :precondition (and (near ?k ?b) (lidded ?b) (not (open ?b)))
    :effect (and (open ?b)))
  (:action grab :parameters (?k - keeper ?t - thing ?b - box)
    :precondition (and (in ?t ?b) (near ?k ?b) (not (busy ?k)) (or (not (lidded ?b)) (open ?b)))
    :effect (and (not (in ?t ?b)) (holds ?k ?t) (busy ?k)))
  (:action drop :parameters (?k - keeper ?t - thing ?b - box)
    :precondition (and (holds ?k ?t) (near ?k ?b) (or (not (lidded ?b)) (open ?b)))
    :effect (and (in ?t ?b) (not (holds ?k ?t)) (not (busy ?k))))
  (:action polish :parameters (?k - keeper ?t - metal)
    :precondition (holds ?k ?t)
    :effect (and (when (rusty ?t) (not (rusty ?t))) (when (not (rusty ?t)) (shiny ?t))))
  (:action peek :parameters (?k - keeper ?t - thing)
    :precondition (or (exists (?b - box) (and (near ?k ?b) (in ?t ?b) (not (lidded ?b)))) (holds ?k ?t))
    :effect (visited ?t))
  (:action rest :parameters (?k - keeper)
    :precondition (forall (?b - box) (or (open ?b) (not (lidded ?b))))
    :effect (visited ?k)))
"""
GRAMMAR = '''
# what the shed says
grammar :: """
    {
        "intro": [{"rhs": "#where#\\n\\n#task#"}],
        "task": [{"rhs": "Do: SOMETHING."}],
        "where": [
            {"condition": "near(k:keeper, b:box)", "rhs": "{#box(b)# | near(k:keeper, b:box)}"},
            {"rhs": "Nowhere."}
        ],
        "box(b)": [{"rhs": "By {b.indefinite} {b.name}: #inside#"}],
        "inside": [
            {"condition": "lidded(b:box) & open(b:box)", "rhs": "open, [{#item(t)# | in(t:thing, b:box)}]."},
            {"condition": "lidded(b:box)", "rhs": "shut."},
            {"rhs": "[{#item(t)# | in(t:thing, b:box)}]."}
        ],
        "item(t)": [
            {"condition": "not_rusty(t:thing)", "rhs": "{t.name + ' ' + 'cleaned'}"},
            {"rhs": "{t.name or t.id}"}
        ],
        "list_empty": [{"rhs": "nothing"}],
        "list_separator": [{"rhs": ", "}],
        "list_last_separator": [{"rhs": ", and "}]
    }
""";
action walk { template :: "walk to [{to.name | lidded(to:box)}]"; feedback :: "  At {to.name}."; }
action lift { template :: "lift {b}"; feedback :: "Up. #inside#"; }
action grab { template :: "grab {t}"; feedback :: "Got {t.definite} {t.name}."; }
action drop { template :: "drop {t}"; feedback :: "Gone."; }
action polish { template :: "polish {t}"; feedback :: "Rub. #item(t)#"; }
action peek { template :: "peek at {t}"; feedback :: "Hm, {t.id}. #pair#";
    grammar :: """
        {"pair": [{"condition": "in(t:thing, b:box) & in(u:thing, b:box)", "rhs": "It has company."},
                  {"rhs": "Alone; stray } ends it"}]}
    """;
}
action rest { template :: "rest"; feedback :: "Zzz. #where#"; }
'''
PROBLEM = """
(define (problem one) (:domain shed)
  (:objects k - keeper Tub_bar_1 Tub_bar_2 crate_bar__minus_3 - box nail_bar_1 nail_bar_2 - metal rope_bar_1 - thing)
  (:init (near k Tub_bar_1) (lidded crate_bar__minus_3) (in rope_bar_1 Tub_bar_1) (in nail_bar_1 Tub_bar_1)
    (in nail_bar_2 crate_bar__minus_3) (rusty nail_bar_1) (lidded Tub_bar_2) (= (total-cost) 0))
  (:goal (and (exists (?t - metal) (and (shiny ?t) (in ?t CRATE_bar__minus_3))))))
"""


class Player:
    def __init__(self, domain: str = DOMAIN, grammar: str = GRAMMAR, problem: str = PROBLEM) -> None:
        self.game = Game(domain, grammar, problem)
        self.state = self.game.start

    def commands(self) -> list[str]:
        return list(self.game.commands(self.state))

    def do(self, command: str) -> str:
        found = self.game.commands(self.state)[command]
        self.state = self.game.after(self.state, *found)
        return self.game.feedback(self.state, *found)


def test_a_whole_game() -> None:
    player = Player()
    assert player.game.intro() == "By a tub 2: nail 2, and rope 1.\n\nDo: SOMETHING."
    assert player.commands() == [
        "grab nail 2",
        "grab rope 1",
        "peek at nail 2",
        "peek at rope 1",
        "walk to crate 1",
        "walk to nothing",  # the tub without a lid: what a template's list does not find
        "walk to tub 1",
    ]
    assert player.do("peek at nail 2") == "Hm, nail_bar_1. It has company."
    assert player.do("grab nail 2") == "Got the nail 2."
    assert player.do("peek at nail 2") == "Hm, nail_bar_1. Alone"  # the text ends at a stray sign, as in the reference
    # The rule asks about a "t" of another type than the action's: another variable, and so another entity.
    assert player.do("polish nail 2") == "Rub. nail 2"
    assert not player.game.won(player.state)
    player.do("polish nail 2")
    assert player.do("walk to crate 1") == "At crate 1."
    assert "drop nail 2" not in player.commands() and "rest" not in player.commands()
    assert player.do("lift crate 1") == "Up. open, nail 1."
    player.do("drop nail 2")
    assert player.game.won(player.state)
    player.do("walk to tub 1")
    player.do("lift tub 1")
    player.do("walk to crate 1")
    assert player.do("rest") == "Zzz. By a crate 1: open, nail 2 cleaned, and nail 1."


def test_states_are_values() -> None:
    player = Player()
    start = player.state
    before = player.commands()
    player.do("grab rope 1")
    assert player.commands() != before
    assert list(player.game.commands(start)) == before
    player.state = start
    player.do("peek at rope 1")  # only marks as visited, which nothing reads
    assert player.state is start


def test_every_command_is_understood_wherever_play_goes() -> None:
    draw = random.Random(3)
    player = Player()
    for _ in range(200):
        commands = player.commands()
        assert commands == sorted(set(commands))
        assert player.do(draw.choice(commands))


def test_one_cannot_walk_to_where_one_is() -> None:
    player = Player(domain=DOMAIN.replace("(visited ?to)", ""))
    player.do("walk to crate 1")
    assert "walk to crate 1" not in player.commands() and "walk to tub 1" in player.commands()
    player = Player()
    player.do("walk to crate 1")
    assert "walk to crate 1" in player.commands()  # here it has an effect still


def test_facts_that_only_the_goal_reads_are_kept() -> None:
    goal = "(visited Tub_bar_2)"
    player = Player(problem=PROBLEM[: PROBLEM.index("(:goal")] + f"(:goal {goal}))")
    assert not player.game.won(player.state)
    player.do("walk to tub 1")
    assert player.game.won(player.state)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (":typing", ":fluents", "requires :fluents"),
        ("(:functions", "(:derived", ":derived"),
        ("(and (open ?b))", "(forall (?x - box) (open ?x))", "forall"),
        ("(lidded ?b) (not (open ?b))", "(lidded ?b) (not (opened ?b))", "opened"),
        ("(near ?k ?b) (lidded", "(near ?k) (lidded", "arguments"),
        ("- keeper ?t - metal", "- keeper ?t - gold", "gold"),
        ("(visited ?k)))", "(visited ?k))", "cut off"),
        ("(visited ?k)))", "(visited ?k))))", "never opened"),
        ("(holds ?k ?t)\n    :effect (and (when", "(holds ?k ?zzz)\n    :effect (and (when", "zzz"),
        (":precondition (holds", ":prologue (holds", ":prologue"),
    ],
)
def test_domains_that_are_not_understood(old: str, new: str, message: str) -> None:
    assert old in DOMAIN
    with pytest.raises(GameError, match=message):
        Player(domain=DOMAIN.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(:domain shed)", "(:domain garage)", "garage"),
        ("(rusty nail_bar_1)", "(rusty nail_bar_9)", "nail_bar_9"),
        ("(rusty nail_bar_1)", "(shabby nail_bar_1)", "shabby"),
        ("(rusty nail_bar_1)", "(rusty nail_bar_1 k)", "arguments"),
        ("(:init", "(:start", ":start"),
        ("(shiny ?t)", "(shiny (?t))", "name is expected"),
        ("(define (problem", "(define (domain", "problem"),
    ],
)
def test_problems_that_are_not_understood(old: str, new: str, message: str) -> None:
    assert old in PROBLEM
    with pytest.raises(GameError, match=message):
        Player(problem=PROBLEM.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"list_empty": [', '"list_none": [', "list_empty"),
        ("#inside#", "#outside#", "outside"),
        ('"rhs": "Nowhere."', '"rhs": "#where#"', "calls itself"),
        ("{t.name or t.id}", "{t.name[0]}", None),
        ("{t.name or t.id}", "{len(t.name)}", "len"),
        ("{t.name or t.id}", "{z.name}", "'z'"),
        ("lidded(b:box) & open", "lidded(b:box) | open", "not understood"),
        ("not_rusty(t:thing)", "dusty(t:thing)", "dusty"),
        ("action rest {", "action sleep {", "no action 'rest'"),
        ('feedback :: "Zzz. #where#";', "", "feedback"),
        ('{"rhs": "Nowhere."}', '{"lhs": "Nowhere."}', "where"),
        ('"Nowhere."}', '"Nowhere."', "JSON"),
        ("action lift", "motion lift", "line"),
    ],
)
def test_grammars_that_are_not_understood(old: str, new: str, message: str | None) -> None:
    assert old in GRAMMAR
    if message is None:  # a stray bracket ends the text there, as in the reference
        assert Player(grammar=GRAMMAR.replace(old, new, 1)).game.intro().startswith("By a tub 2")
        return
    with pytest.raises(GameError, match=message):
        Player(grammar=GRAMMAR.replace(old, new, 1))
