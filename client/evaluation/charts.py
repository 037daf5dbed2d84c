"""Charts of the report as SVG text: no script, no asset, colours from the page's style sheet.

Every chart takes series by policy; a policy's colour is the class "p0" … "p7" of its position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from .metrics import Estimate, show

WIDTH = 420
LABELS = 118  # room for names left of a bar
ROW = 24
COLOURS = 8
POINTS = 400  # drawn of one line
DOTS = 60  # lines of more points have no dots


def colour(index: int) -> str:
    """Return the colour class of the policy at a position."""
    return f"p{index % COLOURS}"


def bars(values: Mapping[str, Estimate | None]) -> str:
    """Return horizontal bars with intervals, one a policy.

    Args:
        values: policy -> share with its interval, None where nothing is known.
    """
    scale = WIDTH - 62 - LABELS
    height = ROW * len(values) + 22
    parts = [_ticks(LABELS, height - 20, scale)]
    for row, (name, value) in enumerate(values.items()):
        y = row * ROW + 4
        parts.append(_label(name, LABELS - 8, y + 12))
        if value is None:
            parts.append(_text(LABELS + 6, y + 12, "none finished", "muted"))
            continue
        x, low, high = (LABELS + number * scale for number in (value.mean, value.low, value.high))
        title = f"{name}: {value.mean:.1%}, 95 % interval {value.low:.1%} to {value.high:.1%}"
        parts.append(
            f'<g class="{colour(row)}"><title>{escape(title)}</title>'
            f'<rect class="fill" x="{LABELS}" y="{y}" width="{max(x - LABELS, 1):.1f}" height="16" rx="2"/>'
            f'<path class="whisker" d="M{low:.1f} {y + 8}H{high:.1f}M{low:.1f} {y + 4}v8M{high:.1f} {y + 4}v8"/></g>'
        )
        parts.append(_text(max(x, high) + 7, y + 12, show(value, "share"), "value"))
    return _svg(height, parts)


def outcomes(values: Mapping[str, Mapping[str, int]], classes: Mapping[str, str]) -> str:
    """Return one stacked bar a policy.

    Args:
        values: policy -> outcome -> number of episodes.
        classes: outcome -> colour class, in the order of stacking.
    """
    height = ROW * len(values) + 4
    width = WIDTH - LABELS - 8
    parts = []
    for row, (name, counts) in enumerate(values.items()):
        y, x, total = row * ROW + 4, float(LABELS), sum(counts.values())
        parts.append(_label(name, LABELS - 8, y + 12))
        for outcome, css in classes.items():
            count = counts.get(outcome, 0)
            if not count:
                continue
            part = width * count / total
            title = f"{name}: {outcome} {count} of {total} ({count / total:.1%})"
            parts.append(
                f'<g class="{css}"><title>{escape(title)}</title>'
                f'<rect class="fill" x="{x:.1f}" y="{y}" width="{max(part - 1, 0.5):.1f}" height="16"/></g>'
            )
            if part > 34:
                parts.append(_text(x + part / 2, y + 12, str(count), "inside"))
            x += part
    return _svg(height, parts)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, *, steps: bool) -> str:
    """Return lines of shares over a whole number, one a policy.

    Args:
        series: policy -> (x, share) points in order of x, x from 1.
        x_label: what x is.
        steps: draw stairs instead of straight lines.
    """
    left, right, top, bottom = 44, WIDTH - 12, 10, 150
    last = max((points[-1][0] for points in series.values() if points), default=1.0)
    scale = (right - left) / max(last - 1, 1)
    parts = [_grid(left, right, top, bottom), _x_axis(left, bottom, last, scale, x_label)]
    for row, (name, points) in enumerate(series.items()):
        if not points:
            continue
        places = [(left + (x - 1) * scale, bottom - y * (bottom - top)) for x, y in points]
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
        for x, y in places[1:]:
            path += f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}"
        dots = "".join(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{3 if len(places) < 40 else 1.5}">'
            f"<title>{escape(f'{name}: {share:.1%} at {number:g} {x_label}')}</title></circle>"
            for (x, y), (number, share) in zip(places, points, strict=True)
        )
        parts.append(f'<g class="{colour(row)}"><path class="line" d="{path}"/>{dots}</g>')
    return _svg(bottom + 36, parts)


@dataclass(frozen=True)
class Curve:
    """One line of :func:`curves`.

    Attributes:
        name: what it is of.
        points: (x, y) in order of x; a y that is not finite leaves a gap.
        css: colour class.
        band: (x, low, high) around it.
        thick: the same, smoothed; the points themselves are then drawn faint.
    """

    name: str
    points: Sequence[tuple[float, float]]
    css: str
    band: Sequence[tuple[float, float, float]] = ()
    thick: Sequence[tuple[float, float]] = ()


def curves(
    lines: Sequence[Curve],
    x_label: str,
    text_of: Callable[[float], str],
    *,
    marks: Sequence[tuple[float, str]] = (),
    share: bool = False,
) -> str:
    """Return lines of numbers over x.

    Args:
        lines: what is drawn, the first on top.
        x_label: what x is.
        text_of: how a number reads.
        marks: (x, what happened there) as vertical lines.
        share: the numbers lie in [0, 1].
    """
    left, right, top, bottom = 52, WIDTH - 12, 10, 150
    points = [point for line in lines for point in line.points if math.isfinite(point[1])]
    edges = [edge for line in lines for _, *both in line.band for edge in both if math.isfinite(edge)]
    if not points:
        return _svg(40, [_text(left, 24, "nothing was noted", "muted")])
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low, high, every = _scale([*(y for _, y in points), *edges], share)
    across, up = (right - left) / ((high_x - low_x) or 1), (bottom - top) / (high - low)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x - low_x) * across, bottom - (y - low) * up

    parts = []
    for n in range(round((high - low) / every) + 1):
        y = bottom - n * every * up
        parts.append(f'<path class="{"axis" if n == 0 else "grid"}" d="M{left} {y:.1f}H{right}"/>')
        parts.append(_text(left - 6, y + 4, text_of(low + n * every), "tick end"))
    ticks = _whole_ticks(low_x, high_x)
    parts += [_text(left + (x - low_x) * across, bottom + 14, _short(x), "tick middle") for x in ticks]
    parts.append(_text((left + right) / 2, bottom + 30, x_label, "muted middle"))
    parts += [
        f'<path class="mark" d="M{place(x, low)[0]:.1f} {top}V{bottom}"><title>{escape(what)}</title></path>'
        for x, what in marks
    ]
    # What comes first is drawn last: it lies on top.
    parts += [_curve(line, place, text_of, x_label) for line in reversed(lines)]
    return _svg(bottom + 36, parts)


def _curve(
    line: Curve, place: Callable[[float, float], tuple[float, float]], text_of: Callable[[float], str], x_label: str
) -> str:
    parts = []
    if line.band:
        up = [place(x, high) for x, _, high in line.band]
        down = [place(x, low) for x, low, _ in reversed(line.band)]
        parts.append(f'<path class="band" d="{_path([*up, *down])}Z"/>')
    css = "line faint" if line.thick else "line"
    strokes = [(css, run) for run in _runs(_fewer(line.points))] + [("line", _fewer(line.thick))] * bool(line.thick)
    parts += [f'<path class="{css}" d="{_path([place(*point) for point in run])}"/>' for css, run in strokes]
    known = [(x, y) for x, y in line.points if math.isfinite(y)]
    # Of long lines only the ends are told.
    told = known if len(known) <= DOTS else [known[0], known[-1]]
    for x, y in told:
        at, height = place(x, y)
        title = escape(f"{line.name}: {text_of(y)} at {x_label} {x:g}")
        size = 2.6 if len(known) <= DOTS else 1.6
        parts.append(f'<circle class="dot" cx="{at:.1f}" cy="{height:.1f}" r="{size}"><title>{title}</title></circle>')
    return f'<g class="{line.css}"><title>{escape(line.name)}</title>{"".join(parts)}</g>'


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _runs(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Split points where one is not finite."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _fewer(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most about ``POINTS`` points: of each stretch the least and the greatest, so that spikes stay."""
    if len(points) <= POINTS:
        return points
    size = math.ceil(2 * len(points) / POINTS)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        known = [point for point in stretch if math.isfinite(point[1])]
        if len(known) < len(stretch):
            kept.append((stretch[0][0], math.nan))
        if known:
            kept += sorted({min(known, key=lambda point: point[1]), max(known, key=lambda point: point[1])})
    return kept


