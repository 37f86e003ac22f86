"""Atoms: the values of a text in a canonical form, so that a reformatted copy has the same ones.

Outputs and arguments go through the same functions: what folds to the same text has the same atoms. An
atom is a hash, so that no values are kept. Nothing here raises, whatever the bytes are, and all of it
takes linear time.
"""

import re
from collections.abc import Iterator
from typing import Any, Final
from unicodedata import normalize
from urllib.parse import unquote

import msgspec
from msgspec import Struct

LOOKED_AT: Final = 65536
"""Bytes of a content that are looked at, from its start."""
SHORTEST: Final = 4
"""Characters of the shortest value, and digits of the shortest number."""
PHRASE: Final = 12
"""Characters of the shortest value of several words, or of letters alone."""
WORDS: Final = 5
"""Words of a shingle."""

_decode = msgspec.json.Decoder().decode
_CONTAINERS: Final = (dict, list)
# Escapes in JSON that does not parse, mostly because it was cut. A capital begins a part of a path.
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[bfnrt\"/])")
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_GROUPED: Final = re.compile(rb"[0-9]{1,3}(?:[,'_ ][0-9]{3})+(?:\.[0-9]+)?(?![0-9])")
_SEPARATORS: Final = b",'_ "
_ZEROS: Final = re.compile(rb"([0-9]\.[0-9]*?)0+(?![0-9.])")


def _table(breaks: bytes, blanks: bytes) -> bytes:
    """Return a table to lower case, with line breaks and blanks in place of these characters."""
    table = bytearray(bytes(range(256)).lower())
    for character in breaks:
        table[character] = ord("\n")
    for character in blanks:
        table[character] = ord(" ")
    # Paths of Windows may be written with either.
    table[ord("\\")] = ord("/")
    return bytes(table)


# Names of formats and the like, which say nothing of where a text came from.
_COMMON: Final = frozenset(
    b"utf-8 utf8 utf-16 latin-1 iso-8859-1 us-ascii base64 sha1 sha256 sha512 http/1.1 http/2 "
    b"text/plain text/html text/markdown application/json x86_64 amd64 arm64 ipv4 ipv6".split()
)
_MARKS: Final = b"-_.:/@~"
_NO_DIGITS: Final = re.compile(rb"[^0-9]+")
_STRONG: Final = 6

# What ends a phrase becomes a line break, what ends a word only a blank.
_FOLD: Final = _table(bytes(range(32)) + b"\x7f\"'`()[]{}<>,;|", b"&=?!#$%^*+ ")
_WITHOUT_COLONS: Final = bytes.maketrans(b":", b" ")
_SEGMENTS: Final = bytes.maketrans(b":/", b"  ")


class Leaf(Struct, frozen=True, gc=False):
    """A text inside a content, and its JSON Pointer there."""

    pointer: str
    text: str


def leaves(content: bytes) -> list[Leaf]:
    """Return the strings and larger numbers of a JSON text; of any other text, all of it.

    JSON inside a string is read as well: its leaves have the pointer of that string. A key that is not
    a mere name is a leaf itself.
    """
    try:
        value = _decode(content)
    except (ValueError, RecursionError):
        text = content.decode("utf-8", "replace")
        return [Leaf("", _ESCAPE.sub(" ", text) if "\\" in text else text)]
    found: list[Leaf] = []
    # No recursion: the sender chooses how deep values are nested.
    waiting: list[tuple[str, Any, bool]] = [("", value, True)]
    while waiting:
        pointer, item, outside = waiting.pop()
        if isinstance(item, str):
            inner = _json_in(item) if outside else None
            if inner is None:
                found.append(Leaf(pointer, item))
            else:
                waiting.append((pointer, inner, False))
        elif type(item) in _CONTAINERS:
            waiting.extend(_inside(pointer, item, outside=outside))
        elif text := _number(item):
            found.append(Leaf(pointer, text))
    found.reverse()
    return found


def _inside(
    pointer: str, item: dict[str, Any] | list[Any], *, outside: bool
) -> Iterator[tuple[str, Any, bool]]:
    if isinstance(item, list):
        for number, member in enumerate(item):
            yield f"{pointer}/{number}" if outside else pointer, member, outside
        return
    for name, member in item.items():
        below = f"{pointer}/{_escaped(name)}" if outside else pointer
        if not name.isidentifier():
            yield below, name, False
        yield below, member, outside


