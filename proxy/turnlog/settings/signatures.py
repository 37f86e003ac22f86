"""The keys by which results of a server are verified: HTTP message signatures (RFC 9421), and a JWS (RFC 7515)."""

from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, structs

from turnlog.core.text.units import Duration, reads

EXTRA: Final = "install it with `pip install 'turnlog[signatures]'`"
LARGEST: Final = 64 << 10
"""bytes of a key file."""
_PACKAGES: Final = ("http_message_signatures", "jwt", "cryptography")
_SHORTEST_SECRETS: Final = {"HS384": 48, "HS512": 64}
_SHORTEST_SECRET: Final = 32
"""bytes of a shared secret with SHA-256: as many as the hash has (RFC 7518, section 3.2)."""
_SHORTEST_RSA: Final = 2048
"""bits (RFC 7518, section 3.3)."""


class SignatureAlgorithm(StrEnum):
    """The algorithms of HTTP message signatures (RFC 9421, section 6.2)."""

    ED25519 = "ed25519"
    ECDSA_P256_SHA256 = "ecdsa-p256-sha256"
    ECDSA_P384_SHA384 = "ecdsa-p384-sha384"
    RSA_PSS_SHA512 = "rsa-pss-sha512"
    RSA_V1_5_SHA256 = "rsa-v1_5-sha256"
    HMAC_SHA256 = "hmac-sha256"


class JwsAlgorithm(StrEnum):
    """The algorithms of a JWS that are accepted (RFC 7518, section 3.1; RFC 8037)."""

    EDDSA = "EdDSA"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    HS256 = "HS256"
    HS384 = "HS384"
    HS512 = "HS512"


def _needs_extra(value: object) -> object:
    """Return a value as it is. Raises `ValueError` where the extra that uses it is not installed."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ValueError(f"signatures need the package {missing[0]!r}, {EXTRA}")
    return value


def needs_cryptography(value: object) -> object:
    """Return a value as it is. Raises `ValueError` if it is true and the extra that it needs is missing."""
    if value is True and find_spec("cryptography") is None:
        raise ValueError(f"'pin_tls' needs the package 'cryptography', {EXTRA}")
    return value


def _component(value: object) -> str:
    """Parse the name of a component that a signature has to cover."""
    if isinstance(value, str) and value == value.lower() and value.isascii() and value.strip():
        return value
    raise ValueError(f"{str(value)!r} names no component, write one like content-digest or @status")


class _Key(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The name of a key and its file."""

    id: Annotated[str, Meta(min_length=1)]
    """The `keyid` (RFC 9421) or `kid` (RFC 7515) of signatures made with it."""
    file: Annotated[str, Meta(min_length=1)]
    """A public key as PEM; of a shared secret the file that holds it."""


class SignatureKey(_Key, frozen=True, kw_only=True):
    """A key of HTTP message signatures."""

    alg: Annotated[SignatureAlgorithm, reads(_needs_extra)]


class JwsKey(_Key, frozen=True, kw_only=True):
    """A key of a JWS."""

    alg: Annotated[JwsAlgorithm, reads(_needs_extra)]


class SignatureSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which HTTP message signatures of a server's answers are verified."""

    keys: Annotated[tuple[SignatureKey, ...], Meta(min_length=1)]
    require: tuple[Annotated[str, reads(_component)], ...] = ("content-digest",)
    """Components that each signature has to cover."""
    max_age: Duration | None = None
    """s after which a signature is too old; `None` for never."""


class JwsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which JWS in the results of a server is verified."""

    meta: Annotated[str, Meta(min_length=1)]
    """The member of a result's `_meta` that holds it."""
    keys: Annotated[tuple[JwsKey, ...], Meta(min_length=1)]


def read_key(key: SignatureKey | JwsKey) -> Any:
    """Return what verifies signatures: a public key, or the bytes of a shared secret.

    Raises `OSError`, and `ValueError` if the file holds no key for the algorithm.
    """
    with Path(key.file).open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"larger than {LARGEST} bytes")
    if key.alg.lower().startswith("h"):
        return _secret(content, _SHORTEST_SECRETS.get(key.alg, _SHORTEST_SECRET))
    return _public_key(key.alg, content)


def _secret(content: bytes, shortest: int) -> bytes:
    secret = content.removesuffix(b"\n").removesuffix(b"\r")
    if len(secret) < shortest:
        raise ValueError(f"a shared secret of less than {shortest} bytes")
    return secret


def _public_key(alg: str, content: bytes) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("no public key in PEM form") from None
    curves = {
        SignatureAlgorithm.ECDSA_P256_SHA256: "secp256r1",
        SignatureAlgorithm.ECDSA_P384_SHA384: "secp384r1",
        JwsAlgorithm.ES256: "secp256r1",
        JwsAlgorithm.ES384: "secp384r1",
        JwsAlgorithm.ES512: "secp521r1",
    }
    curve = curves.get(alg)  # type: ignore[call-overload]  # members are texts
    if curve is not None:
        fits = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == curve
    elif alg in (SignatureAlgorithm.ED25519, JwsAlgorithm.EDDSA):
        fits = isinstance(key, ed25519.Ed25519PublicKey)
    else:
        fits = isinstance(key, rsa.RSAPublicKey) and key.key_size >= _SHORTEST_RSA
    if not fits:
        raise ValueError(f"a key of another kind or size than {str(alg)!r} needs")
    return key


def with_absolute_files(
    keys: Sequence[SignatureKey | JwsKey], beside: Path
) -> list[SignatureKey | JwsKey]:
    """Return keys whose files are named by absolute paths; relative ones begin in the folder `beside`."""
    return [
        structs.replace(key, file=str((beside / Path(key.file).expanduser()).absolute()))
        for key in keys
    ]
