"""Digests of an answer's content that its fields name, checked as the content passes (RFC 9530).

A digest covers the content as it is sent: in its content coding, and without transfer coding.
"""

import hashlib
from typing import Final, cast

from msgspec import Struct

from turnlog.wire.message import NO_CHECKS, Hash, ResultChecks

from .head import CONTENT_DIGEST, DIGESTS, Body, Headers, fields
from .response_head import ResponseHead

_REPR_DIGEST: Final = b"repr-digest"
_PARTIAL_CONTENT: Final = 206
_ALGORITHMS: Final = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
"""The algorithms of RFC 9530, section 5, that are not deprecated; others are ignored."""
_CHECKED: Final = ResultChecks(is_checked=True)


class _Expected(Struct, frozen=True):
    """One digest that a field names."""

    field: str
    algorithm: str
    value: bytes

    @property
    def is_signed(self) -> bool:
        """Whether signatures of the head can cover it."""
        return self.field == CONTENT_DIGEST.decode()


class SignedHead(Struct, frozen=True):
    """The result of the checks of the signatures of an answer's head (RFC 9421)."""

    failures: tuple[str, ...] = ()
    is_valid: bool = False
    """Whether one holds."""
    covers_digest: bool = False
    """Whether one that holds covers `Content-Digest`, and so the content."""

    def with_other(self, other: "SignedHead") -> "SignedHead":
        """Return what this and another signature of the same head say."""
        return SignedHead(
            self.failures + other.failures,
            self.is_valid or other.is_valid,
            self.covers_digest or other.covers_digest,
        )


UNSIGNED: Final = SignedHead()


class ContentDigests:
    """The digests that one answer names. Use: `feed` each piece of the content, then look at `checks`."""

    def __init__(self, head: ResponseHead, signed: SignedHead = UNSIGNED) -> None:
        """`signed` is what the signatures of the head say."""
        self._signed = signed
        self._has_content = head.body is not Body.NONE
        self._is_range = head.status == _PARTIAL_CONTENT or bool(fields(head.raw, b"content-range"))
        # A digest in an answer without content is that of content which is not sent.
        self._expected = self._named(head.raw) if self._has_content else ()
        trailers = b",".join(fields(head.raw, b"trailer")).lower()
        self._awaits_trailers = any(name in trailers for name in DIGESTS)
        wanted = _ALGORITHMS if self._awaits_trailers else {one.algorithm for one in self._expected}
        self._hashes: dict[str, Hash] = {name: _ALGORITHMS[name]() for name in wanted}

    def feed(self, data: bytes) -> None:
        """Add the next piece of the content."""
        for each in self._hashes.values():
            each.update(data)

    def take_trailers(self, trailers: Headers) -> None:
        """Read the fields that came behind the content."""
        if self._awaits_trailers:
            self._awaits_trailers = False
            self._expected += self._named(trailers)

    @property
    def may_hold(self) -> bool:
        """Whether all digests are known, and hold if the content ends here."""
        return not (self._awaits_trailers or self._of_content.failures)

    @property
    def checks(self) -> ResultChecks:
        """The result of the checks if the content ends here."""
        found = self._of_content
        if self._signed is UNSIGNED:
            return found
        # A signature says nothing of content whose digest it does not cover, or cannot be checked.
        covers = self._signed.covers_digest and any(one.is_signed for one in self._expected)
        holds = not found.failures and (covers or not self._has_content)
        is_verified = self._signed.is_valid and holds
        return found.with_others(ResultChecks(self._signed.failures, is_verified, is_verified))

    @property
    def _of_content(self) -> ResultChecks:
        """The result of the checks of the digests alone."""
        found = {name: each.digest() for name, each in self._hashes.items()}
        wrong = [one.field for one in self._expected if found[one.algorithm] != one.value]
        if wrong:
            return ResultChecks(tuple(f"{field} mismatch" for field in dict.fromkeys(wrong)))
        return _CHECKED if self._expected else NO_CHECKS

    def _named(self, raw: Headers) -> tuple[_Expected, ...]:
        """Return the digests of the content that fields name."""
        found = _named(raw, CONTENT_DIGEST)
        # It covers the whole representation: that is the content, unless only a range is sent (RFC 9530,
        # section 3).
        return found if self._is_range else found + _named(raw, _REPR_DIGEST)


def _named(raw: Headers, name: bytes) -> tuple[_Expected, ...]:
    """Return the known digests in a field; none if it cannot be read (RFC 9651, section 4.2)."""
    values = fields(raw, name)
    if not values:
        return ()
    # Imported on first use: with what it imports that takes 15 ms, and few servers name digests.
    import http_sf

    try:
        members = http_sf.parse(b", ".join(values), tltype="dictionary")
    except http_sf.StructuredFieldError:
        return ()
    assert isinstance(members, dict)
    known = [(algorithm, _bare(members[algorithm])) for algorithm in _ALGORITHMS.keys() & members]
    return tuple(
        _Expected(name.decode(), algorithm, value)
        for algorithm, value in known
        if isinstance(value, bytes)
    )


def _bare(member: object) -> object:
    """Return a member of a dictionary without its parameters."""
    return cast("tuple[object, object]", member)[0] if isinstance(member, tuple) else member
