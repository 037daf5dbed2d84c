"""Which rows of a group saw the same state: equal anchor texts, or texts that difflib calls similar enough.

The released GiGPO code visits the rows in order and lets each join the first cluster whose *first* member has
``difflib.SequenceMatcher(None, text, first).ratio() >= threshold``, else open a new one. The result depends on the
order of the rows. Here the same clusters come from fewer and cheaper steps: a text is placed once per group, a pair
is rejected by its longest common subsequence (an upper bound of what difflib matches), and what is left is compared
as difflib does, up to the point where the answer is certain.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import cached_property

from ....errors import MissingExtra


def cluster(
    anchors: Sequence[str],
    groups: Sequence[int],
    threshold: float | None = None,
    *,
    autojunk: bool = True,
    counted: Sequence[bool] | None = None,
) -> list[int]:
    """Return the cluster of every row, numbered from 0 in the order of their first rows; groups never mix.

    Args:
        anchors: text of every row.
        groups: rows of different groups are never in one cluster.
        threshold: similarity from 0 to 1 that joins a row to a cluster; None asks for equal texts.
        autojunk: difflib's own default: in a first member of 200 characters or more, a character that makes up more
            than 1% of it starts no match. Long texts then have a ratio near 0 unless rare characters tie them
            together, whatever they share. False compares all characters and takes longer.
        counted: rows that count; the others get cluster -1 and open none. None counts all.

    Raises:
        MissingExtra: a threshold is given and rapidfuzz is not installed.
    """
    known: dict[tuple[int, str], int] = {}
    firsts: defaultdict[int, list[tuple[int, First]]] = defaultdict(list)
    opened = 0
    clusters = []
    for row, (text, group) in enumerate(zip(anchors, groups, strict=True)):
        if counted is not None and not counted[row]:
            clusters.append(-1)
            continue
        found = known.get((group, text))
        if found is None:
            found = None if threshold is None else _first_fit(text, firsts[group], threshold)
            if found is None:
                found, opened = opened, opened + 1
                if threshold is not None:
                    firsts[group].append((found, First(text, autojunk)))
            # First members never change, so that the same text would end in the same cluster again.
            known[group, text] = found
        clusters.append(found)
    return clusters


def _first_fit(text: str, firsts: list[tuple[int, First]], threshold: float) -> int | None:
    if not firsts:
        return None
    common = _subsequence()
    places: dict[str, list[int]] = {}
    for number, first in firsts:
        needed = needed_matches(len(text) + len(first.text), threshold)
        if min(len(text), len(first.text)) < needed or common(text, first.text, score_cutoff=needed) < needed:
            continue
        places = places or _places(text)
        if first.matches(text, places, needed):
            return number
    return None


def needed_matches(length: int, threshold: float) -> int:
    """Return the least number of matched characters at which texts of ``length`` in all reach the threshold."""
    if length == 0:
        return 0
    matches = math.ceil(threshold * length / 2)
    # The product is rounded; the decision must be that of difflib's own division.
    while matches > 0 and 2.0 * (matches - 1) / length >= threshold:
        matches -= 1
    while 2.0 * matches / length < threshold:
        matches += 1
    return matches


def _subsequence() -> Callable[..., int]:
    try:
        from rapidfuzz.distance import LCSseq
    except ImportError as error:
        raise MissingExtra("Similar anchors need rapidfuzz.", hint='Run: pip install "turngym[torch]"') from error
    similarity: Callable[..., int] = LCSseq.similarity
    return similarity


def _places(text: str) -> dict[str, list[int]]:
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, character in enumerate(text):
        places[character].append(place)
    return places


def _stretches(places: list[int]) -> list[tuple[int, int]]:
    """Return where runs of neighbouring places begin and end (exclusive)."""
    stretches: list[tuple[int, int]] = []
    begin = end = -1
    for place in places:
        if place != end:
            if end > begin:
                stretches.append((begin, end))
            begin = place
        end = place + 1
    return [*stretches, (begin, end)] if end > begin else stretches


class First:
    """The first member of a cluster, prepared for being compared with many texts.

    Args:
        text: its text.
        autojunk: see :func:`cluster`.
    """

    def __init__(self, text: str, autojunk: bool) -> None:
        self.text = text
        self._autojunk = autojunk

    @cached_property
    def _starters(self) -> dict[str, list[int]]:
        """Where the characters are that may start a match."""
        matcher = SequenceMatcher(None, "", self.text, self._autojunk)
        starters: dict[str, list[int]] = matcher.b2j  # type: ignore[attr-defined] # documented, but not in typeshed
        return starters

    def matches(self, text: str, places: dict[str, list[int]], needed: int) -> bool:
        """Return whether ``SequenceMatcher(None, text, self.text)`` matches at least ``needed`` characters.

        Args:
            text: the other text.
            places: where each of its characters is.
            needed: matched characters asked for.
        """
        stretches = _stretches(
            sorted(place for character in places.keys() & self._starters.keys() for place in places[character])
        )
        windows = [(0, len(text), 0, len(self.text))]
        found, possible = 0, min(len(text), len(self.text))
        while windows and found < needed <= possible:
            alow, ahigh, blow, bhigh = windows.pop()
            a, b, size = self._longest(text, stretches, (alow, ahigh, blow, bhigh))
            found += size
            possible += size - min(ahigh - alow, bhigh - blow)
            if size:
                for window in ((alow, a, blow, b), (a + size, ahigh, b + size, bhigh)):
                    if shorter := min(window[1] - window[0], window[3] - window[2]):
                        windows.append(window)
                        possible += shorter
        return found >= needed

    def _longest(
        self, text: str, stretches: list[tuple[int, int]], window: tuple[int, int, int, int]
    ) -> tuple[int, int, int]:
        """Return what ``SequenceMatcher.find_longest_match`` does, looking only at characters that start matches."""
        alow, ahigh, blow, bhigh = window
        a, b, size = alow, blow, 0
        for begin, end in stretches:
            begin, end = max(begin, alow), min(end, ahigh)
            if end - begin <= size:
                continue  # no room for a longer run
            runs: dict[int, int] = {}  # end in the first member -> length of the run that ends at the last place
            for place in range(begin, end):
                longer: dict[int, int] = {}
                for last in self._starters[text[place]]:
                    if last >= bhigh:
                        break
                    if last >= blow:
                        length = longer[last] = runs.get(last - 1, 0) + 1
                        if length > size:
                            a, b, size = place - length + 1, last - length + 1, length
                runs = longer
        # A match that was started grows over all equal characters, first to the left, then to the right.
        other = self.text
        grown = _count(min(a - alow, b - blow), lambda n: text[a - n - 1 : a] != other[b - n - 1 : b])
        a, b, size = a - grown, b - grown, size + grown
        c, d = a + size, b + size
        size += _count(min(ahigh - c, bhigh - d), lambda n: text[c : c + n + 1] != other[d : d + n + 1])
        return a, b, size


def _count(limit: int, differs: Callable[[int], bool]) -> int:
    """Return the first number below ``limit`` at which stretches one longer than it differ, ``limit`` if none do."""
    return bisect_left(range(limit), True, key=differs)
