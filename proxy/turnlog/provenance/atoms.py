"""Atoms: the values of a text in a canonical form, so that a reformatted copy has the same ones.

Outputs and arguments go through the same functions: what folds to the same bytes is the same value. An
atom is a hash, so that no values are kept. Nothing here raises, whatever the bytes are, and all of it
takes linear time.
"""

import re
from collections.abc import Iterable
from itertools import filterfalse
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

from .leaves import PHRASE, SHORTEST

WORDS: Final = 5
"""Words of a shingle."""
_FOLDERS: Final = 16  # above a file; with the bound the work is linear
_ROUND: Final = 2  # digits of a round number, before its zeros
_NAME: Final = 256  # characters of the longest name of a server or file
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_AROUND_ENCODED: Final = re.compile(r"[\s/?&=#;\"'<>]+")
# Typography that NFKC leaves alone. Soft hyphens, zero-width characters and tags are not seen at all; arrows, bullets,
# pictures and what could not be decoded stand between words.
_QUOTES: Final = re.compile("[\u00ab\u00bb\u2018-\u201f\u2039\u203a]")
_HYPHENS: Final = re.compile("[\u2010-\u2015\u2212]")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]"
)
_LINES: Final = re.compile("[\u2500-\u257f]")
_SYMBOLS: Final = re.compile("[\u00a1-\u00bf\u2000-\u2bff\u3000-\u303f\ufffd\U0001f000-\U0001faff]")
_COLOURS: Final = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_REPLACED: Final = (
    (_INVISIBLE, ""),
    (_QUOTES, "'"),
    (_HYPHENS, "-"),
    (_LINES, "|"),
    (_SYMBOLS, "*"),
)
_GROUPED: Final = re.compile(rb"[0-9]{1,3}(?:[,'_][0-9]{3})+(?:\.[0-9]+)?(?![0-9])")
_DECIMAL: Final = re.compile(rb"[0-9]+\.[0-9]+")
_WITH_UNIT: Final = re.compile(rb"([0-9]+(?:\.[0-9]+)?)[a-z]{1,3}")
WORD: Final = re.compile(r"(?![0-9]+_)[A-Za-z0-9_./-]{1,256}")
"""A text that is a single word, and needs no folding."""
_DIGITS: Final = b"0123456789"
# The search for a number is three times as fast as that for a byte string, and twenty times as fast as that for
# two bytes: it comes first where most texts have none.
_ESCAPE: Final = 0x1B
_ZERO: Final = ord("0")
_BLANK: Final = ord(" ")
_COLON: Final = ord(":")
_DASH: Final = ord("-")
_SLASH: Final = ord("/")
_SEPARATORS: Final = tuple(b",'_")
_DOT: Final = ord(".")
_AT: Final = ord("@")
_AS_ZEROS: Final = bytes.maketrans(_DIGITS, b"0" * 10)
_NO_DIGITS: Final = bytes(set(range(256)).difference(_DIGITS))
_MARKS: Final = b" -.:/~_"
# Names of formats and the like, which say nothing of where a text came from.
_COMMON: Final = frozenset(
    b"utf-8 utf8 utf-16 latin-1 iso-8859-1 us-ascii base64 sha1 sha256 sha512 http/1.1 http/2 "
    b"text/plain text/html text/markdown application/json x86_64 amd64 arm64 ipv4 ipv6".split()
)
_DATE: Final = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_QUOTE: Final = b"\v"


def _table() -> bytes:
    """Return a table to lower case, with white space in place of most punctuation.

    What ends a phrase becomes a line break, what ends a word only a blank.
    """
    table = bytearray(bytes(range(256)).lower())
    for character in bytes(range(32)) + b"\x7f()[]{}<>,;|&=?":
        table[character] = ord("\n")
    for character in b"!#$%^*+":
        table[character] = ord(" ")
    for character in b"\"'`":
        table[character] = ord(_QUOTE)
    # Paths of Windows may be written with either.
    table[ord("\\")] = ord("/")
    return bytes(table)


_FOLD: Final = _table()
_WITHOUT_COLONS: Final = bytes.maketrans(b":", b" ")
_SEGMENTS: Final = bytes.maketrans(b":/", b"  ")
_LABELS: Final = bytes.maketrans(b":/.@", b"    ")


def plain(text: str) -> bytes:
    """Return a text with compatible characters made equal, and typography made ASCII."""
    if text.isascii():
        return text.encode()
    text = normalize("NFKC", text.replace("\ufdfa", ""))  # which becomes 18 characters
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text.casefold().encode("utf-8", "replace")


