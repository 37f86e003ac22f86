"""The session that a call belongs to, by the first way of naming it that applies.

The caller gathers `CallerEvidence` and passes the vendor table of `rules/identity.yaml`. Evidence
comes from outside: a value that cannot be a name is skipped, not an error.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, assert_never, cast

import msgspec
from msgspec import Meta, Struct

from .kinds import Rung, TurnSource

NAME_BYTES = 200  # a longer name is replaced by its hash
LONGEST_NAME = 4096  # bytes; a longer text is not a name
_META_BYTES = 64 * 1024  # a longer value in `_meta` is not parsed

KeyPath = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, max_length=8)
]
"""Keys down into nested objects; an object may also be JSON in a string."""


class KeyLocation(StrEnum):
    """The place of a vendor's keys."""

    META = "meta"
    HEADER = "header"
    ENVIRONMENT = "environment"
    """Environment of a wrapped command: its pipes carry one conversation."""


class Vendor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys by which a client names its conversations, turns and calls; the first present key wins."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,31}$")]
    where: KeyLocation = KeyLocation.META
    session: tuple[KeyPath, ...] = ()
    turn: tuple[KeyPath, ...] = ()
    call: tuple[KeyPath, ...] = ()


class VendorTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `rules/identity.yaml`; the first vendor that names a session wins."""

    identity: tuple[Vendor, ...]


class Confidence(StrEnum):
    """How certain it is that a session is one conversation of one agent."""

    GIVEN = "given"
    OBSERVED = "observed"
    TRANSPORT = "transport"
    INFERRED = "inferred"


class CallerEvidence(Struct, frozen=True, kw_only=True, gc=False):
    """Signs of the caller of a call; everything but the connection may be absent."""

    path_session: str = ""
    """`NAME` of `/s/NAME/...`, or of `wrap --session`."""
    header_session: str = ""
    header_turn: str = ""
    meta: Mapping[str, bytes] = {}
    """`params._meta`, each value as raw JSON."""
    headers: Mapping[str, str] = {}
    """The `vendor_headers` of the request, names in lower case."""
    environment: Mapping[str, str] = {}
    """The `vendor_variables` of a wrapped command's process."""
    mcp_session_id: str = ""
    """Keyed digest of `Mcp-Session-Id`: the id itself is a credential."""
    upstream: str = ""
    target: str = ""
    """Keyed digest of the target: upstreams of different projects may have one name."""
    credential: str = ""
    """Keyed digest of the caller's credentials."""
    client_name: str = ""
    connection: int | str = 0
    """Number of the connection, or name of a wrapped command's process."""


class SessionIdentity(Struct, frozen=True, kw_only=True):
    """The session and turn of a call, and what named them."""

    rung: Rung
    name: str
    """Name of the session on its rung; empty on the implicit one."""
    turn_label: str
    turn_source: TurnSource
    why: str
    """What named the session, such as `header Turnlog-Session`."""
    confidence: Confidence
    client: str
    """The vendor's name, else the client's own."""
    implicit_key: str
    """Calls with the same key, and no long pause between them, are one implicit session."""
    key: str = ""
    """The key of the session: its alias, or the implicit key."""
    kin: str = ""
    """The same for all agents of one credential and client name; empty if there is neither."""


class _Found(Struct, frozen=True):
    rung: Rung
    name: str
    why: str
    confidence: Confidence
    vendor: str = ""


def identify(evidence: CallerEvidence, table: tuple[Vendor, ...]) -> SessionIdentity:
    """Return the session of a call by the first rung that names one.

    The rungs are explicit, vendor, environment, transport and implicit.
    """
    found = _session(evidence, table)
    turn, source, turn_vendor = _turn(evidence, table)
    _, call_vendor = _first(evidence, table, "call")
    return SessionIdentity(
        rung=found.rung,
        name=found.name,
        turn_label=turn,
        turn_source=source,
        why=found.why,
        confidence=found.confidence,
        client=found.vendor or turn_vendor or call_vendor or _name(evidence.client_name),
        implicit_key=_implicit_key(evidence),
    )


def session_name(value: str) -> str:
    """Return the name under which an explicit session is stored: a hash for a long one."""
    identity = identify(CallerEvidence(path_session=value), ())
    if identity.rung is not Rung.EXPLICIT:
        raise ValueError(f"{value!r} can name no session, write one line of text")
    return identity.name


def vendor_headers(table: tuple[Vendor, ...]) -> frozenset[str]:
    """Return the names, in lower case, of the headers for `CallerEvidence.headers`."""
    return frozenset(name.lower() for name in _first_keys(table, KeyLocation.HEADER))


def vendor_variables(table: tuple[Vendor, ...]) -> frozenset[str]:
    """Return the names of the variables for `CallerEvidence.environment`."""
    return frozenset(_first_keys(table, KeyLocation.ENVIRONMENT))


def _first_keys(table: tuple[Vendor, ...], where: KeyLocation) -> Iterator[str]:
    for vendor in table:
        if vendor.where is where:
            yield from (keys[0] for keys in (*vendor.session, *vendor.turn, *vendor.call))


