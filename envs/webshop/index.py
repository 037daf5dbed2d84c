"""The search index: BM25 as Lucene 8 computes it, over postings in memory-mapped arrays.

Scores follow Lucene to the bit where order depends on them: document lengths quantised to a byte, each term's score in
single precision, their sum in double precision and rounded to single, equal scores by document number.

Small indexes score all postings of the query at once. Large ones work term by term from the rarest on; as soon as no
document outside the candidates can still reach the best ``count``, the frequent terms are only looked up for the
candidates (the MaxScore idea), so that words like "with" or "under" cost next to nothing.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .analysis import term_of, terms, words

K1 = 0.9
B = 0.4
DIRECT_POSTINGS = 100_000  # up to here one pass over all postings is fastest
BLOCK = 1 << 22  # postings sorted at a time while writing
KEPT_QUERIES = 4096
LONGEST_KEPT = 1000  # characters of a query whose results are kept


def quantised(length: int) -> int:
    """Return the byte that Lucene keeps for a length: exact up to 39, then with four significant bits."""
    if length < 24:
        return length
    number = length - 24
    bits = number.bit_length()
    return 24 + number if bits < 4 else 24 + ((number >> (bits - 4)) & 7 | (bits - 3) << 3)


def length_of(byte: int) -> int:
    """Return the length that a byte stands for."""
    if byte < 24:
        return byte
    number = byte - 24
    bits, shift = number & 7, (number >> 3) - 1
    return 24 + (bits if shift < 0 else (bits | 8) << shift)


def term_key(term: str) -> int:
    """Return the 64-bit key under which a term is stored."""
    return int.from_bytes(blake2b(term.encode("utf-8", "replace"), digest_size=8).digest(), "little")


class IndexWriter:
    """Collects documents and writes the index.

    Memory: 9 bytes a posting while collecting, in flat arrays.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # term -> number
        self._words: dict[str, int] = {}  # word as written -> number of its term, -1 for stop words
        self._terms, self._counts = array("i"), array("H")
        self._sizes, self._lengths = array("i"), array("i")  # postings and words of each document

    def add(self, text: str) -> None:
        """Add the next document."""
        known = self._words
        counts: Counter[int] = Counter()
        for word, count in Counter(words(text)).items():
            number = known.get(word)
            if number is None:
                number = self._number(word)
            counts[number] += count
        counts.pop(-1, None)
        self._terms.extend(counts.keys())
        self._counts.extend(min(count, 65535) for count in counts.values())
        self._sizes.append(len(counts))
        self._lengths.append(sum(counts.values()))

    def _number(self, word: str) -> int:
        term = term_of(word)
        number = self._numbers.setdefault(term, len(self._numbers)) if term else -1
        self._words[word] = number
        return number

    def write(self, folder: Path, order: NDArray[np.int32]) -> None:
        """Write the index; document ``d`` of the index is the ``order[d]``-th one added."""
        # Terms are stored in the order of their keys, so that a query finds them by binary search in a mapped array.
        keys = np.fromiter(map(term_key, self._numbers), dtype=np.uint64, count=len(self._numbers))
        by_key = np.argsort(keys, kind="stable")
        keys = keys[by_key]
        if len(keys) > 1 and bool((keys[1:] == keys[:-1]).any()):
            raise RuntimeError("Two terms share a 64-bit key.")
        rank = np.empty(len(keys), dtype=np.int32)
        rank[by_key] = np.arange(len(keys), dtype=np.int32)
        all_terms = rank[np.frombuffer(self._terms, dtype=np.int32)] if len(self._terms) else np.empty(0, np.int32)
        counts = np.frombuffer(self._counts, dtype=np.uint16) if len(self._counts) else np.empty(0, np.uint16)
        sizes = np.frombuffer(self._sizes, dtype=np.int32).astype(np.int64)
        lengths = np.frombuffer(self._lengths, dtype=np.int32)
        starts = np.zeros(len(keys) + 1, dtype=np.int64)
        np.cumsum(np.bincount(all_terms, minlength=len(keys)), out=starts[1:])
        norms = np.array([quantised(int(n)) for n in lengths[order].tolist()], dtype=np.uint8)
        np.save(folder / "keys.npy", keys)
        np.save(folder / "starts.npy", starts)
        np.save(folder / "norms.npy", norms)
        total = int(lengths.sum(dtype=np.int64))
        (folder / "index.json").write_text(json.dumps({"documents": len(lengths), "words": total}))
        _place(folder, order, starts, all_terms, counts, sizes)
        _write_bounds(folder, starts, norms, total / max(1, int((lengths > 0).sum())))


