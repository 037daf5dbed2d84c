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
    common, places = _subsequence(), _places(text)
    for number, first in firsts:
        needed = needed_matches(len(text) + len(first.text), threshold)
        if min(len(text), len(first.text)) < needed or (common(text, first.text, score_cutoff=needed) < needed):
            continue
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
        starts = sorted(place for character in places.keys() & self._starters.keys() for place in places[character])
        windows = [(0, len(text), 0, len(self.text))]
        found, possible = 0, min(len(text), len(self.text))
        while windows and found < needed <= possible:
            alow, ahigh, blow, bhigh = windows.pop()
            a, b, size = self._longest(text, starts, (alow, ahigh, blow, bhigh))
            found += size
            possible += size - min(ahigh - alow, bhigh - blow)
            if size:
                for window in ((alow, a, blow, b), (a + size, ahigh, b + size, bhigh)):
                    if shorter := min(window[1] - window[0], window[3] - window[2]):
                        windows.append(window)
                        possible += shorter
        return found >= needed

    def _longest(self, text: str, starts: list[int], window: tuple[int, int, int, int]) -> tuple[int, int, int]:
        """Return what ``SequenceMatcher.find_longest_match`` does, looking only at characters that start matches."""
        alow, ahigh, blow, bhigh = window
        a, b, size = alow, blow, 0
        runs: dict[int, int] = {}  # end in the first member -> length of the run that ends at ``before``
        before = -1
        for place in starts[bisect_left(starts, alow) : bisect_left(starts, ahigh)]:
            longer: dict[int, int] = {}
            if place != before + 1:
                runs = {}
            for end in self._starters[text[place]]:
                if end >= bhigh:
                    break
                if end >= blow:
                    length = longer[end] = runs.get(end - 1, 0) + 1
                    if length > size:
                        a, b, size = place - length + 1, end - length + 1, length
            runs, before = longer, place
        # A match that was started grows over all equal characters.
        while a > alow and b > blow and text[a - 1] == self.text[b - 1]:
            a, b, size = a - 1, b - 1, size + 1
        while a + size < ahigh and b + size < bhigh and text[a + size] == self.text[b + size]:
            size += 1
        return a, b, size
