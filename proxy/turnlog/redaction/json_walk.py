"""Redaction of values under secret names in JSON, token by token; also in broken JSON.

`hits` are the positions of candidates from the quick scan. Everything else can be neither a secret
nor the name of one, and is skipped as fast as possible.
"""

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from .names import Hides
from .values import PLACEHOLDER

DEEPEST: Final = 256
"""Values nested deeper are redacted whole, so that brackets alone cannot fill the memory."""

_SHORT_NAME: Final = 64
_NAMES: Final = 1024

_QUOTED: Final = f'"{PLACEHOLDER}"'
_TOKEN: Final = re.compile(
    r'"(?P<string>[^"\\]*+(?:\\.[^"\\]*+)*+)(?P<end>"|\\?\Z)(?:\s*+(?P<colon>:))?'
    r"|(?P<gone>" + re.escape(PLACEHOLDER) + r")"
    r"|(?P<open>[{\[])|(?P<close>[}\]])|(?P<stray>:)"
    r"|(?P<bare>[^\s{}\[\]:,\"]++)(?:\s*+(?P<unquoted>:))?",
    re.DOTALL | re.ASCII,
)
_NUMBER: Final = re.compile(r"-?[0-9][0-9.eE+\-]*+")
# Members that do not name a sibling's value, with a value that is neither object nor array.
_DULL: Final = re.compile(
    r'(?:\s*+"(?!(?i:name|key|header|variable|env|param|parameter|val|value|content|default)")[^"\\]*+"'
    r'\s*+:\s*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+\-]*+|true|false|null)\s*+,)++',
    re.DOTALL | re.ASCII,
)
_LITERAL_WORDS: Final = frozenset({"true", "false", "null"})
_LITERALS: Final = _LITERAL_WORDS | {"NaN", "Infinity", "-Infinity", "\xef\xbb\xbf"}
_NEVER_CUT: Final = _LITERAL_WORDS | {_QUOTED, PLACEHOLDER, "[]", "{}", '""', '"'}
_NAME_KEYS: Final = frozenset({"name", "key", "header", "variable", "env", "param", "parameter"})
_NAMED_VALUE_KEYS: Final = frozenset({"value", "val"})
_VALUE_KEYS: Final = _NAMED_VALUE_KEYS | {"content", "default"}
# Distance to the next hit, in characters, from which a search for such a run pays off.
_FAR: Final = 256


class Texts(Struct, frozen=True):
    """Functions that the walk calls for strings and numbers; strings are raw JSON."""

    string: Callable[[str], str]
    """Return a string with secrets redacted; the same string if there are none."""
    plain: Callable[[str], str]
    """Return the decoded text of a string."""
    hides: Callable[[str], Hides]
    """Return which values of a name are redacted."""
    is_secret: Callable[[str], bool]
    """Return whether a number has the shape of a secret."""


class _Frame(Struct):
    """One open object or array."""

    opener: str = ""
    begin: int = 0
    inherited: Hides = Hides.NOTHING
    """What the names of the enclosing members hide."""
    hides: Hides = Hides.NOTHING
    """What the names of the current member and the enclosing ones hide."""
    name: str = ""
    end: int = -1
    """End of the newest item; -1 between a name and its value."""
    items: int = 0
    first_is_secret_name: bool = False
    """Whether the first item is the name of a secret: `["Authorization", ...]`."""
    after_secret_option: bool = False
    """Whether the newest item is a secret option: `["--password", ...]`."""
    has_secret_name: bool = False
    """Whether a sibling gives `value` a secret name: `{"name": "PASSWORD", "value": ...}`."""
    value: tuple[int, int] = (0, 0)
    """Start and end of the newest `value`, or of the second item."""
    is_named: bool = False
    """Whether a sibling names `value`, secret or not."""
    is_unnamed: bool = False
    """Whether there is a `value` that needs a sibling to name it."""


