"""Names of JSON members, headers, variables and query parameters whose values are secret."""

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from turnlog.core.bounded_dict import BoundedDict


class Hides(IntEnum):
    """Which values of a name are redacted."""

    NOTHING = 0
    STRINGS = 1
    """Strings but not numbers: `max_tokens`, `csrf_token`."""
    ALL = 2
    """Every value, also numbers and whole objects."""


# Headers that the words below do not match, or whose value may be a number.
_HEADERS: Final = (
    *("x-vault-token", "x-github-token", "private-token", "job-token", "x-functions-key"),
    *("x-goog-iap-jwt-assertion", "cf-access-jwt-assertion", "mcp-session-id"),
)

# Ends of names without separators, long enough to need no word boundary.
_ENDS: Final = (
    *("password", "passwords", "passwordhash", "passwd", "passphrase", "passcode"),
    *("secret", "secrets", "secretkey", "apikey", "apikeys", "accesskey"),
    *("privatekey", "signingkey", "encryptionkey", "masterkey", "sharedkey"),
    *("accountkey", "storagekey", "subscriptionkey", "authkey", "sessionkey"),
    *("sshkey", "accesstoken", "refreshtoken", "idtoken", "authtoken", "bearertoken"),
    *("sessiontoken", "apitoken", "securitytoken", "csrftoken", "xsrftoken"),
    *("credential", "credentials", "authorization", "connectionstring", "cookie"),
    *("cookies", "sessid"),
)
# Last words, too short to match inside a word.
_LAST_WORDS: Final = frozenset({"pwd", "auth", "bearer", "creds", "jwt", "otp", "totp"})
_WHOLE: Final = {
    "token": Hides.ALL,
    "pass": Hides.STRINGS,
    "xamzsignature": Hides.ALL,
    "xgoogsignature": Hides.ALL,
    # Sealed by an MCP server for one call and its caller (2026-07-28).
    "requeststate": Hides.ALL,
}
HARMLESS_TOKEN: Final = re.compile(
    r"page|next|prev|previous|continuation|continue|progress|cursor|sync|cancel|cancellation"
    r"|pagination|paging|resume|delta|change|start|end|first|last|stop|eos|bos|pad|unk|mask|sep"
    r"|cls|special|max|min|num|total|count"
)
"""A token after one of these words is a position or a count, not a secret."""

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST: Final = 128
_CACHE: Final = 4096


class SecretNames:
    """The built-in secret names and those of an operator; case and separators do not matter."""

    def __init__(self, names: Iterable[str]) -> None:
        self._exact = frozenset(map(_joined, (*_HEADERS, *names))) - {""}
        self._known: BoundedDict[str, Hides] = BoundedDict(_CACHE)

    def hides(self, name: str) -> Hides:
        """Return which values of `name` are redacted; cached, as few names are in use."""
        known = self._known.get(name)
        if known is not None:
            return known
        # Only the end of a name counts.
        name = name[-_LONGEST:]
        self._known[name] = answer = self._decide(name)
        return answer

    def _decide(self, name: str) -> Hides:
        whole = _joined(name)
        if whole in self._exact:
            return Hides.ALL
        joined = whole.rstrip("0123456789")
        if joined in _WHOLE:
            return _WHOLE[joined]
        if joined.endswith(_ENDS):
            return Hides.ALL
        words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
        if not words:
            return Hides.NOTHING
        if words[-1] in _LAST_WORDS:
            return Hides.ALL
        return _token(words)


def _token(words: list[str]) -> Hides:
    last = words[-1].removesuffix("s")
    if not last.endswith("token"):
        return Hides.NOTHING
    before = last.removesuffix("token") or (words[-2] if len(words) > 1 else "")
    return Hides.NOTHING if HARMLESS_TOKEN.fullmatch(before) else Hides.STRINGS


def _joined(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
