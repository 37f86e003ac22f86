"""Digests of content in the fields of an answer (RFC 9530)."""

import base64
import hashlib

import pytest

from turnlog.wire.http.content_digest import UNSIGNED, ContentDigests, SignedHead
from turnlog.wire.http.head import Body
from turnlog.wire.http.response_head import ResponseHead, response_head
from turnlog.wire.message import NO_CHECKS, ResultChecks

HELD = ResultChecks(is_checked=True)


def digest(content: bytes, algorithm: str = "sha-256") -> bytes:
    value = hashlib.new(algorithm.replace("-", ""), content).digest()
    return f"{algorithm}=:{base64.b64encode(value).decode()}:".encode()


def head(
    *fields: tuple[bytes, bytes],
    status: int = 200,
    body: Body = Body.LENGTH,
    media: bytes = b"application/json",
) -> ResponseHead:
    return response_head(status, b"OK", ((b"Content-Type", media), *fields), body)


def checks(*fields: tuple[bytes, bytes], status: int = 200) -> ResultChecks:
    digests = ContentDigests(head(*fields, status=status))
    digests.feed(b"a")
    digests.feed(b"bc")
    return digests.checks


@pytest.mark.parametrize("name", [b"Content-Digest", b"content-digest", b"Repr-Digest"])
@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_a_digest_covers_all_pieces_of_the_content(name: bytes, algorithm: str) -> None:
    failed = ResultChecks((f"{name.decode().lower()} mismatch",))
    assert checks((name, digest(b"abc", algorithm))) == HELD
    assert checks((name, digest(b"ab", algorithm))) == failed


def test_each_known_digest_has_to_hold() -> None:
    both = digest(b"abc") + b", " + digest(b"x", "sha-512")
    failed = ResultChecks(("content-digest mismatch",))
    assert checks((b"Content-Digest", both)) == failed
    assert checks((b"Content-Digest", digest(b"abc")), (b"Content-Digest", both)) == failed
    wrong = digest(b"x") + b", " + digest(b"x", "sha-512")
    each = ResultChecks(("content-digest mismatch", "repr-digest mismatch"))
    assert checks((b"Content-Digest", wrong), (b"Repr-Digest", wrong)) == each


@pytest.mark.parametrize(
    "value",
    [
        b"md5=:AAAA:",
        b"sha-256",
        b"sha-256=5",
        b"sha-256=(:AAAA:)",
        b"SHA-256=:AAAA:",
        b"sha-256=:AAAA",
        b"",
        b"\xff",
    ],
)
def test_what_names_no_known_digest_is_ignored(value: bytes) -> None:
    assert checks((b"Content-Digest", value)) == NO_CHECKS


def test_parameters_of_a_digest_are_ignored() -> None:
    assert checks((b"Content-Digest", digest(b"abc") + b";a=1")) == HELD


def test_of_a_range_the_digest_of_the_representation_says_nothing() -> None:
    ranged = (b"Content-Range", b"bytes 0-2/9")
    assert checks((b"Repr-Digest", digest(b"x")), status=206) == NO_CHECKS
    assert checks((b"Repr-Digest", digest(b"x")), ranged) == NO_CHECKS
    assert checks((b"Content-Digest", digest(b"abc")), ranged, status=206) == HELD


def test_a_digest_may_follow_in_trailers() -> None:
    for trailers, found in (
        (((b"Content-Digest", digest(b"abc")),), HELD),
        (((b"Content-Digest", digest(b"x")),), ResultChecks(("content-digest mismatch",))),
        ((), NO_CHECKS),
    ):
        digests = ContentDigests(head((b"Trailer", b"Content-Digest")))
        digests.feed(b"abc")
        assert not digests.may_hold
        digests.take_trailers(trailers)
        assert digests.checks == found
        assert digests.may_hold is (found != ResultChecks(("content-digest mismatch",)))


def test_trailers_that_were_not_announced_are_not_read() -> None:
    digests = ContentDigests(head((b"Content-Digest", digest(b"abc"))))
    digests.feed(b"abc")
    digests.take_trailers(((b"Content-Digest", digest(b"x")),))
    assert digests.checks == HELD


def test_a_head_says_whether_there_is_a_digest_of_its_content() -> None:
    named = (b"Content-Digest", digest(b"abc"))
    assert head(named).names_digests
    assert head((b"Trailer", b"X, Content-Digest")).names_digests
    assert not head().names_digests
    assert not head((b"Trailer", b"X")).names_digests
    assert not head((b"Digest", b"sha-256=x")).names_digests
    assert not head(named, body=Body.NONE).names_digests
    assert not head(named, media=b"text/event-stream").names_digests


VALID = SignedHead(is_valid=True)
COVERING = SignedHead(is_valid=True, covers_digest=True)
VERIFIED = ResultChecks(is_checked=True, is_verified=True)
NAMED = (b"Content-Digest", digest(b"abc"))
WRONG = (b"Content-Digest", digest(b"x"))
REPR = (b"Repr-Digest", digest(b"abc"))


@pytest.mark.parametrize(
    ("signed", "fields", "body", "expected"),
    [
        (COVERING, (NAMED,), Body.LENGTH, VERIFIED),
        (COVERING, (WRONG,), Body.LENGTH, ResultChecks(("content-digest mismatch",))),
        (VALID, (NAMED,), Body.LENGTH, HELD),
        (COVERING, (REPR,), Body.LENGTH, HELD),
        (COVERING, ((b"Content-Digest", b"md5=:AAAA:"),), Body.LENGTH, NO_CHECKS),
        (VALID, (), Body.LENGTH, NO_CHECKS),
        (VALID, (), Body.NONE, VERIFIED),
        (VALID, (WRONG,), Body.NONE, VERIFIED),
        (UNSIGNED, (WRONG,), Body.NONE, NO_CHECKS),
    ],
)
def test_a_signature_verifies_content_whose_digest_it_covers(
    signed: SignedHead,
    fields: tuple[tuple[bytes, bytes], ...],
    body: Body,
    expected: ResultChecks,
) -> None:
    digests = ContentDigests(head(*fields, body=body), signed)
    digests.feed(b"abc")
    assert digests.checks == expected


def test_a_signature_that_fails_is_named_beside_the_digests() -> None:
    failed = SignedHead(failures=("signature mismatch",))
    digests = ContentDigests(head(NAMED), failed)
    digests.feed(b"abc")
    assert digests.checks == ResultChecks(("signature mismatch",), is_checked=True)
    assert digests.may_hold


def test_signatures_of_one_head_add_up() -> None:
    failed = SignedHead(failures=("signature mismatch",))
    assert VALID.with_other(COVERING) == COVERING
    both = SignedHead(("signature mismatch",), is_valid=True, covers_digest=True)
    assert failed.with_other(COVERING) == both
    digests = ContentDigests(head(NAMED), both)
    digests.feed(b"abc")
    assert digests.checks.failures == ("signature mismatch",)