def _scale(values: Sequence[float], share: bool) -> tuple[float, float, float]:
    """Return (low, high, distance of ticks) of an axis that holds the values; 0 is on it unless it is far off."""
    low, high = min(values), max(values)
    if low > 0 and (share or low < 0.6 * high):
        low = 0.0
    elif high < 0 and high > 0.6 * low:
        high = 0.0
    if high - low <= 2e-3 * max(abs(high), abs(low)):
        # A flat line lies in the middle of something.
        low, high = (0.0, 1.0) if low == 0 else (low - abs(low) / 2, high + abs(high) / 2)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    every = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)
    low, high = math.floor(low / every + 1e-9) * every, math.ceil(high / every - 1e-9) * every
    if share and high > 1:
        low, high, every = min(low, 0.0), 1.0, 0.25
    return low, high, every


def _whole_ticks(low: float, high: float) -> list[float]:
    rough = max((high - low) / 6, 1e-9)
    power = 10.0 ** math.floor(math.log10(rough))
    every = max(1.0, next(step * power for step in (1, 2, 5, 10) if step * power >= rough))
    return [n * every for n in range(math.ceil(low / every), math.floor(high / every) + 1)]


def _short(x: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(x) >= size:
            return f"{x / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{x:g}"


def histogram(counts: Mapping[str, Mapping[int, int]], x_label: str, *, most_bins: int = 24) -> str:
    """Return shares per bin of whole numbers, policies side by side.

    Args:
        counts: policy -> number -> how often.
        x_label: what is counted.
        most_bins: wider bins are taken rather than more.
    """
    left, right, top, bottom = 44, WIDTH - 12, 10, 150
    last = max((max(own) for own in counts.values() if own), default=1)
    width = math.ceil(last / most_bins)
    bins = math.ceil(last / width)
    place = (right - left) / bins
    shares = {name: _binned(own, width, bins) for name, own in counts.items()}
    highest = max((max(own) for own in shares.values()), default=0.0)
    highest = next(top for top in (0.04, 0.08, 0.2, 0.4, 0.6, 0.8, 1.0) if top >= min(highest, 1.0))
    parts = [_grid(left, right, top, bottom, highest)]
    thick = min(max((place - min(4.0, place * 0.2)) / max(len(counts), 1), 1.0), 28.0)
    for row, (name, own) in enumerate(shares.items()):
        rects = []
        for index, share in enumerate(own):
            if not share:
                continue
            tall = share / highest * (bottom - top)
            what = f"{index * width + 1}" if width == 1 else f"{index * width + 1} to {(index + 1) * width}"
            title = f"{name}: {what} {x_label}, {share:.1%} of episodes"
            x = left + (index + 0.5) * place + (row - len(shares) / 2) * thick
            rects.append(
                f'<rect class="fill" x="{x:.1f}" y="{bottom - tall:.1f}" width="{max(thick - 0.6, 0.8):.1f}" '
                f'height="{tall:.1f}"><title>{escape(title)}</title></rect>'
            )
        parts.append(f'<g class="{colour(row)}">{"".join(rects)}</g>')
    every = math.ceil(bins / 8)
    for index in range(0, bins, every):
        what = f"{index * width + 1}" if width == 1 else f"{index * width + 1}–{(index + 1) * width}"
        parts.append(_text(left + (index + 0.5) * place, bottom + 14, what, "tick middle"))
    parts.append(_text((left + right) / 2, bottom + 30, x_label, "muted middle"))
    return _svg(bottom + 36, parts)


def components(values: Mapping[str, Mapping[str, float]]) -> str:
    """Return the reward components as bars from zero, grouped by component; those that are 0 everywhere are left out.

    Args:
        values: policy -> component -> mean per episode.
    """
    names = list(
        dict.fromkeys(name for own in values.values() for name, value in own.items() if value or name == "env")
    )
    numbers = [value for own in values.values() for value in own.values()]
    low, high = min([0.0, *numbers]), max([0.0, *numbers])
    span = (high - low) or 1.0
    left, right = LABELS + (46 if low < 0 else 0), WIDTH - 50
    scale = (right - left) / span
    zero = left - low * scale
    parts, y = [], 2
    for name in names:
        if len(names) > 1:
            parts.append(_text(0, y + 11, name, "group"))
            y += 18
        for row, (policy, own) in enumerate(values.items()):
            if name not in own:
                continue
            value = own[name]
            x = zero + min(value, 0) * scale
            wide = max(abs(value) * scale, 1)
            parts.append(_label(policy, LABELS - 8, y + 11))
            parts.append(
                f'<g class="{colour(row)}"><title>{escape(f"{policy}: {name} {value:.4g} per episode")}</title>'
                f'<rect class="fill" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="14" rx="2"/></g>'
            )
            after, css = (x + wide + 6, "value") if value >= 0 else (x - 6, "value end")
            parts.append(_text(after, y + 11, show(value), css))
            y += 20
        y += 6
    parts.insert(0, f'<path class="axis" d="M{zero:.1f} 0V{y - 4}"/>')
    return _svg(y, parts)


def _binned(own: Mapping[int, int], width: int, bins: int) -> list[float]:
    total = sum(own.values())
    shares = [0.0] * bins
    for number, count in own.items():
        shares[max(number - 1, 0) // width] += count / total
    return shares


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, css: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">{escape(text)}</text>'


def _label(name: str, x: float, y: float) -> str:
    # A model's path is told apart by its end.
    shown = name if len(name) <= 18 else "…" + name[-17:]
    return f'<text x="{x}" y="{y}" class="name end"><title>{escape(name)}</title>{escape(shown)}</text>'


def _ticks(left: float, y: float, scale: float) -> str:
    return "".join(
        f'<path class="grid" d="M{left + n / 4 * scale:.1f} 0V{y:g}"/>'
        + _text(left + n / 4 * scale, y + 14, f"{n / 4:.0%}", "tick middle")
        for n in range(5)
    )


def _grid(left: float, right: float, top: float, bottom: float, highest: float = 1.0) -> str:
    parts = []
    for n in range(5):
        y = bottom - n / 4 * (bottom - top)
        parts.append(f'<path class="{"axis" if n == 0 else "grid"}" d="M{left} {y:.1f}H{right}"/>')
        parts.append(_text(left - 6, y + 4, f"{highest * n / 4:.0%}", "tick end"))
    return "".join(parts)


def _x_axis(left: float, bottom: float, last: float, scale: float, label: str) -> str:
    every = max(1, math.ceil(last / 10))
    marks = [1, *(n for n in range(every, int(last) + 1, every) if n > 1)]
    parts = [_text(left + (n - 1) * scale, bottom + 14, str(n), "tick middle") for n in marks]
    parts.append(_text((left + WIDTH - 12) / 2, bottom + 30, label, "muted middle"))
    return "".join(parts)
