"""Text analysis of the search index: what Lucene's English analysis chain makes of a text.

The chain: word boundaries of UAX #29 with emoji as words (``StandardTokenizer``), possessive "'s" off, lower case, 33
stop words out, Porter's stemmer. :func:`terms` gives the same words as Lucene 8 on the reference queries.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache

ANALYSIS_VERSION = 1
"""Raise it whenever :func:`terms` changes: stored indexes of other versions are not read."""
MAX_TOKEN = 255  # Lucene cuts longer words
_STOPPED = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this"
    " to was will with"
)
STOP_WORDS = frozenset(_STOPPED.split())
# Runs instead of single characters keep the common case fast: letters joined by . ' : and digits by . , ; '.
_WORD = "{e}*(?:(?:{a}+(?:{ml}(?={a}))?|{n}+(?:{mn}(?={n}))?){e}*)+"
_ASCII = re.compile(_WORD.format(a="[A-Za-z]", n="[0-9]", e="_", ml="[.':]", mn="[.,;']"))
_POSSESSIVE = ("'s", "’s", "\uff07s", "'S", "’S", "\uff07S")

# Pictographs, which Lucene takes as words.
_EMOJI_SPANS = (
    "a9 ae 203c 2049 2122 2139 2194-2199 21a9-21aa 231a-231b 2328 2388 23cf 23e9-23f3 23f8-23fa 25aa-25ab 25b6 25c0"
    " 25fb-25fe 2600-2605 2607-2612 2614-2685 2690-2705 2708-2712 2714 2716 271d 2721 2728 2733-2734 2744 2747 274c"
    " 274e 2753-2755 2757 2763-2767 2795-2797 27a1 27b0 27bf 2934-2935 2b05-2b07 2b1b-2b1c 2b50 2b55 3030 303d 3297"
    " 3299 1f000-1f0ff 1f10d-1f10f 1f12f 1f16c-1f171 1f17e-1f17f 1f18e 1f191-1f19a 1f1ad-1f1e5 1f201-1f20f 1f21a 1f22f"
    " 1f232-1f23a 1f23c-1f23f 1f249-1f3fa 1f400-1f53d 1f546-1f64f 1f680-1f6ff 1f774-1f77f 1f7d5-1f7ff 1f80c-1f80f"
    " 1f848-1f84f 1f85a-1f85f 1f888-1f88f 1f8ae-1f8ff 1f90c-1f93a 1f93c-1f945 1f947-1fffd"
)
_KATAKANA = "3031-3035 309b-309c 30a0-30fa 30fc-30ff 31f0-31ff 32d0-32fe 3300-3357 ff66-ff9d"
_HIRAGANA = "3041-3096 309d-309f"
_HAN = "2e80-2fd5 3005 3007 3021-3029 3038-303b 3400-4dbf 4e00-9fff f900-fad9"
_SOUTH_EAST_ASIAN = "e01-e3a e40-e4e e81-ebd ec0-edf 1000-109f 1780-17d3 17d7 17dc-17dd 1950-19df 1a20-1aad aa60-aadf"
_MID_NUMBER = "\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
_MID_BOTH = "\u2018\u2019\u2024\ufe52\uff07\uff0e"


def _span_set(spans: str) -> set[int]:
    found: set[int] = set()
    for span in spans.split():
        low, _, high = span.partition("-")
        found.update(range(int(low, 16), int(high or low, 16) + 1))
    return found


def _class(points: set[int]) -> str:
    """Return the body of a character class, with runs as ranges."""
    parts: list[str] = []
    run: list[int] = []
    for point in [*sorted(points), -1]:
        if run and point == run[1] + 1:
            run[1] = point
            continue
        if run:
            parts.append(re.escape(chr(run[0])) + (f"-{re.escape(chr(run[1]))}" if run[1] > run[0] else ""))
        run = [point, point]
    return "".join(parts)


@cache
def _unicode() -> re.Pattern[str]:
    """Return the pattern for texts that are not ASCII; made on first use, as it takes some 50 ms."""
    special = {name: _span_set(spans) for name, spans in {"k": _KATAKANA, "h": _HIRAGANA, "c": _HAN}.items()}
    south_east = _span_set(_SOUTH_EAST_ASIAN)
    apart = {0xFF9E, 0xFF9F}.union(south_east, *special.values())
    letters, digits = set(range(0x24B6, 0x24EA)), {0x66B}
    extend = {0xFF9E, 0xFF9F}  # the halfwidth sound marks join the character before them
    for point in range(0x80, 0x20000):
        kind = unicodedata.category(chr(point))
        if kind in ("Mn", "Me", "Mc") or (kind == "Cf" and point != 0x200B):
            extend.add(point)
        elif kind == "Nd":
            digits.add(point)
        elif (kind[0] == "L" or kind == "Nl") and point not in apart:
            letters.add(point)
    marks = f"[{_class(extend - south_east)}]*"
    alpha, digit = f"(?:[A-Za-z{_class(letters)}]{marks})", f"(?:[0-9{_class(digits)}]{marks})"
    word = _WORD.format(
        a=alpha,
        n=digit,
        e=f"(?:[_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f]{marks})",
        ml=f"(?:[.':\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a{_MID_BOTH}]{marks})",
        mn=f"(?:[.,;'{_MID_NUMBER}{_MID_BOTH}]{marks})",
    )
    emoji = f"[{_class(_span_set(_EMOJI_SPANS))}]"
    one = f"{emoji}\ufe0f?[\U0001f3fb-\U0001f3ff]?"
    pictures = f"{one}(?:\u200d{one})*|[\U0001f1e6-\U0001f1ff]{{2}}|[0-9#*]\ufe0f?\u20e3"
    kana = f"(?:[{_class(special['k'])}]{marks})+"
    single = f"[{_class(special['h'])}{_class(special['c'])}\U00020000-\U0003134a]{marks}"
    return re.compile(f"{pictures}|{kana}|{single}|[{_class(south_east)}]+|{word}")


def words(text: str) -> list[str]:
    """Return the words of ``text`` as Lucene's tokenizer cuts them, unchanged."""
    found = (_ASCII if text.isascii() else _unicode()).findall(text)
    if any(len(word) > MAX_TOKEN for word in found):
        found = [word[at : at + MAX_TOKEN] for word in found for at in range(0, len(word), MAX_TOKEN)]
    return found


