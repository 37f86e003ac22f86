"""Shapes of secrets that no name marks, and a quick scan for candidates of any kind."""

import base64
import binascii
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from turnlog.rules.pattern import any_of, find_any

PLACEHOLDER: Final = "[redacted]"

_KEY_WORDS: Final = (
    *("api", "access", "private", "secret", "signing", "encryption", "master", "shared"),
    *("account", "storage", "subscription", "auth", "session", "ssh", "functions"),
)
_AS_NAME: Final = r"[-_.0-9]*+[\]\)]?\s*+[:=>]|[\\\"'`]"
# Each alternative begins with a plain character, so that it is found as fast as memory is read, and
# lookarounds are tried only there. For text in lower case. Groups mark candidates for `_SHAPES` and
# signatures of URLs; the others are names.
_LOOKS: Final = tuple(
    re.compile(pattern.encode())
    for pattern in (
        # Counted tokens, and tokens that prose speaks of, are everywhere.
        r"k(?:(?<=tok)en(?!s\\*[\"']?\s*:\s*[0-9]++\s*+[,}\]])(?!s?(?: |[,.;)] ?)[a-z(])"
        r"|(?<=cook)ie|((?<=ak)ia[a-z0-9]|(?<=slack)\.com/)|ey(?:"
        + "|".join(f"(?<={word}key)|(?<={word}.key)" for word in _KEY_WORDS)
        + r"))|z(?:(?<=authoriz)|((?<=aiz)a))|j(?:((?<=eyj))|wt)|q(?<=req)uest.?state"
        r"|x(ox[a-z]-|app-|(?<=gocspx)-|keysib-)"
        r"|_((?<=gh[pousr]_)|(?<=_pat_)|(?<=npm_)|(?<=hf_)|(?<=shp.._)|(?<=_v1_)|(?<=_live_)"
        r"|(?<=_test_)|(?<=whsec_)|(?<=glsa_)|(?<=figd_)|(?<=sbp_)|(?<=gsk_)|(?<=lin_api_)|(?<=ntn_)"
        r"|(?<=sntry[su]_))"
        r"|-(?:((?<=sk-)|(?<=glpat-)|(?<=pypi-)|(?<=tskey-)|(?<=xai-)|(?<=pplx-)|(?<=tvly-)"
        r"|u(?:ser)?[ =])|(signature)"
        r"|(?<![\w\-][\w\-]-)(?=[\w\-]{0,60}(?:token|pass|auth|otp)[ \t]))"
        r"|\.((?<=ya29\.)|(?<=hvs\.)|(?<=sg\.)[0-9a-z_-]{8})"
        r"|\?(sig)(?:nature)?=|&(sig)(?:nature)?=",
        r"cre(?:(?<=secre)t|d(?:ential|s))",
        r"ss(?:(?<=pass)(?:w|[-_ .]?(?:phrase|code)|"
        + _AS_NAME
        + r")|(?<=sess)i(?:d|on(?:(?<=mcpsession)|(?<=mcp.session))))",
        rf"auth(?:{_AS_NAME})",
        rf"otp(?:{_AS_NAME})",
        r"pwd",
        r"(bearer)",
        r"(basic)[\s+]",
        r"connection.?string",
        r"(:aa)[0-9a-z_-]{24}",
        r"-----begin ",
        r"a(sia[0-9a-z]{12}|tatt3)",
    )
)
# A part that each match of the above contains, without lookarounds. RE2 searches for all of it in one pass, with the
# GIL released, and nearly every text ends there.
_NEEDLES: Final = (
    r"token|cookie|akia|slack\.com/|authoriz|aiza|eyj|jwt|request.?state|secret|cred(?:ential|s)",
    rf"(?:{'|'.join(_KEY_WORDS)}).?key",
    r"xox[a-z]-|xapp-|gocspx-|xkeysib-|sk-|glpat-|pypi-|tskey-|xai-|pplx-|tvly-",
    r"-u(?:ser)?[ =]|-signature",
    r"gh[pousr]_|_pat_|npm_|hf_|shp.._|_v1_|_live_|_test_|whsec_|glsa_|figd_|sbp_|gsk_|lin_api_|ntn_|sntry[su]_",
    r"ya29\.|hvs\.|sg\.[0-9a-z_-]|[?&]sig(?:nature)?=|:aa[0-9a-z_-]|-----begin |asia[0-9a-z]|atatt3",
    r"(?:pass|auth|otp)(?:[-_.0-9]*[\]\)]?[\s\v]*[:=>]|[\\\"'`]|[ \t])|pass(?:w|[-_ .]?(?:phrase|code))",
    r"pwd|bearer|basic[\s\v+]|connection.?string|sessid|mcp.?session",
)
# Not among the needles, as an address may be as long as the text: `_urls` finds the positions.
_ADDRESS: Final = r"://[^\s\"'<>\\]*@"
# Encodings that may hide any word: escapes, percent-encoding, the null bytes of UTF-16 and UTF-32.
_COVERS: Final = r"\\u00|\\/|%[0-9a-f][0-9a-f]|\x00"
_VALUE_NEEDLE: Final = r'"val(?:ue)?"[\s\v]*:'
VALUE_KEY: Final = re.compile(rb'"val(?:ue)?"\s*+:', re.IGNORECASE)
"""The key of a value whose name may be in a sibling."""
_urls: Final = re.compile(rb"://[^\s\"'<>\\]++").finditer
_COVERED: Final = re.compile(rb"\\u00[2-7]|\\/|%[0-9a-f]{2}")
_ENCODED: Final = re.compile(rb"%[0-9A-Fa-f]{2}")
_ESCAPED: Final = re.compile(rb"\\(?<!\\\\)\\*+(?:u00([2-7][0-9a-f])|(/)|[nrt])")
_CONTEXT: Final = 16
_SMALL: Final = 4096
"""Bytes up to which a text is searched whole."""
_REACH: Final = 128
"""Bytes. A match begins at most half as far from its needle, and looks no further back or ahead, except
over `_OPEN_END`."""
_OPEN_END: Final = re.compile(rb"[\s\d\\\"'`:_.)\]\-]*+")
"""A run of any length that a pattern may look ahead over."""
_GAP: Final = b"\0" * 4
"""Separates parts; no pattern matches it."""
_LAYERS: Final = 12
"""Layers of escapes and percent-encoding that are decoded."""


