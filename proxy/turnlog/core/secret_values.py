"""What secrets look like where no name gives them away, and a cheap first look for any of it."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

PLACEHOLDER: Final = "[redacted]"

_KEY_WORDS: Final = (
    *("api", "access", "private", "secret", "signing", "encryption", "master", "shared"),
    *("account", "storage", "subscription", "auth", "session", "ssh", "functions"),
)
_AS_NAME: Final = r"[\]\)]?\s*+[:=>]|[\\\"'`]"
# Each of these finds its first letters, or rare ones, as fast as memory can be read, and looks
# around only there: each alternative has to begin with a plain character. For lower case.
_LOOKS: Final = tuple(
    re.compile(pattern.encode())
    for pattern in (
        # Counted tokens, and tokens that prose speaks of, are everywhere.
        r"k(?:(?<=tok)en(?!s\\*[\"']?\s*:\s*[0-9]++\s*+[,}\]])(?!s?(?: |[,.;)] ?)[a-z(])"
        r"|(?<=cook)ie|(?<=ak)ia[a-z0-9]|(?<=slack)\.com/|ey(?:"
        + "|".join(f"(?<={word}key)|(?<={word}.key)" for word in _KEY_WORDS)
        + r"))|z(?:(?<=authoriz)|(?<=aiz)a)|j(?:(?<=eyj)|wt)|q(?<=req)uest.?state"
        r"|x(?:ox[a-z]-|app-|(?<=gocspx)-|keysib-)"
        r"|_(?:(?<=gh[pousr]_)|(?<=_pat_)|(?<=npm_)|(?<=hf_)|(?<=shp.._)|(?<=_v1_)|(?<=_live_)"
        r"|(?<=_test_)|(?<=whsec_)|(?<=glsa_)|(?<=figd_)|(?<=sbp_))"
        r"|-(?:(?<=sk-)|(?<=glpat-)|(?<=pypi-)|(?<=tskey-)|signature|u(?:ser)?[ =]"
        r"|(?<![\w\-][\w\-]-)(?=[\w\-]{0,60}(?:token|pass|auth|otp)[ \t]))"
        r"|\.(?:(?<=ya29\.)|(?<=hvs\.)|(?<=sg\.)[0-9a-z_-]{8})"
        r"|\?sig(?:nature)?=|&sig(?:nature)?=",
        r"cre(?:(?<=secre)t|d(?:ential|s))",
        r"ss(?:(?<=pass)(?:w|[-_ .]?(?:phrase|code)|"
        + _AS_NAME
        + r")|(?<=sess)i(?:d|on(?:(?<=mcpsession)|(?<=mcp.session))))",
        rf"auth(?:{_AS_NAME})",
        rf"otp(?:{_AS_NAME})",
        r"pwd",
        r"bearer",
        r"basic[\s+]",
        r"connection.?string",
        r":aa[0-9a-z_-]{24}",
        r"a(?:sia[0-9a-z]{12}|tatt3)",
    )
)
_urls: Final = re.compile(rb"://[^\s\"'<>\\]++").finditer
_COVERED: Final = re.compile(rb"\\u00[2-7]|\\/|%[0-9a-f]{2}")
_ESCAPED: Final = re.compile(rb"(?<!\\)\\++(?:u00([2-7][0-9a-f])|(/)|[nrt])")
_LAYERS: Final = 12
"""How many layers of escapes and percent signs are looked through."""


def decoded(data: bytes) -> bytes | None:
    """Return `data` without JSON's escapes of ASCII characters, and without percent-encoding.

    `None` stands for more layers than anybody uses who does not want to hide something.
    """
    for _ in range(_LAYERS):
        plain = _ESCAPED.sub(_unescape, data) if b"\\" in data else data
        plain = unquote_to_bytes(plain) if b"%" in plain else plain
        if plain == data:
            return data
        data = plain
    return None


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return bytes([int(match[1], 16)])
    return match[2] or b" "


class FirstLook:
    """Tells cheaply that nothing in a text can be secret. Wrong only in the safe direction."""

    def __init__(self, names: Iterable[str]) -> None:
        self._patterns = (*_LOOKS, *map(_name_look, names))
        self._searches = tuple(pattern.search for pattern in self._patterns)

    def __call__(self, data: bytes) -> bool:
        """Tell whether `data` deserves a real look."""
        low = data.lower()
        if b"\0" in low:
            # UTF-16 and UTF-32 would hide every word.
            low = low.replace(b"\0", b"")
        if self._hit(low):
            return True
        if b"%" not in low and b"\\u00" not in low and b"\\/" not in low:
            return False
        plain = decoded(low)
        return plain is None or (plain != low and self._hit(plain.lower()))

    def places(self, data: bytes) -> list[int]:
        """Return where in `data` something deserves a real look, in order."""
        low = data.lower()
        patterns = (*self._patterns, _COVERED)
        found = [match.start() for look in patterns for match in look.finditer(low)]
        found += [url.start() for url in _urls(low) if b"@" in url[0]] if b"@" in low else []
        return sorted(found)

    def _hit(self, low: bytes) -> bool:
        for search in self._searches:
            if search(low):
                return True
        return b"@" in low and any(b"@" in url[0] for url in _urls(low))


def _name_look(name: str) -> re.Pattern[bytes]:
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.compile("[^a-z0-9]?".join(letters).encode())


class Shape(Struct, frozen=True):
    """One kind of secret: group `secret` of `pattern` vanishes where `holds` agrees."""

    needle: str
    """What stands in lower case in every text that the pattern matches."""
    pattern: re.Pattern[str]
    holds: Callable[[str], bool]


def _always(_: str) -> bool:
    return True


def _has_digit(value: str) -> bool:
    return any(map(str.isdigit, value))


def _has_dot(value: str) -> bool:
    return "." in value


def _is_userinfo(value: str) -> bool:
    """Tell whether base64 says `user:password`."""
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4))
    except binascii.Error:
        return False
    return b":" in plain and min(plain) >= 0x20


def _shape(
    needle: str, pattern: str, holds: Callable[[str], bool] = _always, flags: int = 0
) -> Shape:
    return Shape(needle, re.compile(_EDGE + pattern, flags), holds)


def _prefixed(needle: str, pattern: str, holds: Callable[[str], bool] = _always) -> Shape:
    return _shape(needle, f"(?P<secret>{pattern})", holds)


_EDGE: Final = r"(?<![A-Za-z0-9])"
# What follows the word in prose and in challenges, and is no token.
_PROSE: Final = (
    r"(?!(?:bearer|basic|tokens?|auth\w*|realm|error|scope|resource_metadata|scheme|format|headers?|access|"
    r"credentials?|is|was|are|and|or|in|of|for|with|must|should|not|missing|invalid)\b)"
)
_SHAPES: Final = (
    _shape(
        "bearer", rf"bearer[\s+]++{_PROSE}(?P<secret>[^\s\"'<>,;\[\\]{{3,}}+)", flags=re.IGNORECASE
    ),
    _shape(
        "basic", r"basic[\s+]++(?P<secret>[A-Za-z0-9+/_\-]{4,}+={0,2})", _is_userinfo, re.IGNORECASE
    ),
    _prefixed(
        "private key",
        r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[^-]++|-(?!----END ))*+(?:-----END [A-Z0-9 ]{0,64}-----)?",
    ),
    _prefixed("sk-", r"sk-[\w-]{8,}+", _has_digit),
    _prefixed("_live_", r"[a-z]k_live_\w{8,}+"),
    _prefixed("_test_", r"[a-z]k_test_\w{8,}+"),
    _prefixed("gh", r"gh[pousr]_\w{8,}+"),
    _prefixed("_pat_", r"(?:github|dckr)_pat_[\w-]{8,}+"),
    _prefixed("xox", r"xox[a-z]-[\w-]{6,}+"),
    _prefixed("xapp-", r"xapp-[\w-]{8,}+"),
    _shape("hooks.slack", r"hooks\.slack\.com/(?P<secret>[\w/-]{8,}+)"),
    _prefixed("akia", r"AKIA[0-9A-Z]{12,}+"),
    _prefixed("asia", r"ASIA[0-9A-Z]{12,}+"),
    _prefixed("aiza", r"AIza[\w-]{16,}+"),
    _prefixed("ya29.", r"ya29\.[\w.-]{8,}+"),
    _prefixed("gocspx-", r"GOCSPX-[\w-]{8,}+"),
    _prefixed("eyj", r"eyJ[\w-]{8,}+(?:\.[\w-]*+)*+", _has_dot),
    _prefixed("_", r"(?:npm|hf|whsec|glsa|figd|sbp|dop_v1|shp[a-z]{2})_\w{8,}+"),
    _prefixed("-", r"(?:glpat|pypi|tskey|xkeysib)-[\w-]{8,}+"),
    _prefixed("atatt3", r"ATATT3[\w=-]{8,}+"),
    _prefixed("hvs.", r"hvs\.[\w-]{8,}+"),
    _prefixed("sg.", r"SG\.[\w-]{8,}+\.[\w-]++"),
    Shape(":aa", re.compile(r"(?<![0-9])(?P<secret>[0-9]{8,10}:AA[\w-]{24,}+)"), _always),
    _shape("-u", r"(?<![^\s])(?:-u|--user)[ =](?P<secret>[^\s:]++:\S++)"),
)


def cut_shapes(text: str) -> str:
    """Return `text` with every secret of a known shape replaced."""
    low = text.lower()
    for shape in _SHAPES:
        if shape.needle in low:
            text = shape.pattern.sub(partial(_cut, holds=shape.holds), text)
    return text


def _cut(match: re.Match[str], *, holds: Callable[[str], bool]) -> str:
    whole, secret = match[0], match["secret"]
    if not holds(secret):
        return whole
    begin, end = match.span("secret")
    return whole[: begin - match.start()] + PLACEHOLDER + whole[end - match.start() :]
