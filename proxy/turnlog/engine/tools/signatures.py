"""Verifies what servers sign: HTTP messages (RFC 9421), and results by a JWS in their `_meta` (RFC 7515).

Needs the extra `turnlog[signatures]`; so it is imported only where a configuration names keys.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final, cast

import http_sf
import jwt
import msgspec
from msgspec import Struct

from turnlog.core.canon import SHA256, canonical
from turnlog.settings.signatures import JwsSettings, SignatureSettings, read_key
from turnlog.transport.message_heads import SentRequest
from turnlog.wire.http.content_digest import UNSIGNED, SignedHead
from turnlog.wire.http.head import CONTENT_DIGEST, Headers, fields
from turnlog.wire.json_text import members, text_of
from turnlog.wire.message import NO_CHECKS, ResultChecks

# Its types are incomplete, and importing it this way needs none.
_rfc9421: Final[Any] = import_module("http_message_signatures")
_algorithms: Final[Any] = import_module("http_message_signatures.algorithms")
LARGEST: Final = 256 << 10
"""bytes: the JWS of a larger result is not verified, since its canonical form would hold up other calls."""
_ALGORITHMS: Final = {
    each.algorithm_id: each
    for each in (
        _algorithms.ED25519,
        _algorithms.ECDSA_P256_SHA256,
        _algorithms.ECDSA_P384_SHA384,
        _algorithms.RSA_PSS_SHA512,
        _algorithms.RSA_V1_5_SHA256,
        _algorithms.HMAC_SHA256,
    )
}
_FAILED: Final = SignedHead(failures=("signature mismatch",))
_VERIFIED: Final = ResultChecks(is_checked=True, is_verified=True)
_JWS_FAILED: Final = ResultChecks(("jws mismatch",))
_DIGEST: Final = CONTENT_DIGEST.decode()


class _SignedResponse(Struct, frozen=True):
    """An answer with one signature, in the form of `http_message_signatures`."""

    status_code: int
    headers: "_Fields"
    request: SentRequest


class _Fields:
    """The fields of an answer, of which each may stand there several times."""

    def __init__(self, raw: Headers, signature: Mapping[str, str]) -> None:
        self._raw = raw
        self._signature = signature

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield names and values; the one signature in place of all."""
        for name, value in self._raw:
            text = name.decode("latin-1")
            if text.lower() not in self._signature:
                yield text, value.decode("latin-1")
        yield from self._signature.items()


class HttpSignatures:
    """Verifies the signatures of a server's answers with the configured keys."""

    def __init__(self, settings: SignatureSettings) -> None:
        """Read the keys. Raises `OSError` and `ValueError`."""
        keys = {key.id: (_ALGORITHMS[key.alg], read_key(key)) for key in settings.keys}
        self._verifiers = {
            name: _rfc9421.HTTPMessageVerifier(
                signature_algorithm=algorithm,
                key_resolver=_rfc9421.MappingKeyResolver(public_keys={name: key}, private_keys={}),
            )
            for name, (algorithm, key) in keys.items()
        }
        self._require = settings.require
        self._max_age = None if settings.max_age is None else timedelta(seconds=settings.max_age)

    def check(
        self, status: int, raw: Headers, request: SentRequest, *, has_content: bool
    ) -> SignedHead:
        """Return what the signatures in a head say; those by other keys are ignored."""
        inputs, values = _dictionary(raw, b"signature-input"), _dictionary(raw, b"signature")
        found = UNSIGNED
        for label in inputs.keys() & values.keys():
            verifier = self._verifiers.get(_key_of(inputs[label]))
            if verifier is None:
                continue
            signature = {
                "signature-input": http_sf.ser({label: inputs[label]}),
                "signature": http_sf.ser({label: values[label]}),
            }
            message = _SignedResponse(status, _Fields(raw, signature), request)
            found = found.with_other(self._verified(verifier, message, has_content=has_content))
        return found

    def _verified(
        self, verifier: Any, message: _SignedResponse, *, has_content: bool
    ) -> SignedHead:
        try:
            (result,) = verifier.verify(message, max_age=self._max_age)
        except _rfc9421.HTTPMessageSignaturesException:
            return _FAILED
        # Component identifiers are serialized: `"content-digest"`, `"@status"`.
        covered = {each.partition('"')[2].partition('"')[0] for each in result.covered_components}
        required = [each for each in self._require if has_content or each != _DIGEST]
        missing = [each for each in required if each not in covered]
        if missing:
            return SignedHead(failures=(f"signature does not cover {missing[0]}",))
        return SignedHead(is_valid=True, covers_digest=_DIGEST in covered)


def _dictionary(raw: Headers, name: bytes) -> dict[str, Any]:
    values = fields(raw, name)
    try:
        return cast("dict[str, Any]", http_sf.parse(b", ".join(values), tltype="dictionary"))
    except http_sf.StructuredFieldError:
        return {}


def _key_of(signature_input: object) -> str:
    """Return the `keyid` of a signature; empty if it has none."""
    match signature_input:
        case (list(), {"keyid": str(name)}):
            return name
        case _:
            return ""


class ResultSignatures:
    """Verifies the JWS that a server puts into the `_meta` of its results.

    It has a detached payload (RFC 7515, appendix F): the result in canonical form (RFC 8785) without
    that member, and without a `_meta` that holds nothing else.
    """

    def __init__(self, settings: JwsSettings) -> None:
        """Read the keys. Raises `OSError` and `ValueError`."""
        self._meta = settings.meta
        self._keys = {key.id: (key.alg.value, read_key(key)) for key in settings.keys}
        self._jws = jwt.PyJWS(algorithms=[key.alg.value for key in settings.keys])

    def check(self, result: bytes) -> ResultChecks:
        """Return what the JWS of a result says; `NO_CHECKS` for none, and for one by another key."""
        raw = members(members(result).get("_meta", b"")).get(self._meta)
        if raw is None or len(result) > LARGEST:
            return NO_CHECKS
        payload = self._payload(result)
        if payload is None:
            return NO_CHECKS
        head, dots, signature = text_of(bytes(raw)).partition("..")
        if not dots:
            return _JWS_FAILED
        token = f"{head}.{urlsafe_b64encode(payload).decode().rstrip('=')}.{signature}"
        keys = self._keys_for(token)
        if keys is None:
            return _JWS_FAILED
        return self._tried(token, keys)

    def _tried(self, token: str, keys: list[tuple[str, Any]]) -> ResultChecks:
        for algorithm, key in keys:
            try:
                self._jws.decode(token, key, algorithms=[algorithm])
            except jwt.PyJWTError:
                continue
            return _VERIFIED
        return _JWS_FAILED if keys else NO_CHECKS

    def _keys_for(self, token: str) -> list[tuple[str, Any]] | None:
        """Return the keys that may have made a JWS; `None` if it is none."""
        try:
            name = self._jws.get_unverified_header(token).get("kid")
        except jwt.PyJWTError:
            return None
        if name is None:
            return list(self._keys.values())
        return [self._keys[name]] if name in self._keys else []

    def _payload(self, result: bytes) -> bytes | None:
        """Return the canonical form that is signed; `None` if there is none."""
        if canonical(result)[0] != SHA256:
            return None  # for example a duplicate key
        value = msgspec.json.decode(result)
        del value["_meta"][self._meta]
        if not value["_meta"]:
            del value["_meta"]
        scheme, form = canonical(msgspec.json.encode(value))
        return form if scheme == SHA256 else None