class Walk:
    """One walk over bytes. `sound` is afterwards whether all of it could be JSON.

    If the data was cut (`complete` is false), the name of a value may be missing.
    """

    def __init__(
        self, data: bytes, hits: list[int], texts: Texts, *, complete: bool = True
    ) -> None:
        self._complete = complete
        # One character for each byte, so that positions in both are the same.
        self._text = data.decode("latin-1")
        self._hits = [*hits, len(data) + 1]
        self._hit = 0
        self._texts = texts
        self._known: dict[str, tuple[str, Hides, str]] = {}
        self._cuts: list[tuple[int, int, str]] = []
        self._frames = [_Frame()]
        self._depth = 0
        """Depth inside a value that is redacted whole, where only brackets count; else 0."""
        self._hidden_from = 0
        self.sound = True
        self._takers: dict[str | None, Callable[[_Frame, re.Match[str]], int | None]] = {
            "end": self._string,
            "colon": self._name,
            "open": self._open,
            "close": self._close,
            "stray": self._stray,
            "unquoted": self._name,
            "bare": self._bare,
            "gone": self._placeholder,
        }

    def run(self) -> bytes:
        """Return the data without secrets."""
        takers = self._takers
        place = 0
        while place >= 0:
            for match in _TOKEN.finditer(self._text, place):
                if self._depth:
                    self._skip(match)
                elif end := takers[match.lastgroup](self._frames[-1], match):
                    place = end
                    break
            else:
                place = -1
        if self._depth:
            self._cut(self._hidden_from, len(self._text))
        for frame in self._frames:
            if not self._complete and frame.is_unnamed and not frame.is_named:
                frame.has_secret_name = True
            self._finish(frame)
        return self._result()

    def _skip(self, match: re.Match[str]) -> None:
        if match.lastgroup == "open":
            self._depth += 1
        elif match.lastgroup == "close":
            self._depth -= 1
            if not self._depth:
                self._cut(self._hidden_from, match.end())
                self._frames[-1].end = match.end()

    def _is_hit(self, match: re.Match[str]) -> bool:
        begin, end = match.span()
        while self._hits[self._hit] < begin:
            self._hit += 1
        return self._hits[self._hit] < end

    def _settle(self, frame: _Frame, begin: int) -> None:
        """End the current member if a comma follows its value."""
        if frame.name and frame.end >= 0 and "," in self._text[frame.end : begin]:
            frame.hides, frame.name = frame.inherited, ""

    def _name(self, frame: _Frame, match: re.Match[str]) -> int | None:
        """Read a member's name; return the position to skip to if no member before it can matter."""
        begin, end = match.span()
        raw: str | None = match["string"]
        if raw is None:
            self.sound = False
        self._settle(frame, begin)
        if frame.hides and frame.name:
            # A second colon in one member is not JSON; a hidden value stays hidden.
            self.sound = False
            self._cut(begin, self._text.rindex(":", begin, end))
            return None
        said = match["bare"] if raw is None else raw
        frame.hides = frame.inherited
        frame.end = -1
        if self._is_hit(match):
            said, hides, cut = self._known.get(said) or self._read_name(said)
            frame.hides = max(frame.inherited, hides)
            if raw is not None and cut != raw:
                self._cuts.append((*match.span("string"), cut))
        elif not frame.hides and frame.opener == "{" and self._hits[self._hit] - begin > _FAR:
            run = _DULL.match(self._text, begin, self._hits[self._hit])
            if run is not None:
                frame.name, frame.end = "", run.end()
                return run.end()
        frame.name = said.lower() or "?"
        return None

    def _read_name(self, raw: str) -> tuple[str, Hides, str]:
        """Return a name decoded, what it hides, and its redacted form; cached, as few names are in use."""
        said = self._texts.plain(raw)
        known = (said, self._texts.hides(said), self._texts.string(raw))
        if len(raw) <= _SHORT_NAME and len(self._known) < _NAMES:
            self._known[raw] = known
        return known

    def _string(self, frame: _Frame, match: re.Match[str]) -> None:
        if match["end"] != '"':
            self.sound = False
        self._settle(frame, match.start())
        hidden = frame.hides or frame.after_secret_option
        is_hit = self._is_hit(match)
        frame.items += 1
        frame.end = match.end()
        if not self._complete:
            frame.is_named = frame.is_named or frame.name in _NAME_KEYS
            frame.is_unnamed = frame.is_unnamed or frame.name in _NAMED_VALUE_KEYS
        if frame.opener == "[" or frame.name in _VALUE_KEYS or is_hit:
            self._note(frame, match, is_hit=is_hit)
        if hidden:
            self._cut(match.start(), match.end())
        elif is_hit:
            self._cut_string(match)

    def _note(self, frame: _Frame, match: re.Match[str], *, is_hit: bool) -> None:
        """Note whether a string names its siblings, or is a value that a sibling may name."""
        said = self._texts.plain(match["string"]) if is_hit else ""
        tells = self._texts.hides(said)
        frame.after_secret_option = False
        if frame.name in _NAME_KEYS:
            frame.has_secret_name = frame.has_secret_name or tells is not Hides.NOTHING
        elif frame.name in _VALUE_KEYS:
            frame.value = match.span()
        elif frame.opener == "[":
            if frame.items == 1:
                frame.first_is_secret_name = tells is Hides.ALL
            elif frame.items == 2:
                frame.value = match.span()
            frame.after_secret_option = bool(tells) and said.startswith("-")

    def _bare(self, frame: _Frame, match: re.Match[str]) -> None:
        token = match[0]
        is_number = _NUMBER.fullmatch(token) is not None
        if not is_number and token not in _LITERALS:
            self.sound = False
        self._settle(frame, match.start())
        frame.items += 1
        frame.end = match.end()
        if frame.name in _VALUE_KEYS:
            frame.value = match.span()
        hides = frame.hides
        if hides is Hides.ALL or (hides and not is_number) or self._texts.is_secret(token):
            self._cut(match.start(), match.end())

    def _placeholder(self, frame: _Frame, match: re.Match[str]) -> None:
        """Skip a placeholder that an earlier redaction left outside a string."""
        self.sound = False
        frame.items += 1
        frame.end = match.end()

    def _stray(self, frame: _Frame, _: re.Match[str]) -> None:
        """Skip a colon that follows no name."""
        self.sound = False
        frame.first_is_secret_name = False

    def _open(self, frame: _Frame, match: re.Match[str]) -> None:
        self._settle(frame, match.start())
        frame.items += 1
        if frame.hides is Hides.ALL or len(self._frames) > DEEPEST:
            self._depth, self._hidden_from = 1, match.start()
            return
        self._frames.append(
            _Frame(opener=match[0], begin=match.start(), inherited=frame.hides, hides=frame.hides)
        )

    def _close(self, frame: _Frame, match: re.Match[str]) -> None:
        if len(self._frames) == 1:
            self.sound = False
            return
        self._frames.pop()
        if frame.opener + match[0] not in ("{}", "[]"):
            self.sound = False
        self._finish(frame)
        parent = self._frames[-1]
        parent.end = match.end()
        if parent.name in _VALUE_KEYS:
            parent.value = (frame.begin, match.end())

    def _finish(self, frame: _Frame) -> None:
        is_pair = frame.first_is_secret_name and frame.items == 2
        begin, end = frame.value
        if end and (frame.has_secret_name or is_pair):
            self._cut(begin, end)

    def _cut_string(self, match: re.Match[str]) -> None:
        raw: str = match["string"]
        cut = self._texts.string(raw)
        if cut != raw:
            self._cuts.append((*match.span("string"), cut))

    def _cut(self, begin: int, end: int) -> None:
        if self._text[begin:end] not in _NEVER_CUT:
            self._cuts.append((begin, end, _QUOTED))

    def _result(self) -> bytes:
        pieces: list[str] = []
        done = 0
        # Of two nested cuts the outer one comes first, and the inner one is skipped.
        for begin, end, instead in sorted(self._cuts, key=lambda cut: (cut[0], -cut[1])):
            if begin >= done:
                pieces += self._text[done:begin], instead
                done = end
        return "".join((*pieces, self._text[done:])).encode("latin-1")
