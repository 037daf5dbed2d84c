"""WebShop's text analysis and search."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from turngym.envs.webshop import index
from turngym.envs.webshop.analysis import stem, terms, words
from turngym.envs.webshop.index import Index, IndexWriter, length_of, quantised


def test_words() -> None:
    text = "it's a field:value 3.5oz x-large 1,200 __a_b__ end. a..b 5.x"
    want = "it's|a|field:value|3.5oz|x|large|1,200|__a_b__|end|a|b|5|x"
    assert words(text) == want.split("|")
    assert words("café ½ x² 日本語 カタカナ ★ 👍🏽 ™") == ["café", "x", "日", "本", "語", "カタカナ", "★", "👍🏽", "™"]
    assert [len(word) for word in words("a" * 600)] == [255, 255, 90]


def test_terms_drop_possessives_and_stop_words() -> None:
    assert terms("The women's and men’s SHOES of it") == ["women", "men", "shoe"]


@pytest.mark.parametrize(
    ("word", "want"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("feed", "feed"), ("agreed", "agre"), ("plastered", "plaster"),
        ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"), ("hopping", "hop"), ("falling", "fall"),
        ("filing", "file"), ("happy", "happi"), ("sky", "sky"), ("relational", "relat"), ("radically", "radic"),
        ("possibly", "possibl"), ("archaeology", "archaeolog"), ("triplicate", "triplic"), ("hopeful", "hope"),
        ("goodness", "good"), ("adoption", "adopt"), ("effective", "effect"), ("probate", "probat"), ("rate", "rate"),
        ("controll", "control"), ("roll", "roll"), ("as", "as"), ("is", "is"),
    ],
)  # fmt: skip
def test_stems(word: str, want: str) -> None:
    assert stem(word) == want


def test_lengths_are_quantised_downwards() -> None:
    stored = [length_of(quantised(length)) for length in range(5000)]
    assert stored[:40] == list(range(40)) and stored[41] == 40 and stored == sorted(stored)
    assert all(stored[length] <= length < 1.15 * stored[length] + 1 for length in range(5000))


def plain_bm25(documents: list[str], query: str) -> list[int]:
    """The formula, term by term, in double precision."""
    bags = [Counter(terms(text)) for text in documents]
    lengths = [length_of(quantised(sum(bag.values()))) for bag in bags]
    average = sum(sum(bag.values()) for bag in bags) / sum(bool(bag) for bag in bags)
    scores = []
    for bag, length in zip(bags, lengths, strict=True):
        score = 0.0
        for term, times in Counter(terms(query)).items():
            found = sum(term in other for other in bags)
            idf = np.log(1 + (sum(map(bool, bags)) - found + 0.5) / (found + 0.5))
            score += times * idf * bag[term] / (bag[term] + 0.9 * (0.6 + 0.4 * length / average))
        scores.append(score)
    return sorted((n for n in range(len(bags)) if scores[n]), key=lambda n: (-round(scores[n], 5), n))


def written(folder: Path, documents: list[str], order: list[int] | None = None) -> Index:
    writer = IndexWriter()
    for text in documents:
        writer.add(text)
    folder.mkdir()
    writer.write(folder, np.array(range(len(documents)) if order is None else order, dtype=np.int32))
    return Index(folder)


def some_documents(count: int) -> list[str]:
    draw = random.Random(1)
    vocabulary = [f"word{n}" for n in range(60)]
    return [" ".join(draw.choices(vocabulary, range(1, 61), k=draw.randrange(0, 60))) for _ in range(count)]


def test_search_is_bm25(tmp_path: Path) -> None:
    documents = some_documents(80)
    found = written(tmp_path / "index", documents)
    for query in ("word1 word50", "word59 word59 word3", "word7", "unknown", "", "the of"):
        assert found.search(query, 20).tolist() == plain_bm25(documents, query)[:20]


def test_pruned_search_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BLOCK", 500)  # several blocks while writing
    found = written(tmp_path / "index", some_documents(2000))
    queries = [f"word{a} word{b} word59 word58 word2 word{a}" for a in range(8) for b in range(0, 60, 7)]
    everything = [found.scored(query, 10) for query in queries]
    monkeypatch.setattr(index, "DIRECT_POSTINGS", 0)
    assert [found._search(query, 10).tolist() for query in queries] == [docs for docs, _ in everything]


def test_documents_are_numbered_by_the_order_given(tmp_path: Path) -> None:
    assert written(tmp_path / "index", ["same text", "same text", "other"], [1, 2, 0]).search("text").tolist() == [0, 2]
