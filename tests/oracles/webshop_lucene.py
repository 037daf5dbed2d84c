"""Lucene itself against the embedded search: the same products in the same order.

Run: ``make lucene-test``. Random queries on a procedural shop need nothing but pyserini; the recorded queries of
``webshop_lucene_bm25.json`` are asked too where TURNGYM_ORACLES and TURNGYM_DATA name the folders of ``worlds.py``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from runner import Case, run

from turngym import make
from turngym.envs.webshop.catalogue import Catalogue
from turngym.envs.webshop.lucene import LuceneCatalogue
from turngym.envs.webshop.official import official
from turngym.envs.webshop.procedural import procedural

PRODUCTS, QUERIES = 3000, 500
ODD = ["", "the of", "nothing_like_this", "a" * 300, "café 👍🏽 日本語", "\ud800 tea", "\0 tea", "tea " * 2000]


def compared(name: str, embedded: Catalogue, lucene: Catalogue, query: str) -> Case:
    """Return whether both searches rank a query alike."""
    wanted, got = embedded.search(query), lucene.search(query)
    return f"{name} {query!r:.60}", got == wanted, f"Lucene {got}, embedded {wanted}"


def random_queries(_: Path) -> Iterator[Case]:
    """Ask for words of random products of a procedural shop, and for odd texts."""
    embedded = procedural(PRODUCTS, 0)
    lucene = LuceneCatalogue(embedded.folder)
    draw = random.Random(0)
    words = [sorted(set(product.contents().split())) for product in embedded]
    for query in ODD:
        yield compared("odd", embedded, lucene, query)
    for _ in range(QUERIES):
        query = " ".join(draw.choices(draw.choice(words), k=draw.randint(1, 12)))
        yield compared("words", embedded, lucene, query)
    terms = " ".join(word for some in words for word in some)
    yield compared("more terms than Lucene's usual limit", embedded, lucene, terms)


def episodes(_: Path) -> Iterator[Case]:
    """Let the expert play on a shop that Lucene searches."""
    env = make("webshop", search="lucene")
    for task in env.tasks("test")[:20]:
        env.reset(seed=0, options={"task": task})
        for action in env.expert():
            info = env.step(action)[4]
        yield f"the expert on {task}", info["won"], f"score {info['score']}"


def recorded_queries(path: Path) -> Iterator[Case]:
    """Ask the recorded queries of the original's 1,000 products."""
    data = os.environ.get("TURNGYM_DATA")
    if not data:
        yield "TURNGYM_DATA", False, "names no folder"
        return
    embedded = official(str(Path(data, "webshop")))
    lucene = LuceneCatalogue(embedded.folder)
    for query in json.loads(path.read_text(encoding="utf-8"))["queries"]:
        yield compared("recorded", embedded, lucene, query["q"])
        got = [embedded.product(number).asin for number in lucene.search(query["q"])]
        yield f"recorded {query['q']!r:.60}", got == query["asins"], f"got {got}, want {query['asins']}"


def main() -> int:
    """Run what there is; return 0 if all rankings agree."""
    here = Path(__file__)
    failed = run({here.name: lambda path: chain(random_queries(path), episodes(path))}, here.parent)
    oracles = os.environ.get("TURNGYM_ORACLES")
    return run({"webshop_lucene_bm25.json": recorded_queries}, Path(oracles)) or failed if oracles else failed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # builds of its own
        sys.exit(main())