def decode_layers(data: bytes) -> bytes | None:
    """Return `data` without JSON escapes of ASCII characters and percent-encoding.

    `None` if there are more layers than any honest text has.
    """
    for _ in range(_LAYERS):
        plain = _ESCAPED.sub(_unescape, data) if b"\\" in data else data
        plain = unquote_to_bytes(plain) if _ENCODED.search(plain) else plain
        if plain == data:
            return data
        data = plain
    return None


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return bytes([int(match[1], 16)])
    return match[2] or b" "


class QuickScan:
    """A quick scan for candidates of secrets; it may find too many, never too few."""

    def __init__(self, names: Iterable[str]) -> None:
        own = tuple(map(_name_pattern, names))
        self.patterns = (*_LOOKS, *(re.compile(name.encode()) for name in own))
        self._needles = any_of((*_NEEDLES, _ADDRESS, *own))
        self._find_needle = find_any((*_NEEDLES, *own))
        self._anything = any_of((*_NEEDLES, _ADDRESS, *own, _COVERS))
        self._anything_in_cut = any_of((*_NEEDLES, _ADDRESS, *own, _COVERS, _VALUE_NEEDLE))

    def has_candidates(self, data: bytes, *, complete: bool = True) -> bool:
        """Return whether `data` may contain a secret; with `complete=False` it is the start of a longer
        text, and so may a value whose name would follow in a sibling."""
        if not (self._anything if complete else self._anything_in_cut)(data):
            return False
        if not complete and VALUE_KEY.search(data):
            return True
        low = data.lower().replace(b"\0", b"")
        return self._hit(low) or self._uncovers(low)

    def candidate_places(self, data: bytes) -> list[int]:
        """Return the positions of candidates in `data`, in order."""
        low = data.lower()
        found = [match.start() for match in _COVERED.finditer(low)]
        found += [url.start() for url in _urls(low) if b"@" in url[0]] if b"@" in low else []
        found += [place for place, _ in self._all(low)]
        return sorted(found)

    def marks(self, text: str) -> tuple[list[int], str]:
        """Return the positions of candidates in `text`, and the text around those that are not names.

        The latter is in lower case, for the needles of shapes.
        """
        # One byte for each character, so that positions are the same.
        low = text.encode("ascii", "replace").lower()
        places: list[int] = []
        near: list[bytes] = []
        for place, is_shape in self._all(low):
            places.append(place)
            if is_shape:
                near.append(low[max(0, place - _CONTEXT) : place + _CONTEXT])
        return sorted(places), b" ".join(near).decode()

    def _all(self, low: bytes) -> Iterator[tuple[int, bool]]:
        """Yield the position of each match, and whether it is the shape of a secret, not a name."""
        # Each pattern takes 3 ms for 1 MiB, and most of a text cannot match.
        parts = [(0, len(low))] if len(low) < _SMALL else self._parts(low)
        text = _GAP.join([low[begin:end] for begin, end in parts])
        begins = [*accumulate((end - begin + len(_GAP) for begin, end in parts), initial=0)]
        for look in self.patterns:
            for match in look.finditer(text):
                number = bisect_right(begins, match.start()) - 1
                yield match.start() - begins[number] + parts[number][0], match.lastindex is not None

    def _parts(self, low: bytes) -> list[tuple[int, int]]:
        """Return the parts of a text in which a pattern may match: those around needles."""
        parts: list[tuple[int, int]] = []
        place = 0
        while place < len(low) and (needle := self._find_needle(low, place)) is not None:
            begin, last = max(needle.start() - _REACH, 0), needle.end() + _REACH
            run = _OPEN_END.match(low, last)
            end = min((run.end() if run else last) + _REACH, len(low))
            if parts and begin <= parts[-1][1]:
                before = parts.pop()
                begin, end = before[0], max(before[1], end)
            parts.append((begin, end))
            # A match that begins before that is inside this part.
            place = needle.end() + _REACH // 2
        return parts

    def _hit(self, low: bytes) -> bool:
        if not self._needles(low):
            return False
        if any(True for _ in self._all(low)):
            return True
        return b"@" in low and any(b"@" in url[0] for url in _urls(low))

    def _uncovers(self, low: bytes) -> bool:
        """Return whether decoding escapes and percent-encoding uncovers a candidate."""
        if b"%" not in low and b"\\u00" not in low and b"\\/" not in low:
            return False
        plain = decode_layers(low)
        if plain is None or plain == low:
            return plain is None
        return self._hit(plain.lower())


