"""Thinking tags as token ids of any tokenizer, and the tokens that a forced end of thinking consists of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRequest

_AROUND = ("", " ", "\n", "\n\n", ".", "a")
"""What may stand before or after a tag: tokenizers that spell it in several tokens merge it with its neighbours."""


@dataclass(frozen=True)
class Markers:
    """What opens and closes thinking, and what is forced.

    Attributes:
        opening: token sequences after which thinking is open.
        closing: token sequences after which it is closed.
        queue: tokens forced to end it: the closing tag and what follows it.
        blank: tokens of white space, which may follow an opening tag at the end of a prompt.
    """

    opening: tuple[tuple[int, ...], ...] = ()
    closing: tuple[tuple[int, ...], ...] = ()
    queue: tuple[int, ...] = ()
    blank: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, tokenizer: Any, *, opening: str = "<think>", closing: str = "</think>", then: str = "\n<action>"
    ) -> Markers:
        """Return the markers for a transformers tokenizer.

        Args:
            tokenizer: anything with ``encode(text, add_special_tokens=False)`` and ``decode(ids)``.
            opening: tag that opens thinking.
            closing: tag that closes it.
            then: what is forced after the closing tag.

        Raises:
            InvalidRequest: the tokenizer cannot spell the forced text.
        """
        queue = _encode(tokenizer, closing + then)
        # clean_up_tokenization_spaces, where a tokenizer has it, would change the text that is compared.
        text = tokenizer.decode(list(queue), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text.strip() != (closing + then).strip():
            raise InvalidRequest(
                f"The tokenizer spells {closing + then!r} as {text!r}.", hint="Choose tags that it knows."
            )
        blank = {ids[0] for space in _AROUND[1:4] if len(ids := _encode(tokenizer, space)) == 1}
        return cls(spellings(tokenizer, opening), spellings(tokenizer, closing), queue, frozenset(blank))

    def opened_by(self, prompt_ids: Sequence[int]) -> bool:
        """Return whether a prompt ends with an opening tag, so that the reply begins inside the thinking.

        A tag elsewhere in the prompt ("reason inside <think> tags") does not count.
        """
        end = len(prompt_ids)
        while end and prompt_ids[end - 1] in self.blank:
            end -= 1
        longest = max(map(len, self.opening), default=0)
        # The spelling of a tag may itself end with white space.
        tails = {tuple(prompt_ids[:stop][-longest:]) for stop in (end, len(prompt_ids))}
        return any(tail[-len(each) :] == each for tail in tails for each in self.opening)


def spellings(tokenizer: Any, tag: str) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences that may spell a tag in running text, the shortest first.

    A tag that is one special token has one. Otherwise the tag is encoded between a few neighbours (none, a letter, a
    full stop, white space), and each time the shortest run of tokens that holds it is taken.
    """
    found = set()
    for before in _AROUND:
        for after in _AROUND:
            ids = _encode(tokenizer, before + tag + after)
            found.add(_covering(tokenizer, ids, tag))
    found.discard(())
    return tuple(sorted(found, key=lambda each: (len(each), each)))


def _covering(tokenizer: Any, ids: tuple[int, ...], tag: str) -> tuple[int, ...]:
    """Return the shortest run of ``ids`` whose text holds the tag; () if there is none."""

    def holds(part: Iterable[int]) -> bool:
        return tag in tokenizer.decode(list(part), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    end = next((end for end in range(1, len(ids) + 1) if holds(ids[:end])), 0)
    start = next((start for start in reversed(range(end)) if holds(ids[start:end])), end)
    return ids[start:end]


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False)) if text else ()
