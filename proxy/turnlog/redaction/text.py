"""Redaction of text: `name=value` and `name: value` in all spellings, URLs and markup.

Scans only go forward and never look at a part twice, so the work is linear in any text. Names are
read only where the quick scan found a candidate: source code is full of harmless assignments.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from .names import Hides, SecretNames
from .values import PLACEHOLDER, cut_group

_ASSIGNMENT: Final = re.compile(
    r"(?<![\w.\-])(?P<name>[\w.\-]++)\\*+[\"'`]?+[\])]?+[ \t]*+(?P<sign>=>|:=|==?|:)[ \t]*+"
)
_OPTION: Final = re.compile(r"(?<!\S)--?(?P<name>[A-Za-z][\w\-]*+)[ \t]++(?=[^\s\-])")
_NETRC: Final = re.compile(r"login(?<!\wlogin)\s++\S++\s++(?P<name>password)\s++")
_ELEMENT: Final = re.compile(
    r"<(?P<name>[A-Za-z_][\w:.\-]*+)(?:\s[^<>]*+)?>(?:<!\[CDATA\[)?+(?P<value>[^<]*+)"
)
_FIELD: Final = re.compile(
    r"name=(?<!\wname=)[\"']?(?P<name>[\w.\-]++)[^<>]{0,200}?\bvalue=[\"']?(?P<value>[^\s\"'<>]++)"
)
_WORD_BEFORE: Final = re.compile(r"([A-Za-z]+)[ \t]$")
_TWO_WORDS: Final = re.compile(r"(?:key|keys|tokens?|phrase|code|string|word)$", re.IGNORECASE)

_QUOTE: Final = re.compile(r"[bfruBFRU]{0,2}(\\*+)(\"\"\"|'''|[\"'`])")
_INSIDE: Final = {
    mark: re.compile(rf"[^{mark}\\]*+(?:\\.[^{mark}\\]*+)*+", re.DOTALL) for mark in "\"'`"
}
_BARE: Final = re.compile(r"[^\s&]++")
_CLOSERS: Final = re.compile(r"[,;:.)}\]\"'\\<>]*+")
_GLUED: Final = re.compile(r"[^\s&,;)}\]>]*+")
_REST_OF_LINE: Final = re.compile(r"[^\r\n]*+")
_BLOCK_SIGN: Final = re.compile(r"[|>][-+0-9]{0,3}[ \t]*+$")
_CONTINUED: Final = re.compile(
    r"[:=]$|=>$|^(?:bearer|basic|digest|token|negotiate|ntlm|apikey|aws4-hmac-sha256)$",
    re.IGNORECASE,
)
_MORE: Final = re.compile(r"[ \t]*+(?P<sign>=>|:=|==?|:)?[ \t]*+")
_BRACKETS: Final = re.compile(
    r"\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"?|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'?|[{}\[\]()]", re.DOTALL
)
# Values that are none: types and references to a value, as in `token: str` and
# `password=self.password`, of which source code is full.
_NO_VALUE: Final = re.compile(
    r"(?:null|none|nil|true|false|undefined|\[\s*\]|\{\s*\}|\(\)"
    r"|str|string|secretstr|bytes|int|number|bool|boolean|any|object|unknown|void"
    r"|(?-i:\$\{[A-Za-z_]\w*\}|\$[A-Z_]{3,})|\*{3,}|\.{3}"
    r"|(?:self|this|os|process|args|config|settings|request|req)\.[a-z_][\w.]*+"
    r"(?:[(\[][\"']?(?-i:[A-Z_]*)[\"']?[)\]])?"
    r")?[,;.)}\]\"'\\]*+",
    re.IGNORECASE,
)
_NUMBERS: Final = re.compile(r"[\[({]?[-+\d.,_%eE \t]+[,;)}\]]*+")
_COUNTS: Final = re.compile(
    r"(?:\"[^\"]*+\"\s*+:|'[^']*+'\s*+:|[-+\d.,_%\s{}\[\]():]|(?<=\d)[eE]"
    r"|\b(?:null|true|false|None)\b)*+"
)
_LINE_START: Final = re.compile(
    r"(?:^|[\r\n])[ \t]*+(?:[-*+>#|][ \t]++)*+(?:export[ \t]++|set[ \t]++)?[\"'`*]*+$",
    re.IGNORECASE,
)
_INDENT: Final = re.compile(r"[ \t]*+")

_URL: Final = re.compile(r"://[^\s\"'<>\\]++")
_PORT: Final = re.compile(r"[0-9]{0,5}(?:[/?#]|$)")
_NAME: Final = re.compile(r"[\w.\-]*+")
_RUN: Final = re.compile(r"[^\s\"'<>]*+")
_WINDOW: Final = 64
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_ENCODED_NAME: Final = re.compile(r"%[0-9A-Fa-f]{2}[^=&?;#/%]*+=")
_SIGNATURE: Final = re.compile(
    r"[?&](?P<name>sig|signature|x-amz-signature|x-goog-signature)=(?P<value>[^\s&#\"'<>]++)",
    re.IGNORECASE,
)
_URL_PARTS: Final = re.compile(r"([?&;#/])")
_STRUCTURED: Final = re.compile(r"[{\[\"]")
_LAYERS: Final = 4
"""Layers of percent-encoding that are decoded."""
_URL_NAMES: Final = frozenset({"sig", "signature"})


class Span(Struct, frozen=True):
    """Start and end of a value in a text."""

    begin: int
    end: int


def cut_assignments(text: str, names: SecretNames, places: Iterable[int]) -> str:
    """Return `text` with the values of secret names redacted.

    `places` are the candidates of the quick scan in order, each in a name or the word before it.
    """
    text = _cut_found(text, names, _assignments_at(text, places))
    if "login" in text:
        text = _cut_found(text, names, _NETRC.finditer(text))
    if "<" in text:
        text = _ELEMENT.sub(lambda m: _cut_group(m, names), text)
        text = _FIELD.sub(lambda m: _cut_group(m, names), text)
    return text


def cut_urls(text: str, names: SecretNames, near: str, look: Callable[[str], bool]) -> str:
    """Return `text` with passwords in URLs and percent-encoded secrets redacted.

    `near` is the text around the candidates that are not names. `look` returns whether a decoded text
    has a secret.
    """
    if "://" in text and "@" in text:
        text = _URL.sub(_cut_userinfo, text)
    if "sig" in near:
        text = _SIGNATURE.sub(lambda m: f"{m[0][0]}{m['name']}={PLACEHOLDER}", text)
    return _cut_runs(text, lambda run: _cut_encoded(run, names, look)) if "%" in text else text


def _cut_runs(text: str, cut: Callable[[str], str]) -> str:
    """Return `text` with `cut` applied to each run that has a percent-encoded character."""
    pieces: list[str] = []
    done = 0
    places = (match.start() for match in _ENCODED.finditer(text))
    for begin, end in _runs(text, places, _RUN):
        pieces += text[done:begin], cut(text[begin:end])
        done = end
    return "".join((*pieces, text[done:]))


def _runs(text: str, places: Iterable[int], kind: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the runs of `kind` around `places`, each once; places are in order."""
    end = 0
    for place in places:
        if place >= end:
            begin = _run_start(text, place, end, kind)
            run = kind.match(text, place)
            end = run.end() if run else place
            yield begin, end


