"""Calls that a server asked to be made again, found when the agent does so (semantics, sections 2, 13).

To follow a redirect is no call of its own: the agent makes the same call at another place of the same
server. Only 307 and 308 ask for the same request again. Nor is it to repeat a call that the server
refused until a person has opened a URL (-32042, MCP 2025-11-25).
"""

from collections import OrderedDict
from collections.abc import Hashable
from hashlib import sha256
from typing import Final

from msgspec import Struct

from turnlog.core.canon import canonical
from turnlog.core.kinds import Executed, Rung
from turnlog.wire.http import Headers, fields

from .attempt import Ask, Attempt, onward
from .routes import Route

_SECOND: Final = 1_000_000_000
FOLLOWED: Final = 60 * _SECOND
"""ns within which a redirect is followed, or never."""
CONSENTED: Final = 15 * 60 * _SECOND
"""ns within which a call is repeated that waited for a person."""
_MOST: Final = 1024
_OF_ONE_TARGET: Final = frozenset({Rung.TRANSPORT, Rung.IMPLICIT})


class Lead(Struct, frozen=True):
    """Where an answer leads."""

    resource: str | None = None
    """Path and query at its own server; `None` for nowhere, or another origin."""
    elsewhere: bool = False
    """Whether it leads to another origin, or to what cannot be read."""


def lead(route: Route, headers: Headers, host: str) -> Lead:
    """Return where the Location of an answer leads; `host` is the agent's Host."""
    found = fields(headers, b"location")
    if not found:
        return Lead()
    resources = {route.own_resource(one.decode("utf-8", "surrogateescape"), host) for one in found}
    if len(resources) != 1 or None in resources:
        return Lead(elsewhere=True)
    resource = resources.pop()
    return Lead(resource.partition("#")[0] if resource is not None else None)


def call_key(ask: Ask, id_key: str) -> Hashable:
    """Return what a `tools/call` has in common with the one that follows its redirect.

    `None` where its input is not known whole. Where it is repeated under another id, `id_key` is empty.
    """
    if not (ask.complete and ask.says_all):
        return None
    asked = ask.canonical[1] if ask.canonical is not None else canonical(ask.arguments)[1]
    return (_caller(ask), ask.server, ask.tool, id_key, sha256(asked).digest())


def plain_key(ask: Ask, resource: str, body: bytes) -> Hashable:
    """Return the same for a plain HTTP tool, whose request goes to `resource`."""
    return (_caller(ask), ask.server, ask.method, resource, sha256(body).digest())


def _caller(ask: Ask) -> Hashable:
    """Return who calls: the session, but where that is another one at the place that is led to."""
    if ask.session.rung in _OF_ONE_TARGET:
        return (ask.principal, ask.client)
    return ask.session.candidate


class Redirected:
    """Attempts whose server asked for them again, the newest at the end."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, tuple[Attempt, int]] = OrderedDict()
        """Each with the end of its time."""

    def __bool__(self) -> bool:
        """Tell whether any waits to be followed: mostly none does."""
        return bool(self._waiting)

    def note(self, key: Hashable, attempt: Attempt, until: int) -> None:
        """Remember an attempt by what the next request has in common; `until` is monotonic, in ns."""
        if key is None:
            return
        self._waiting[key] = (attempt, until)
        self._waiting.move_to_end(key)
        if len(self._waiting) > _MOST:
            self._waiting.popitem(last=False)

    def followed(self, ask: Ask, now: int, *keys: Hashable) -> Ask:
        """Return what a call asks: another attempt of the one that its server asked for, if it is."""
        key = next((key for key in keys if key in self._waiting), None)
        attempt, until = self._waiting.pop(key, (None, 0))
        if attempt is None or now > until or attempt.overall is None:
            return ask
        if attempt.overall.executed is not Executed.NO:
            return ask  # a rule has said otherwise of it
        return onward(ask, attempt)