def _name_pattern(name: str) -> str:
    return "[^a-z0-9]?".join(re.sub(r"[^a-z0-9]", "", name.lower()))


class SecretShape(Struct, frozen=True):
    """One shape of secrets: group `secret` of `pattern` is redacted if `is_secret` accepts it."""

    needle: str
    """Text in lower case that every match contains, near the candidate of the quick scan."""
    pattern: re.Pattern[str]
    is_secret: Callable[[str], bool]


def _has_digit(value: str) -> bool:
    return any(map(str.isdigit, value))


def _has_dot(value: str) -> bool:
    return "." in value


def _is_userinfo(value: str) -> bool:
    """Return whether `value` is base64 of `user:password`."""
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4))
    except binascii.Error:
        return False
    return b":" in plain and min(plain) >= 0x20


def _shape(needle: str, pattern: str, holds: Callable[[str], bool] = bool) -> SecretShape:
    return SecretShape(needle, re.compile(pattern), holds)


def _headed(head: str, rest: str, holds: Callable[[str], bool] = bool) -> SecretShape:
    """Return the shape of a secret that begins with `head`, not after a letter or digit."""
    # `head` has a fixed length and comes first in the pattern, before the lookbehind: plain characters
    # are found as fast as memory is read.
    needle = re.split(r"[\[\\]", head)[0].lower()
    return _shape(needle, rf"(?P<secret>{head}(?<![A-Za-z0-9]{head}){rest})", holds)