def _run_start(text: str, place: int, floor: int, kind: re.Pattern[str]) -> int:
    """Return the start of the run at or right before `place`, not before `floor`."""
    size = _WINDOW
    while True:
        window = text[max(floor, place - size) : place]
        run = kind.match(window[::-1])
        length = run.end() if run else 0
        if length < len(window) or place - size <= floor:
            return place - length
        size *= 4


def _assignments_at(text: str, places: Iterable[int]) -> Iterator[re.Match[str]]:
    """Yield the assignments and options at `places`."""
    for begin, end in _runs(text, places, _NAME):
        # The candidate in `API key: ...` may be either word.
        for start in (begin, end + 1) if text[end : end + 1] in {" ", "\t"} else (begin,):
            if match := _ASSIGNMENT.match(text, start) or _OPTION.match(text, start):
                yield match


def _cut_found(text: str, names: SecretNames, found: Iterable[re.Match[str]]) -> str:
    pieces: list[str] = []
    done = at = 0
    for match in found:
        if match.start() < at:
            continue
        at = match.end()
        hides = _hides(text, match, names)
        if hides is Hides.NOTHING:
            continue
        span = _value_span(text, match, hides)
        if _is_worth_hiding(text[span.begin : span.end], hides, names):
            pieces += text[done : span.begin], PLACEHOLDER
            done = span.end
        at = max(at, span.end)
    return "".join((*pieces, text[done:])) if pieces else text