def _session(evidence: CallerEvidence, table: tuple[Vendor, ...]) -> _Found:
    return (
        _explicit(evidence)
        or _vendor(evidence, table, Rung.VENDOR)
        or _vendor(evidence, table, Rung.ENVIRONMENT)
        or _transport(evidence)
        or _Found(Rung.IMPLICIT, "", _implicit_why(evidence), Confidence.INFERRED)
    )


def _explicit(evidence: CallerEvidence) -> _Found | None:
    given = (
        (_name(evidence.path_session), "path"),
        (_name(evidence.header_session), "header Turnlog-Session"),
        (_meta_name(evidence.meta, ("turnlog/session",)), "_meta turnlog/session"),
    )
    named = (_Found(Rung.EXPLICIT, name, why, Confidence.GIVEN) for name, why in given if name)
    return next(named, None)


def _vendor(evidence: CallerEvidence, table: tuple[Vendor, ...], rung: Rung) -> _Found | None:
    for vendor in table:
        if (vendor.where is KeyLocation.ENVIRONMENT) is not (rung is Rung.ENVIRONMENT):
            continue
        for keys in vendor.session:
            if name := _lookup(evidence, vendor.where, keys):
                why = f"{vendor.where} {'.'.join(keys)}"
                found = f"{vendor.name}/{name}"
                return _Found(rung, found, why, Confidence.OBSERVED, vendor.name)
    return None


def _transport(evidence: CallerEvidence) -> _Found | None:
    if not evidence.mcp_session_id:
        return None
    # Two servers may issue the same id.
    name = _name(f"{evidence.upstream}/{evidence.mcp_session_id}")
    return _Found(Rung.TRANSPORT, name, "header Mcp-Session-Id", Confidence.TRANSPORT)


def _turn(evidence: CallerEvidence, table: tuple[Vendor, ...]) -> tuple[str, TurnSource, str]:
    explicit = _name(evidence.header_turn) or _meta_name(evidence.meta, ("turnlog/turn",))
    if explicit:
        return explicit, TurnSource.EXPLICIT, ""
    label, vendor = _first(evidence, table, "turn")
    return label, TurnSource.VENDOR if label else TurnSource.GAP, vendor


def _first(evidence: CallerEvidence, table: tuple[Vendor, ...], what: str) -> tuple[str, str]:
    """Return the first name of a turn or call (`what`), and the vendor it comes from."""
    for vendor in table:
        for keys in vendor.turn if what == "turn" else vendor.call:
            if name := _lookup(evidence, vendor.where, keys):
                return name, vendor.name
    return "", ""


def _lookup(evidence: CallerEvidence, where: KeyLocation, keys: tuple[str, ...]) -> str:
    match where:
        case KeyLocation.META:
            return _meta_name(evidence.meta, keys)
        case KeyLocation.HEADER:
            return _dig(evidence.headers.get(keys[0].lower(), ""), keys[1:])
        case KeyLocation.ENVIRONMENT:
            return _dig(evidence.environment.get(keys[0], ""), keys[1:])
        case _:
            assert_never(where)


def _meta_name(meta: Mapping[str, bytes], keys: tuple[str, ...]) -> str:
    raw = meta.get(keys[0])
    return "" if raw is None else _dig(_decoded(raw), keys[1:])


def _dig(value: object, keys: tuple[str, ...]) -> str:
    for key in keys:
        if isinstance(value, str):
            value = _decoded(value)
        if not isinstance(value, dict):
            return ""
        value = cast("dict[str, object]", value).get(key)  # JSON has no other keys
    return _name(value)


def _decoded(raw: bytes | str) -> object:
    if len(raw) > _META_BYTES:
        return None
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return None


def _name(value: object) -> str:
    """Return `value` as a name, one printable line of bounded length; empty if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return ""
    name = value.strip()
    # Control characters, lone surrogates and line separators are not printable.
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        return ""
    data = name.encode()
    if len(data) <= NAME_BYTES:
        return name
    return f"sha256:{sha256(data).hexdigest()}" if len(data) <= LONGEST_NAME else ""


def _implicit_key(evidence: CallerEvidence) -> str:
    """Return target, credential and client name; the connection if the latter are unknown."""
    # Clients open several connections, some one for each call: a connection separates agents only if
    # nothing else does. A wrapped command has one client, which names itself late or never.
    if isinstance(evidence.connection, str):
        return f"\n\n{evidence.connection}"
    client = _name(evidence.client_name)
    if evidence.credential or client:
        return f"{evidence.target}\n{evidence.credential}\n{client}"
    return f"{evidence.target}\n\n\n{evidence.connection}"


def _implicit_why(evidence: CallerEvidence) -> str:
    if isinstance(evidence.connection, str):
        return "process"
    known = {"credential": evidence.credential, "client name": evidence.client_name}
    return " and ".join(word for word, value in known.items() if value) or "connection"