def fold(raw: bytes) -> bytes:
    """Return lower case with white space in place of most punctuation.

    Phrases end with a line break, or a quote; words with a blank, and may have marks: see `trim`.
    """
    if _ESCAPE in raw:
        raw = _COLOURS.sub(b"", raw)
    folded = b"%b\n" % raw.translate(_FOLD)
    # Bullets and the comments of code, which differ where the lines of a text begin.
    if _DASH in folded:
        folded = folded.replace(b"- ", b" ")
    if _SLASH in folded:
        folded = folded.replace(b"// ", b" ")
    return folded


def trim(token: bytes) -> bytes:
    """Return a word or phrase without marks around it: `./src/`, `key:` and `end.` have them."""
    return token.strip(_MARKS)


def is_phrase(folded: bytes, line: bytes) -> bool:
    """Return whether a folded text is a single phrase. `line` is its words with a blank between them."""
    return folded.startswith(line) and not (_COLON in line and b": " in line)


def phrases(folded: bytes) -> list[bytes]:
    """Return the parts of a folded text that have several words: lines, cells, quoted strings."""
    folded = folded.replace(_QUOTE, b"\n").replace(b"  ", b"\n").replace(b": ", b"\n")
    lines = folded.split(b"\n")
    return [line.strip(_MARKS) for line in lines if len(line) >= PHRASE and _BLANK in line]


def quoted(folded: bytes) -> list[bytes]:
    """Return the phrases of a folded text that stand between quotes."""
    inside = folded.split(_QUOTE)[1:-1]
    return [part.strip(_MARKS) for part in inside if len(part) >= PHRASE and b"\n" not in part]


def without_groups(raw: bytes) -> bytes:
    """Return a text without separators of thousands; the same object if there are none."""
    for separator in _SEPARATORS:
        # This looks for the pattern in a tenth of the time.
        if separator in raw and b"0%c000" % separator in raw.translate(_AS_ZEROS):
            return _GROUPED.sub(lambda number: number[0].translate(None, b",'_"), raw)
    return raw


def shortest(number: bytes) -> bytes:
    """Return a decimal number without zeros at its end; any other word as it is."""
    if number[-1:] == b"0" and _DECIMAL.fullmatch(number):
        return number.rstrip(b"0").removesuffix(b".")
    return number


def encoded(text: str) -> list[bytes]:
    """Return the parts of a text that are percent-encoded, decoded and folded."""
    if "%" not in text or not _ENCODED.search(text):
        return []
    chunks = dict.fromkeys(filter(_ENCODED.search, _AROUND_ENCODED.split(text)))
    return [trim(b" ".join(fold(plain(unquote(chunk))).split())) for chunk in chunks]


def has_parts(token: bytes) -> bool:
    """Return whether colons, slashes, dots or an @ join a word."""
    return _SLASH in token or _COLON in token or _DOT in token or _AT in token


def parts(token: bytes) -> list[bytes]:
    """Return the parts of a word that colons join, and the segments of a path or URL.

    A date has none: many begin on the same day, or end in the same fraction of a second.
    """
    if _DATE.match(token):
        return []
    found = token.split(b":") if _COLON in token else []
    if _SLASH in token:
        found += token.translate(_SEGMENTS).split()
    return [part.strip(_MARKS) for part in found]


def labels(token: bytes) -> list[bytes]:
    """Return the parts of a word that dots or an @ join: of the name of a server or a file, or an address."""
    if not (_DOT in token or _AT in token) or len(token) > _NAME:
        return []
    if _DATE.match(token) or _DECIMAL.fullmatch(token):
        return []
    return token.translate(_LABELS).split()


def below_folders(path: bytes) -> list[bytes]:
    """Return what follows each folder of a path, shortest first; nothing of what is too deep for a path."""
    rests: list[bytes] = []
    if path.count(b"/") <= _FOLDERS:
        while path := path.partition(b"/")[2]:
            rests.append(path)
    return rests[::-1]


def shingles(words: list[bytes]) -> list[int]:
    """Return the hashes of all runs of five words."""
    runs = zip(words, words[1:], words[2:], words[3:], words[4:], strict=False)
    return list(map(hash, runs))


def some_shingles(words: list[bytes]) -> list[int]:
    """Return the hashes of every third run of five words.

    Two of them in a row are eight words, and each copy of seven words has one.
    """
    return [hash(tuple(words[n : n + WORDS])) for n in range(0, len(words) - WORDS + 1, 3)]