def _place(
    folder: Path,
    order: NDArray[np.int32],
    starts: NDArray[np.int64],
    all_terms: NDArray[np.int32],
    counts: NDArray[np.uint16],
    sizes: NDArray[np.int64],
) -> None:
    """Put the postings behind their terms, documents ascending, block by block."""
    begins = np.concatenate(([0], np.cumsum(sizes)))
    docs = _created(folder / "docs.npy", np.int32, len(all_terms))
    tfs = _created(folder / "tfs.npy", np.uint16, len(all_terms))
    cursor = starts[:-1].copy()
    ends = np.cumsum(sizes[order])
    first = 0
    while first < len(order):
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + BLOCK, side="right")))
        chosen = order[first:last]
        size = sizes[chosen]
        where = np.repeat(begins[chosen] - (np.cumsum(size) - size), size) + np.arange(int(size.sum()))
        block = all_terms[where]
        by_term = np.argsort(block, kind="stable")
        block = block[by_term]
        found, at, number = np.unique(block, return_index=True, return_counts=True)
        target = cursor[block] + np.arange(len(block)) - np.repeat(at, number)
        docs[target] = np.repeat(np.arange(first, last, dtype=np.int32), size)[by_term]
        tfs[target] = counts[where][by_term]
        cursor[found] += number
        first = last
    docs.flush()
    tfs.flush()


def _created(path: Path, kind: type[np.generic], size: int) -> np.memmap[Any, Any]:
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(size,))
    with open(path, "r+b") as file:
        # The file has holes: where the disk is full, filling them through the map would kill the process.
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _write_bounds(folder: Path, starts: NDArray[np.int64], norms: NDArray[np.uint8], average: float) -> None:
    """Write each term's greatest saturation: its score cannot be over its weight times that."""
    docs, tfs = np.load(folder / "docs.npy", mmap_mode="r"), np.load(folder / "tfs.npy", mmap_mode="r")
    inverse = _inverse_norms(average)
    bounds = np.zeros(len(starts) - 1, dtype=np.float32)
    first = 0
    while first < len(bounds):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK, side="right")) - 1)
        span = slice(int(starts[first]), int(starts[last]))
        gain = tfs[span].astype(np.float32) * inverse[norms[docs[span]]]
        bounds[first:last] = np.maximum.reduceat(gain / (1 + gain), starts[first:last] - starts[first])
        first = last
    np.save(folder / "bounds.npy", bounds)


def _inverse_norms(average: float) -> NDArray[np.float32]:
    k1, b, mean, one = np.float32(K1), np.float32(B), np.float32(average), np.float32(1)
    lengths = np.array([length_of(byte) for byte in range(256)], dtype=np.float32)
    return (one / (k1 * ((one - b) + b * lengths / mean))).astype(np.float32)