def terms(text: str) -> list[str]:
    """Return the index terms of ``text``, in order."""
    return [term for term in map(term_of, words(text)) if term]


@lru_cache(maxsize=1 << 16)
def term_of(word: str) -> str:
    """Return the index term of one word, "" for a stop word."""
    if word.endswith(_POSSESSIVE):
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else stem(word)


# Porter's stemmer, with the two departures of its author's program ("bli" and "logi") --------------------------------

_STEP2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP4 = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
_LONGEST2 = sorted(_STEP2, key=len, reverse=True)
_LONGEST4 = sorted(_STEP4.split(), key=len, reverse=True)


def _shape(word: str) -> str:
    """Return "c" for consonants and "v" for vowels; y is a vowel behind a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _short(word: str) -> bool:
    """Return whether the word ends consonant, vowel, consonant, the last not w, x or y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _step1(word: str) -> str:
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    else:
        ending = "ed" if word.endswith("ed") else "ing" if word.endswith("ing") else ""
        if ending and "v" in _shape(word[: -len(ending)]):
            word = word[: -len(ending)]
            if word.endswith(("at", "bl", "iz")) or (_measure(word) == 1 and _short(word) and not _double(word)):
                word += "e"
            elif _double(word) and word[-1] not in "lsz":
                word = word[:-1]
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    return word


def stem(word: str) -> str:
    """Return Porter's stem; words of up to two letters stay."""
    if len(word) <= 2:
        return word
    word = _step1(word)
    for ending in _LONGEST2:
        if word.endswith(ending):
            if _measure(word[: -len(ending)]) > 0:
                word = word[: -len(ending)] + _STEP2[ending]
            break
    for ending, new in _STEP3.items():
        if word.endswith(ending):
            if _measure(word[: -len(ending)]) > 0:
                word = word[: -len(ending)] + new
            break
    for ending in _LONGEST4:
        if word.endswith(ending):
            body = word[: -len(ending)]
            if ending == "ion" and body[-1:] not in ("s", "t"):
                continue
            if _measure(body) > 1:
                word = body
            break
    if word.endswith("e"):
        body = word[:-1]
        measure = _measure(body)
        if measure > 1 or (measure == 1 and not _short(body)):
            word = body
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