def _hides(text: str, match: re.Match[str], names: SecretNames) -> Hides:
    name = match["name"]
    hides = names.hides(name)
    if hides is Hides.ALL or not _TWO_WORDS.search(name):
        return hides
    # In `API key: ...` the word before belongs to the name.
    begin = match.start("name")
    before = _WORD_BEFORE.search(text, max(0, begin - 24), begin)
    return names.hides(f"{before[1]} {name}") if before else hides


def _is_worth_hiding(value: str, hides: Hides, names: SecretNames) -> bool:
    if value == PLACEHOLDER or _NO_VALUE.fullmatch(value):
        return False
    if hides is Hides.ALL:
        return True
    if value[0] in "{[(":
        return _COUNTS.fullmatch(value) is None or any(
            names.hides(match["name"]) is Hides.ALL for match in _ASSIGNMENT.finditer(value)
        )
    return not _NUMBERS.fullmatch(value)


def _value_span(text: str, match: re.Match[str], hides: Hides) -> Span:
    """Return the span of the value after `match`, which may be empty."""
    at = match.end()
    if text.startswith(PLACEHOLDER, at):
        return _placeholder_span(text, at)
    if quote := _QUOTE.match(text, at):
        return _quoted_span(text, quote)
    if text[at : at + 1] in {"{", "[", "("}:
        return Span(at, _closing(text, at))
    if at == len(text) or text[at] in "\r\n" or _block_follows(text, at):
        return _block_span(text, match.start("name"), at)
    sign = match.groupdict().get("sign")
    if sign is not None and hides is Hides.ALL and _is_first(text, match.start("name")):
        return _line_span(text, at, sign)
    return _bare_span(text, at)


def _line_span(text: str, at: int, sign: str) -> Span:
    """Return the rest of a line, as in headers and environment files, whose values may have blanks."""
    rest = _REST_OF_LINE.match(text, at)
    end = rest.end() if rest else at
    if sign.startswith("=") and "&" in text[at:end]:
        return _bare_span(text, at)
    return Span(at, at + len(text[at:end].rstrip()))


def _bare_span(text: str, at: int) -> Span:
    """Return the span of one word, or of more if that cannot be the whole value."""
    # As in `Bearer abc`, `password: str = "abc"`, and before the name of another value.
    end = at
    while word := _BARE.match(text, end):
        end = word.end()
        more = _MORE.match(text, end)
        if more is None or more.end() == end:
            break
        if not more["sign"] and not _CONTINUED.search(word[0]):
            break
        end = more.end()
        if quote := _QUOTE.match(text, end):
            end = _quoted_span(text, quote).end
            break
    return Span(at, end)


def _placeholder_span(text: str, at: int) -> Span:
    """Return the span of a placeholder and what directly follows it, unless that only closes."""
    word = _bare_span(text, at)
    end = at + len(PLACEHOLDER)
    return Span(at, end) if _CLOSERS.fullmatch(text, end, word.end) else word


def _quoted_span(text: str, quote: re.Match[str]) -> Span:
    """Return the span between quotes; to the end of the text if they are never closed."""
    escape, mark = quote[1], quote[2]
    begin = quote.end()
    end = _closing_quote(text, begin, escape, mark)
    if end < 0:
        return Span(begin, len(text))
    after = end + len(escape) + len(mark)
    glued = _GLUED.match(text, after)
    # In a shell `"abc"def` is one word, and `'it''s'` is one string in SQL.
    if glued and glued.end() > after:
        return Span(begin, glued.end())
    return Span(begin, end)


def _closing_quote(text: str, begin: int, escape: str, mark: str) -> int:
    """Return the position of the closing quote, or -1; inside plain quotes a backslash escapes."""
    if escape or len(mark) > 1:
        return text.find(escape + mark, begin)
    inside = _INSIDE[mark].match(text, begin)
    end = inside.end() if inside else begin
    return end if text.startswith(mark, end) else -1