# Words that follow `bearer` or `basic` in prose and challenges, and are not tokens.
_PROSE: Final = (
    r"(?!(?:bearer|basic|tokens?|auth\w*|realm|error|scope|resource_metadata|scheme|format|headers?|access|"
    r"credentials?|is|was|are|and|or|in|of|for|with|must|should|not|missing|invalid)\b)"
)
PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]++|-(?!----END ))*+(?:-----END [A-Z0-9 ]{0,64}-----)?"
)
_SHAPES: Final = (
    _shape(
        "bearer",
        rf"[bB](?<![A-Za-z0-9].)(?i:earer[\s+]++{_PROSE})(?P<secret>[^\s\"'<>,;\[\\]{{3,}}+)",
    ),
    _shape(
        "basic",
        r"[bB](?<![A-Za-z0-9].)(?i:asic)[\s+]++(?P<secret>[A-Za-z0-9+/_\-]{4,}+={0,2})",
        _is_userinfo,
    ),
    _headed("sk-", r"[\w-]{8,}+", _has_digit),
    *(_headed(head, r"[\w-]{8,}+") for head in ("xapp-", "GOCSPX-", "glpat-", "pypi-", "tskey-")),
    *(_headed(head, r"[\w-]{8,}+") for head in ("xkeysib-", "github_pat_", "dckr_pat_", r"hvs\.")),
    *(_headed(head, r"\w{8,}+") for head in ("npm_", "hf_", "whsec_", "glsa_", "figd_", "sbp_")),
    *(
        _headed(head, r"[A-Za-z0-9]{20,}+")
        for head in ("gsk_", "xai-", "pplx-", "lin_api_", "ntn_")
    ),
    *(_headed(head, r"[\w=+/-]{20,}+") for head in ("tvly-", "sntrys_", "sntryu_")),
    *(_headed(head, r"\w{8,}+") for head in ("dop_v1_", "shp[a-z]{2}_", "gh[pousr]_")),
    _shape("k_live_", r"(?P<secret>[a-z]k_live_(?<![A-Za-z0-9]........)\w{8,}+)"),
    _shape("k_test_", r"(?P<secret>[a-z]k_test_(?<![A-Za-z0-9]........)\w{8,}+)"),
    _headed("xox[a-z]-", r"[\w-]{6,}+"),
    _shape("hooks.slack", r"hooks\.slack\.com/(?<![A-Za-z0-9].{16})(?P<secret>[\w/-]{8,}+)"),
    _headed("AKIA", r"[0-9A-Z]{12,}+"),
    _headed("ASIA", r"[0-9A-Z]{12,}+"),
    _headed("AIza", r"[\w-]{16,}+"),
    _headed(r"ya29\.", r"[\w.-]{8,}+"),
    _headed("eyJ", r"[\w-]{8,}+(?:\.[\w-]*+)*+", _has_dot),
    _headed("ATATT3", r"[\w=-]{8,}+"),
    _headed(r"SG\.", r"[\w-]{8,}+\.[\w-]++"),
    _shape(":aa", r"(?<![0-9])(?P<secret>[0-9]{8,10}:AA[\w-]{24,}+)"),
    _shape("-u", r"-(?:u|-user)(?<!\S-u)(?<!\S--user)[ =](?P<secret>[^\s:]++:\S++)"),
)


def cut_shapes(text: str, near: str) -> str:
    """Return `text` with secrets redacted whose shape has its needle in `near`."""
    for shape in _SHAPES if near else ():
        if shape.needle in near:
            text = shape.pattern.sub(partial(_cut, holds=shape.is_secret), text)
    return text


def _cut(match: re.Match[str], *, holds: Callable[[str], bool]) -> str:
    return cut_group(match, "secret") if holds(match["secret"]) else match[0]


def cut_group(match: re.Match[str], group: str) -> str:
    """Return what a pattern matched with one of its groups redacted."""
    begin, end = (place - match.start() for place in match.span(group))
    return match[0][:begin] + PLACEHOLDER + match[0][end:]
