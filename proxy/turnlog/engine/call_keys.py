"""Keys of a call by its rules: the one that names its effect, and the one that its server honours.

The latter is an idempotency key (draft-ietf-httpapi-idempotency-key-header): the caller's own, else
one of turnlog's.
"""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Final
from uuid import UUID, uuid5

from msgspec import structs

from turnlog.core.kinds import Effect
from turnlog.engine.request_identity import KEY, Request
from turnlog.record.attempt import Ask
from turnlog.rules.effects import effect_key

SessionDigest = Callable[[bytes | None, bytes], bytes]
"""HMAC-SHA-256 as the digests of a session are keyed."""
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]{1,1024}")
"""What a string of a structured field may hold (RFC 9651, section 3.3.3), of moderate size."""


def identified(
    ask: Ask,
    request: Request,
    arguments: Callable[[], object],
    keyed: SessionDigest,
) -> Ask:
    """Return a call with its effect link and the key for its server, where rules want them.

    `arguments` returns the input for rules.
    """
    if ask.policy.idempotency is None and not ask.policy.effect_key:
        return ask
    effect = _effect_link(ask, arguments, keyed)
    return structs.replace(ask, key_sent=_key_sent(ask, request), effect_link=effect)


def _key_sent(ask: Ask, request: Request) -> str:
    """Return the field's value for all attempts of a call; empty where the server gets none."""
    if ask.policy.idempotency is None or request.is_piped or request.route.target.is_command:
        return ""
    if KEY in request.fields:
        return request.key
    if ask.effect is Effect.READ:  # it needs none
        return ""
    return _quoted(ask.key) if ask.key else f'"{_own(ask.call, ask.leg)}"'


def _effect_link(ask: Ask, arguments: Callable[[], object], keyed: SessionDigest) -> bytes:
    """Return the keyed digest of the effect that a call has, as a rule names it; empty for none."""
    wanted = ask.policy.effect_key
    if not wanted or ask.effect is Effect.READ or not (ask.complete and ask.says_all):
        return b""
    effect = effect_key(wanted, arguments(), size=len(ask.arguments))
    if not effect:
        return b""
    # Values that are left out of the tool's name are in the target.
    tool = f"{ask.tool}\0{ask.target}" if ask.shown else ask.tool
    name = f"effect\0{ask.server}\0{tool}\0".encode("utf-8", "surrogatepass")
    return keyed(ask.session.id, name + effect)


def _own(call: bytes, leg: int) -> UUID:
    """Return a key of turnlog's own; each leg has another, because its content differs."""
    return uuid5(UUID(bytes=call), str(leg)) if leg else UUID(bytes=call)


def _quoted(key: str) -> str:
    """Return a key as a string of a structured field; its digest if the field cannot hold it."""
    if not _PRINTABLE.fullmatch(key):
        key = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