def _closing(text: str, at: int) -> int:
    """Return the position after the bracket that closes the one at `at`, else the end of the text."""
    depth = 0
    for token in _BRACKETS.finditer(text, at):
        if token[0] in {"{", "[", "("}:
            depth += 1
        elif token[0] in {"}", "]", ")"}:
            depth -= 1
            if depth == 0:
                return token.end()
    return len(text)


def _block_follows(text: str, at: int) -> bool:
    if text[at] not in "|>":
        return False
    line = _REST_OF_LINE.match(text, at)
    return line is not None and _BLOCK_SIGN.match(line[0]) is not None


def _block_span(text: str, name_at: int, at: int) -> Span:
    """Return the span of the indented lines (YAML) below the line of the name."""
    first = text.rfind("\n", max(0, name_at - 200), name_at) + 1
    if first == 0 and name_at > 200:
        return Span(at, at)
    indent = _INDENT.match(text, first)
    outer = indent.end() - first if indent else 0
    begin = end = text.find("\n", at) + 1
    if begin == 0:
        return Span(at, at)
    while end < len(text):
        stop = text.find("\n", end) + 1 or len(text)
        line = text[end:stop]
        inner = len(line) - len(line.lstrip(" \t"))
        is_item = inner == outer and line[inner : inner + 2] == "- "
        if line.strip() and inner <= outer and not is_item:
            break
        end = stop
    block = text[begin:end]
    return Span(begin + len(block) - len(block.lstrip()), begin + len(block.rstrip()))


def _is_first(text: str, at: int) -> bool:
    """Return whether only blanks and list marks come before `at` on its line."""
    begin = max(0, at - 64)
    before = text[begin:at]
    if begin and "\n" not in before and "\r" not in before:
        return False
    return _LINE_START.search(before) is not None


def _cut_group(match: re.Match[str], names: SecretNames) -> str:
    value = match["value"].strip()
    hides = names.hides(match["name"].rpartition(":")[2])
    if hides is Hides.NOTHING or not _is_worth_hiding(value, hides, names):
        return match[0]
    return cut_group(match, "value")


def _cut_userinfo(match: re.Match[str]) -> str:
    url = match[0]
    at = url.rfind("@")
    if at < 0:
        return url
    authority = re.split(r"[/?#]", url[3:], maxsplit=1)[0]
    name, colon, after = authority.partition(":")
    if not colon:
        # A long user name alone is a token; `git@` is not.
        user, sign, _ = authority.rpartition("@")
        long = len(user) >= 16 and user != PLACEHOLDER
        return f"://{PLACEHOLDER}{url[3 + len(user) :]}" if sign and long else url
    if "@" not in authority:
        if _PORT.match(after + url[3 + len(authority) :]):
            return url
    else:
        at = 3 + authority.rfind("@")
    begin = 4 + len(name)
    if begin >= at or url[begin:at] == PLACEHOLDER:
        return url
    return url[:begin] + PLACEHOLDER + url[at:]


def _cut_encoded(token: str, names: SecretNames, look: Callable[[str], bool]) -> str:
    plain = _decoded(token)
    if not (look(plain) or _STRUCTURED.search(plain) or _ENCODED_NAME.search(token)):
        return token
    parts = _URL_PARTS.split(token)
    cut = "".join(_cut_part(part, names, look) if "%" in part else part for part in parts)
    return PLACEHOLDER if look(_decoded(cut)) else cut


def _cut_part(part: str, names: SecretNames, look: Callable[[str], bool]) -> str:
    name, sign, value = part.partition("=")
    if not sign:
        return PLACEHOLDER if look(_decoded(part)) else part
    plain = _decoded(name)
    if names.hides(plain) is not Hides.NOTHING or plain in _URL_NAMES or look(_decoded(value)):
        return f"{name}={PLACEHOLDER}"
    return part


def _decoded(text: str) -> str:
    for _ in range(_LAYERS):
        text, before = unquote(text.replace("+", " ")), text
        if text == before:
            break
    return text