class Index:
    """The index in a folder, read-only and memory-mapped."""

    def __init__(self, folder: Path) -> None:
        def load(name: str) -> NDArray[Any]:
            return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))

        counts = json.loads((folder / "index.json").read_text())
        self.keys, self.starts, self.docs = load("keys"), load("starts"), load("docs")
        self.tfs, self.norms, self.bounds = load("tfs"), load("norms"), load("bounds")
        # Lucene counts the documents that have at least one word.
        filled = int(np.count_nonzero(self.norms))
        self.documents = int(counts["documents"])
        self._filled = filled
        self._inverse = _inverse_norms(counts["words"] / max(1, filled))
        self._kept = lru_cache(maxsize=KEPT_QUERIES)(self._search)

    def search(self, text: str, count: int = 50) -> NDArray[np.int64]:
        """Return the numbers of the best documents, best first."""
        # Very long queries are not worth the memory of a cache.
        return self._kept(text, count) if len(text) <= LONGEST_KEPT else self._search(text, count)

    def _search(self, text: str, count: int) -> NDArray[np.int64]:
        found = self._query(text)
        if not found:
            return np.empty(0, dtype=np.int64)
        size = sum(end - start for start, end, *_ in found)
        docs, scores = (self._all if size <= DIRECT_POSTINGS else self._pruned)(found, count)
        return self._best(docs, scores, count)[0]

    def scored(self, text: str, count: int = 50) -> tuple[list[int], list[float]]:
        """Return the best documents and their scores."""
        found = self._query(text)
        if not found:
            return [], []
        docs, scores = self._best(*self._all(found, count), count)
        return docs.tolist(), scores.tolist()

    def _query(self, text: str) -> list[tuple[int, int, np.float32, float]]:
        """Return each known term's postings, weight and greatest score; a repeated term counts as often."""
        counted = Counter(terms(text))
        if not counted or not len(self.keys):
            return []
        wanted = np.fromiter(map(_cached_key, counted), dtype=np.uint64, count=len(counted))
        places = np.searchsorted(self.keys, wanted)
        found = []
        for number, (place, key) in zip(counted.values(), zip(places.tolist(), wanted, strict=True), strict=True):
            if place == len(self.keys) or self.keys[place] != key:
                continue
            start, end = int(self.starts[place]), int(self.starts[place + 1])
            frequency = end - start
            idf = np.float32(np.log(1 + (self._filled - frequency + 0.5) / (frequency + 0.5)))
            weight = np.float32(number) * idf
            found.append((start, end, weight, float(weight) * float(self.bounds[place]) * (1 + 1e-6) + 1e-6))
        return found

    def _scores(
        self, docs: NDArray[np.int32], tfs: NDArray[np.uint16], weight: NDArray[np.float32] | np.float32
    ) -> NDArray[np.float32]:
        gain = tfs * self._inverse[self.norms[docs]]
        scores: NDArray[np.float32] = weight - weight / (np.float32(1) + gain)
        return scores

    def _all(
        self, found: list[tuple[int, int, np.float32, float]], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Score every document that holds a term."""
        docs = np.concatenate([self.docs[start:end] for start, end, *_ in found])
        tfs = np.concatenate([self.tfs[start:end] for start, end, *_ in found])
        weights = np.repeat(
            np.array([weight for *_, weight, _ in found], dtype=np.float32), [end - start for start, end, *_ in found]
        )
        scores = np.bincount(docs, weights=self._scores(docs, tfs, weights)).astype(np.float64, copy=False)
        hits = np.flatnonzero(scores).astype(np.int64)
        return hits, scores[hits]

    def _pruned(
        self, found: list[tuple[int, int, np.float32, float]], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Score the documents that can be among the best ``count``."""
        found = sorted(found, key=lambda item: item[1] - item[0])
        scores = np.zeros(self.documents)  # the system maps pages in only where something is added
        rest = sum(bound for *_, bound in found)
        for done, (start, end, weight, bound) in enumerate(found):
            docs = self.docs[start:end]
            scores[docs] += self._scores(docs, self.tfs[start:end], weight)
            rest -= bound
            # Only documents over what the other terms can add may count; usually few or none, so this is quick.
            ahead = scores[docs]
            if done + 1 < len(found) and int(np.count_nonzero(ahead > rest)) >= count:
                hits = np.flatnonzero(scores > 0)
                floor = _floor(scores[hits], count)
                return self._refined(found[done + 1 :], hits, scores[hits], floor, rest, count)
        hits = np.flatnonzero(scores)
        return hits, scores[hits]

    def _refined(
        self,
        found: list[tuple[int, int, np.float32, float]],
        hits: NDArray[Any],
        scores: NDArray[np.float64],
        floor: float,
        rest: float,
        count: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Add the remaining terms to the candidates alone, and drop those that fall behind."""
        for start, end, weight, bound in found:
            keep = scores + rest >= floor
            hits, scores = hits[keep], scores[keep]
            docs = self.docs[start:end]
            at = np.searchsorted(docs, hits.astype(np.int32))
            at[at == len(docs)] = 0
            inside = docs[at] == hits
            scores[inside] += self._scores(docs[at[inside]], self.tfs[start:end][at[inside]], weight)
            rest -= bound
            floor = max(floor, _floor(scores, count))
        return hits, scores

    @staticmethod
    def _best(
        docs: NDArray[np.int64], scores: NDArray[np.float64], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        rounded = scores.astype(np.float32)
        if len(docs) > count:
            keep = rounded >= np.partition(rounded, len(rounded) - count)[len(rounded) - count]
            docs, rounded = docs[keep], rounded[keep]
        # Documents ascend, so that a stable sort leaves equal scores in their order.
        best = np.argsort(-rounded, kind="stable")[:count]
        return docs[best], rounded[best]


def _floor(scores: NDArray[np.float64], count: int) -> float:
    """Return the score that a document needs to be among the best ``count``, a little less for rounding."""
    if len(scores) < count:
        return -1.0
    return float(np.partition(scores, len(scores) - count)[len(scores) - count]) * (1 - 1e-6)


_cached_key = lru_cache(maxsize=1 << 16)(term_key)