def _json_in(text: str) -> object:
    """Return the value of an object or array written in a string; `None` for any other text."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return None


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1") if "~" in name or "/" in name else name


def _number(item: object) -> str:
    """Return the text of a larger number or a fraction; empty for any other value."""
    if isinstance(item, float) and item.is_integer() and abs(item) < 1e15:
        item = int(item)
    if isinstance(item, float) or (type(item) is int and not -1000 < item < 1000):
        return str(item)
    return ""


def fold(text: str) -> bytes:
    """Return a text in lower case, without percent-encoding, quotes, brackets and punctuation.

    Phrases end with a line break, words with a blank. Numbers have no zeros at the end of a fraction.
    """
    if "%" in text and _ENCODED.search(text):
        text = unquote(text)
    if text.isascii():
        raw = text.encode()
    else:
        raw = normalize("NFKC", text)[:LOOKED_AT].casefold().encode("utf-8", "replace")
    folded = raw.translate(_FOLD)
    if b"/" in folded:
        folded = folded.replace(b"//", b"/").replace(b"//", b"/").replace(b" ./", b" ")
    if b"0" in folded and b"." in folded:
        folded = _ZEROS.sub(_without_zeros, folded)
    # The end of a sentence, and a key before its value.
    folded = b"%b " % folded.replace(b"\n", b" \n")
    return folded.replace(b". ", b"  ").replace(b": ", b"  ")


def _without_zeros(found: re.Match[bytes]) -> bytes:
    return found[1].removesuffix(b".")


def phrases(folded: bytes) -> list[bytes]:
    """Return the parts of a folded text that have several words: lines, cells, quoted strings."""
    return [
        joined
        for part in folded.replace(b"  ", b"\n").split(b"\n")
        if len(part) >= PHRASE and len(joined := b" ".join(part.split())) >= PHRASE
    ]


def parts(folded: bytes) -> Iterator[bytes]:
    """Yield the parts of what is joined by colons, and the segments of paths and URLs."""
    if b":" in folded:
        yield from folded.translate(_WITHOUT_COLONS).split()
    if b"/" in folded:
        yield from folded.translate(_SEGMENTS).split()


def grouped_numbers(text: str) -> list[bytes]:
    """Return the numbers that are written with thousands separators, without these."""
    return [
        _without_zeros_at_end(found.translate(None, _SEPARATORS))
        for found in _GROUPED.findall(text.encode("utf-8", "replace"))
    ]


def _without_zeros_at_end(number: bytes) -> bytes:
    return number.rstrip(b"0").removesuffix(b".") if b"." in number else number


def shingles(found: list[bytes]) -> list[int]:
    """Return the hashes of all runs of five words; none of what is no prose."""
    if len(found) < WORDS or 2 * sum(map(bytes.isalpha, found)) < len(found):
        return []
    return list(map(hash, zip(found, found[1:], found[2:], found[3:], found[4:], strict=False)))


def may_be_value(token: bytes) -> bool:
    """Return whether a word can be an atom: it is not short, and not of letters alone."""
    return len(token) >= SHORTEST and not token.isalpha()


def is_entity(token: bytes, *, alone: bool) -> bool:
    """Return whether a word is like an identifier, path, URL, address or number.

    `alone`: it is the whole argument. Among other words it needs a digit, a slash or an @.
    """
    if token in _COMMON or not may_be_value(token) or not token.strip(_MARKS):
        return False
    digits = len(_NO_DIGITS.sub(b"", token))
    if digits:
        return digits >= SHORTEST or digits < len(token.strip(_MARKS)) - token.count(b".")
    if b"/" in token or b"@" in token:
        return True
    return alone and (len(token) >= PHRASE or b"." in token.strip(_MARKS))


def is_weak(token: bytes) -> bool:
    """Return whether other texts may well have the same: a short number or name."""
    return len(token) < _STRONG


def atoms(text: str) -> set[int]:
    """Return the atoms of a leaf of an output."""
    folded = fold(text)
    found = folded.split()
    tokens = set(found)
    tokens.update(parts(folded))
    hashes = {hash(token) for token in filter(may_be_value, tokens)}
    whole = b" ".join(found)
    if len(whole) >= PHRASE:
        hashes.add(hash(whole))
    if len(found) > 1:
        hashes.update(map(hash, phrases(folded)))
        hashes.update(map(hash, grouped_numbers(text)))
        hashes.update(shingles(found))
    return hashes
