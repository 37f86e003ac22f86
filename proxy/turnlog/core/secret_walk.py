"""Walk JSON token by token, and cut what stands under secret names. Broken JSON is walked too."""

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from .secret_names import Hides, SecretNames
from .secret_values import PLACEHOLDER

_QUOTED: Final = f'"{PLACEHOLDER}"'
_TOKEN: Final = re.compile(
    r'"(?P<string>[^"\\]*+(?:\\.[^"\\]*+)*+)(?P<end>"|\\?\Z)'
    r"|(?P<open>[{\[])|(?P<close>[}\]])|(?P<colon>:)|(?P<comma>,)|(?P<bare>[^\s{}\[\]:,\"]++)",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"-?[0-9][0-9.eE+\-]*+")
_TELLS_NOTHING: Final = frozenset({"true", "false", "null"})
_LITERALS: Final = _TELLS_NOTHING | {"NaN", "Infinity", "-Infinity", "\ufeff"}
_SAYS_NAME: Final = frozenset({"name", "key", "header", "variable", "env", "param", "parameter"})
_SAYS_VALUE: Final = frozenset({"value", "val", "content", "default"})


class Texts(Struct, frozen=True):
    """What the walk asks about things that have no structure."""

    string: Callable[[str], str]
    """Return a string, as it stands in JSON, with secrets cut out; the same one without any."""
    plain: Callable[[str], str]
    """Return what a string says, without its escapes."""
    is_secret: Callable[[str], bool]
    """Tell whether a number is secret for what it looks like."""


class _Frame(Struct):
    """One open object or array."""

    opener: str = ""
    begin: int = 0
    inherited: Hides = Hides.NOTHING
    """What the names further out hide."""
    hides: Hides = Hides.NOTHING
    """What hides the present member."""
    name: str = ""
    last: str = ""
    """The newest scalar: a colon makes it a name."""
    items: int = 0
    first_tells: bool = False
    """It began with the name of a secret: `["Authorization", ...]`."""
    option_tells: bool = False
    """The newest item was an option: `["--password", ...]`."""
    name_tells: bool = False
    """A sibling says what `value` is: `{"name": "PASSWORD", "value": ...}`."""
    value: tuple[int, int] = (0, 0)
    """Where the newest `value`, or the second item, stands."""


