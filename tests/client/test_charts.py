"""Lines over steps: axes that hold what they show, gaps, spikes, and charts of nothing."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from turngym.client.evaluation.charts import POINTS, Curve, curves

NAN = math.nan


def drawn(*lines: Curve, share: bool = False) -> ElementTree.Element:
    svg = curves(lines, "step", lambda value: f"{value:.4g}", share=share)
    assert "nan" not in svg and "inf" not in svg
    return ElementTree.fromstring(svg)


def ticks(svg: ElementTree.Element) -> list[float]:
    return [float(text.text or "") for text in svg.iter("text") if text.get("class") == "tick end"]


def heights(svg: ElementTree.Element) -> list[float]:
    """Return every y of the lines, in the drawing's units: more is lower."""
    paths = [path.get("d") or "" for path in svg.iter("path") if (path.get("class") or "").startswith("line")]
    return [float(pair.split()[1]) for path in paths for pair in re.split("[ML]", path) if pair]


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.0, 1.0], 0, 1),
        ([3.0, 9.0], 0, 10),  # 0 is near
        ([98.0, 100.0], 98, 100),  # 0 is far
        ([-0.3, 0.5], -0.4, 0.6),
        ([5.0, 5.0, 5.0], 2, 8),
        ([0.0, 0.0], 0, 1),
        ([-4.0, -4.0], -6, -2),
        ([1e-7, 2e-7], 0, 2e-7),
        ([1e6, 3e6], 0, 3e6),
    ],
)
def test_an_axis_holds_its_values(values: list[float], low: float, high: float) -> None:
    svg = drawn(Curve("p", list(enumerate(values)), "p0"))
    found = ticks(svg)
    assert found[0] == pytest.approx(low) and found[-1] == pytest.approx(high) and len(found) >= 3
    assert all(10 <= y <= 150 for y in heights(svg))


def test_shares_end_at_one() -> None:
    svg = drawn(Curve("p", [(0, 0.9), (1, 1.0)], "p0", band=[(0, 0.85, 0.95), (1, 0.99, 1.0)]), share=True)
    assert ticks(svg)[0] == 0 and ticks(svg)[-1] == 1


def test_what_is_not_finite_leaves_a_gap() -> None:
    svg = drawn(Curve("p", [(0, 1.0), (1, 2.0), (2, NAN), (3, 1.0), (4, math.inf), (5, 1.0), (6, 2.0)], "p0"))
    lines = [path for path in svg.iter("path") if path.get("class") == "line"]
    assert len(lines) == 3 and len(list(svg.iter("circle"))) == 5


def test_a_spike_in_a_long_line_stays() -> None:
    points = [(float(x), 100.0 if x == 7777 else 1.0) for x in range(20_000)]
    found = heights(drawn(Curve("p", points, "p0")))
    assert len(found) <= POINTS + 2 and min(found) == 10 and found.count(min(found)) == 1


def test_nothing_is_drawn_of_nothing() -> None:
    for line in (Curve("p", [], "p0"), Curve("p", [(0, NAN)], "p0")):
        assert "nothing was noted" in "".join(drawn(line).itertext())


def test_marks_say_what_happened() -> None:
    svg = curves([Curve("p", [(0, 1.0), (9, 2.0)], "p0")], "step", str, marks=[(4, "it <fell>")])
    (mark,) = [path for path in ElementTree.fromstring(svg).iter("path") if path.get("class") == "mark"]
    assert [title.text for title in mark] == ["it <fell>"]