def atoms_of(text: str) -> list[int]:
    """Return the atoms of a leaf of an output, some of them twice."""
    if " " not in text and WORD.fullmatch(text):
        return list(map(hash, _values_of_word(trim(text.lower().encode()))))
    raw = plain(text)
    folded = fold(raw)
    words = folded.split()
    line = b" ".join(words)
    odd = set(filterfalse(bytes.isalpha, words))
    is_prose = 2 * len(odd) < len(words) >= WORDS
    if (bare := without_groups(raw)) is not raw:
        # Commas may as well stand between numbers.
        odd.update(fold(bare).split())
    values = {token.strip(_MARKS) for token in odd}
    other = [trim(line), *_other_numbers(values), *encoded(text)]
    if not is_phrase(folded, line):
        other += phrases(folded)
    if has_parts(folded):
        joined = list(filter(has_parts, values))
        values.update(b" ".join(joined).translate(_SEGMENTS).split())
        values.update(b" ".join(joined).translate(_WITHOUT_COLONS).replace(b" /", b" ").split())
        _add_folders(joined, values)
    found = list(map(hash, filterfalse(bytes.isalpha, values)))
    found += map(hash, other)
    if is_prose:
        found += shingles(words)
    return found


def _values_of_word(word: bytes) -> Iterable[bytes]:
    if _SLASH not in word:
        return (word, shortest(word))
    values = {word, *word.split(b"/")}
    _add_folders([word], values)
    return filterfalse(bytes.isalpha, values)


def _add_folders(paths: list[bytes], values: set[bytes]) -> None:
    """Add the folders of all paths, which have most of them in common."""
    for path in paths:
        end = path.rfind(b"/") if path.count(b"/") <= _FOLDERS else 0
        while end > 0 and (folder := path[:end]) not in values:
            values.add(folder)
            end = path.rfind(b"/", 0, end)


def _other_numbers(values: set[bytes]) -> list[bytes]:
    """Return the numbers among words that have zeros at their end, or a unit."""
    found: list[bytes] = []
    for value in values:
        if b"0" <= value < b":":
            if value[-1] == _ZERO:
                found.append(shortest(value))
            elif not value.isdigit() and (unit := _WITH_UNIT.fullmatch(value)):
                found.append(shortest(unit[1]))
    return found


def may_be_value(value: bytes) -> bool:
    """Return whether a whole argument can be a value: it is not short and no name of a format."""
    return len(value) >= SHORTEST and value not in _COMMON


def may_be_word(token: bytes) -> bool:
    """Return whether a word among others, or a part of one, can be a value: letters alone are none."""
    return len(token) >= SHORTEST and not token.isalpha() and token not in _COMMON


def is_entity(token: bytes, *, alone: bool) -> bool:
    """Return whether a word is like an identifier, path, URL, address or number.

    `alone`: it is the whole argument. Among other words it needs a digit, a slash or an @. Settings are
    none: round numbers, and letters and underscores alone.
    """
    if token.isdigit():
        return len(token) >= SHORTEST and len(token.rstrip(b"0")) > _ROUND
    if digits := _digits(token):
        return digits >= SHORTEST or digits < len(token) - token.count(b".")
    if _SLASH in token or _AT in token:
        return True
    may_be = alone and (len(token) >= PHRASE or _DOT in token)
    return may_be and not token.replace(b"_", b"").isalpha()


def _digits(token: bytes) -> int:
    return len(token.translate(None, _NO_DIGITS))


def is_strong_value(value: bytes) -> bool:
    """Return whether a value is unlikely to stand in an unrelated text by chance."""
    size = len(value)
    if size < 5 or value.isdigit():
        return size >= 5 and len(value.rstrip(b"0")) > _ROUND
    digits = _digits(value)
    if digits >= 5:
        return not _DATE.fullmatch(value)
    if size >= PHRASE:
        return not value.replace(b"_", b"").isalpha()
    if size >= 8:
        return digits >= 2 or _SLASH in value or _AT in value
    return size == 7 and digits >= 3


def is_strong_in_text(value: bytes) -> bool:
    """Return whether a part of a longer text is unlikely to be there by chance: in code names and idioms recur."""
    is_odd = _SLASH in value or value.find(b"@") > 0 or _digits(value) >= 2
    return (is_odd or value.count(b" ") >= WORDS) and is_strong_value(value)


def is_strong_part(part: bytes) -> bool:
    """Return whether a part of a word that was not found as a whole is unlikely to be there by chance.

    Many paths and URLs have the same server, or a file of the same name.
    """
    return (_digits(part) >= 3 and is_strong_value(part)) or (
        _SLASH in part and len(part) >= PHRASE
    )