class Walk:
    """One walk over a text. `sound` tells afterwards whether all of it could be JSON."""

    def __init__(self, text: str, names: SecretNames, texts: Texts) -> None:
        self._text = text
        self._names = names
        self._texts = texts
        self._cuts: list[tuple[int, int, str]] = []
        self._frames = [_Frame()]
        self._depth = 0
        """How deep inside something that vanishes whole; then only brackets count."""
        self._hidden_from = 0
        self.sound = True
        self._takers: dict[str | None, Callable[[_Frame, re.Match[str]], None]] = {
            "end": self._string,
            "open": self._open,
            "close": self._close,
            "colon": self._colon,
            "comma": self._comma,
            "bare": self._bare,
        }

    def run(self) -> str:
        """Return the text without secrets."""
        for match in _TOKEN.finditer(self._text):
            if self._depth:
                self._pass_by(match)
            else:
                self._takers[match.lastgroup](self._frames[-1], match)
        if self._depth:
            self._cut(self._hidden_from, len(self._text))
        for frame in self._frames:
            self._finish(frame)
        return self._result()

    def _pass_by(self, match: re.Match[str]) -> None:
        if match.lastgroup == "open":
            self._depth += 1
        elif match.lastgroup == "close":
            self._depth -= 1
            if not self._depth:
                self._cut(self._hidden_from, match.end())

    def _string(self, frame: _Frame, match: re.Match[str]) -> None:
        raw, begin, end = match["string"], match.start(), match.end()
        self.sound = self.sound and match["end"] == '"'
        is_name = frame.opener == "{" and not frame.name
        hidden = frame.option_tells or (frame.hides and not is_name)
        self._note(frame, raw, begin, end)
        if hidden:
            if raw not in ("", PLACEHOLDER):
                self._cut(begin, end)
            return
        cut = self._texts.string(raw)
        if cut != raw:
            self._cuts.append((begin, end, f'"{cut}{match["end"]}'))

    def _note(self, frame: _Frame, raw: str, begin: int, end: int) -> None:
        """Remember what a string says of its siblings."""
        frame.last = raw
        frame.items += 1
        frame.option_tells = False
        if frame.name:
            if frame.name in _SAYS_NAME:
                frame.name_tells = frame.name_tells or self._hides(raw) is not Hides.NOTHING
            elif frame.name in _SAYS_VALUE:
                frame.value = (begin, end)
        elif frame.opener == "[":
            if frame.items == 1:
                frame.first_tells = self._hides(raw) is Hides.ALL
            elif frame.items == 2:
                frame.value = (begin, end)
            frame.option_tells = raw.startswith("-") and self._hides(raw) is not Hides.NOTHING

    def _bare(self, frame: _Frame, match: re.Match[str]) -> None:
        token, begin, end = match[0], match.start(), match.end()
        is_number = _NUMBER.fullmatch(token) is not None
        if not is_number and token not in _LITERALS:
            self.sound = False
        frame.last = token
        frame.items += 1
        if frame.name in _SAYS_VALUE:
            frame.value = (begin, end)
        if token in _TELLS_NOTHING:
            return
        hides = frame.hides
        if hides is Hides.ALL or (hides and not is_number) or self._texts.is_secret(token):
            self._cut(begin, end)

    def _colon(self, frame: _Frame, _: re.Match[str]) -> None:
        # A second colon in one member is no JSON; what was hidden stays hidden.
        if frame.hides is frame.inherited:
            frame.hides = max(frame.inherited, self._hides(frame.last))
        frame.name = frame.last.lower() or "?"

    def _comma(self, frame: _Frame, _: re.Match[str]) -> None:
        frame.hides, frame.name = frame.inherited, ""

    def _open(self, frame: _Frame, match: re.Match[str]) -> None:
        frame.items += 1
        if frame.hides is Hides.ALL:
            if self._text.startswith(PLACEHOLDER, match.start()):
                self.sound = False
            self._depth, self._hidden_from = 1, match.start()
            return
        self._frames.append(
            _Frame(
                opener=match[0], begin=match.start(), inherited=frame.hides, hides=frame.hides
            )
        )

    def _close(self, frame: _Frame, match: re.Match[str]) -> None:
        if len(self._frames) == 1:
            self.sound = False
            return
        self._frames.pop()
        self.sound = self.sound and frame.opener + match[0] in ("{}", "[]")
        self._finish(frame)
        parent = self._frames[-1]
        if parent.name in _SAYS_VALUE:
            parent.value = (frame.begin, match.end())

    def _finish(self, frame: _Frame) -> None:
        is_pair = frame.first_tells and frame.items == 2
        begin, end = frame.value
        if end and (frame.name_tells or is_pair):
            self._cut(begin, end)

    def _hides(self, raw: str) -> Hides:
        return self._names.hides(self._texts.plain(raw) if "\\" in raw else raw)

    def _cut(self, begin: int, end: int) -> None:
        if self._text[begin:end] not in (_QUOTED, "[]", "{}", '""', *_TELLS_NOTHING):
            self._cuts.append((begin, end, _QUOTED))

    def _result(self) -> str:
        if not self._cuts:
            return self._text
        pieces: list[str] = []
        done = 0
        # The outer one of two nested cuts comes first, and the inner one is passed over.
        for begin, end, instead in sorted(self._cuts, key=lambda cut: (cut[0], -cut[1])):
            if begin >= done:
                pieces += self._text[done:begin], instead
                done = end
        return "".join((*pieces, self._text[done:]))
