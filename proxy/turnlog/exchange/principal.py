"""The credentials of a request that identify its caller, by name.

A digest of them is the *principal*, which separates the sessions, keys and answers of callers. So
only credentials count that stay the same between requests, not proofs, nonces and signatures.
"""

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache
from typing import Final

from turnlog.redaction.names import HARMLESS_TOKEN

COOKIE: Final = "cookie:"
"""Prefix of the names of cookies."""
DEFAULT_NAMES: Final = (
    *("authorization", "*-authorization", "token", "*-token", "api-key", "*-api-key"),
    *("apikey", "*-apikey", "*-access-key", "*-auth-key", "*-subscription-key", "*-functions-key"),
    *("cookie:*sess*", "cookie:*sid", "cookie:*auth*", "cookie:*token*", "cookie:*jwt*"),
)
"""Names of headers and query parameters, and of cookies."""
Pairs = tuple[tuple[bytes, bytes], ...]

_CACHE: Final = 4096
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OF_ONE_REQUEST: Final = re.compile(
    rf".*[cx]srf.*|idempotency-key|(?:.*-)?(?:nonce|proof|signature|captcha|recaptcha|hcaptcha|turnstile"
    rf"|idempotency|request|{HARMLESS_TOKEN.pattern})-token"
)
"""Names of values that are made for one request, or are positions in a list."""
_PARAMETER: Final = rb"[\w!#$%&'*+.^`|~-]+[ \t]*=[ \t]*(?:\"(?:[^\"\\]|\\.)*\"|[^\s\",=][^\s\",]*)"
_PARAMETERS: Final = re.compile(
    rb"([\w-]+) +(%b(?:[ \t]*,[ \t]*%b)*)[ \t]*" % (_PARAMETER, _PARAMETER)
)
"""Credentials that are a list of parameters instead of one token (RFC 9110, section 11.4)."""
_EACH: Final = re.compile(rb"([\w!#$%&'*+.^`|~-]+)[ \t]*=[ \t]*(\"(?:[^\"\\]|\\.)*\"|[^\s\",]+)")
_NAMING: Final = frozenset(
    {b"credential", b"username", b"keyid", b"key_id", b"id", b"client_id", b"token", b"key"}
    | {b"oauth_consumer_key", b"oauth_token"}
)
"""Parameters that identify the caller; the others are nonces, times and signatures."""


class PrincipalNames:
    """The names of credentials, as patterns in which `*` matches any text."""

    def __init__(self, names: Iterable[str] = DEFAULT_NAMES) -> None:
        lower = [name.lower() for name in names]
        self._fields = _patterns(_dashed(name) for name in lower if not name.startswith(COOKIE))
        self._exact = frozenset(_dashed(name) for name in lower if "*" not in name)
        self._cookies = _patterns(
            name.removeprefix(COOKIE) for name in lower if name.startswith(COOKIE)
        )
        # Most requests have the same dozen headers.
        self.is_credential = lru_cache(_CACHE)(self._is_credential)
        self._is_cookie = lru_cache(_CACHE)(self._is_session_cookie)

    def credentials(self, headers: Iterable[tuple[bytes, bytes]], query: str = "") -> Pairs:
        """Return the stable credentials of a request as sorted pairs of name and value.

        `query` is that of the caller's request, without the `?`.
        """
        found: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            lower = name.lower()
            if lower == b"cookie":
                found += ((lower, each) for each in self._session_cookies(value))
            elif self.is_credential(name.decode("latin-1")):
                found.append((lower, _stable(value)))
        if query:
            found += self._parameters(query)
        return tuple(sorted(found))

    def without_credentials(self, query: str) -> str:
        """Return a query without the parameters that are credentials."""
        if not query:
            return query
        return "&".join(part for part in query.split("&") if not self._is_parameter(part))

    def _parameters(self, query: str) -> list[tuple[bytes, bytes]]:
        named = (part.partition("=") for part in query.split("&") if self._is_parameter(part))
        return [(b"?" + _raw(name.lower()), _raw(value)) for name, _, value in named]

    def _is_parameter(self, part: str) -> bool:
        name, equals, _ = part.partition("=")
        return bool(equals) and self.is_credential(name)

    def _session_cookies(self, value: bytes) -> list[bytes]:
        cookies = (cookie.strip() for cookie in value.split(b";"))
        return [
            cookie
            for cookie in cookies
            if self._is_cookie(cookie.partition(b"=")[0].decode("latin-1"))
        ]

    def _is_credential(self, name: str) -> bool:
        dashed = _dashed(name)
        if dashed in self._exact:
            return True
        return self._fields.fullmatch(dashed) is not None and not _is_of_one_request(dashed)

    def _is_session_cookie(self, name: str) -> bool:
        lower = name.lower()
        return self._cookies.fullmatch(lower) is not None and not _is_of_one_request(_dashed(name))


def _patterns(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for any of the names; without names it matches nothing."""
    return re.compile("|".join(map(translate, names)) or r"(?!)")


def _dashed(name: str) -> str:
    """Return a name in lower case with dashes: `api_key` and `apiKey` as `api-key`."""
    return re.sub(r"[_.]", "-", _CAMEL.sub("-", name)).lower()


def _is_of_one_request(dashed: str) -> bool:
    return _OF_ONE_REQUEST.fullmatch(dashed) is not None


def _stable(value: bytes) -> bytes:
    """Return the part of a header's value that stays the same between requests."""
    # Credentials that are signed for each request (AWS Signature 4, HTTP Digest, OAuth 1) name the
    # signer beside nonce, time and signature.
    parameters = _PARAMETERS.fullmatch(value)
    if parameters is None:
        return value
    scheme, listed = parameters.groups()
    naming = [
        # The scope behind the key's id changes daily (AWS Signature 4).
        (name.lower(), said.partition(b"/")[0] if name.lower() == b"credential" else said)
        for name, said in _EACH.findall(listed)
        if name.lower() in _NAMING
    ]
    if not naming:
        return value  # better to split one caller than to merge two
    return b"%b %b" % (scheme.lower(), b",".join(b"%b=%b" % pair for pair in naming))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
