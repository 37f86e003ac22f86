"""Calls that a server asked to be made again, found when the agent does so.

To follow a redirect is no call of its own: the agent makes the same call at another place of the same
server. Only 307 and 308 ask for the same request again. Nor is it to repeat a call that the server
refused until a person has opened a URL (-32042, MCP 2025-11-25).
"""

from collections.abc import Hashable
from hashlib import sha256
from typing import Final

from msgspec import Struct, structs

from turnlog.core.bounded_dict import BoundedDict
from turnlog.core.canon import canonical
from turnlog.core.classify import EarlierAttempts
from turnlog.core.kinds import Executed, Rung
from turnlog.engine.call_registry import Scope
from turnlog.record.attempt import Ask, Attempt
from turnlog.record.recorder import OFF_LOOP
from turnlog.store.base import SessionRef
from turnlog.transport.routes import Route
from turnlog.wire.http.head import Headers, fields

_SECOND: Final = 1_000_000_000
FOLLOWED: Final = 60 * _SECOND
"""ns within which a redirect is followed, or never."""
CONSENTED: Final = 15 * 60 * _SECOND
"""ns within which a call is repeated that waited for a person."""
_MOST: Final = 1024
_OF_ONE_TARGET: Final = frozenset({Rung.TRANSPORT, Rung.IMPLICIT})


class RedirectTarget(Struct, frozen=True):
    """The target of a redirect."""

    resource: str | None = None
    """Path and query at its own server; `None` for nowhere, or another origin."""
    elsewhere: bool = False
    """Whether it leads to another origin, or to what cannot be read."""


def lead(route: Route, headers: Headers, host: str) -> RedirectTarget:
    """Return where the Location of an answer leads; `host` is the agent's Host."""
    found = fields(headers, b"location")
    if not found:
        return RedirectTarget()
    resources = {route.own_resource(one.decode("utf-8", "surrogateescape"), host) for one in found}
    if len(resources) != 1 or None in resources:
        return RedirectTarget(elsewhere=True)
    resource = resources.pop()
    return RedirectTarget(resource.partition("#")[0] if resource is not None else None)


class NextAttempt(Struct, frozen=True, kw_only=True):
    """The identity and history that the next attempt of a call inherits; the input is not held for it."""

    session: SessionRef
    call: bytes
    leg: int
    number: int
    past: EarlierAttempts | None


def call_key(ask: Ask, id_key: str, asker: Scope | None = None) -> Hashable:
    """Return what a `tools/call` has in common with the one that follows its redirect.

    `None` where its input is not known whole. `asker` is the protocol session, or the connection.
    Where the call is repeated under another id, and maybe on another connection, `id_key` is empty
    and `asker` left out.
    """
    if not (ask.complete and ask.says_all):
        return None
    asked = ask.arguments
    if len(asked) <= OFF_LOOP:  # of what is larger the same bytes count
        asked = (ask.canonical or canonical(asked))[1]
    return (_caller(ask, asker), ask.server, ask.tool, id_key, sha256(asked).digest())


def plain_key(ask: Ask, resource: str, body: bytes, asker: Scope) -> Hashable:
    """Return the same for a plain HTTP tool, whose request goes to `resource`."""
    return (_caller(ask, asker), ask.server, ask.method, resource, sha256(body).digest())


def _caller(ask: Ask, asker: Scope | None) -> Hashable:
    """Return who calls: the session, but where that is another one at the place that is led to."""
    if ask.session.rung not in _OF_ONE_TARGET:
        return ask.session.candidate
    # Clients without a name have nothing else that tells them apart.
    return (asker, ask.principal, ask.client)


class Redirects:
    """Calls whose server asked for them again, the newest at the end."""

    def __init__(self) -> None:
        self.waiting: BoundedDict[Hashable, tuple[NextAttempt, int]] = BoundedDict(_MOST)
        """Redirected calls not followed yet, usually none; each with its deadline."""

    def note(self, key: Hashable, attempt: Attempt, until: int) -> None:
        """Remember an attempt that has ended, by what the next request has in common with it.

        `until` is monotonic, in ns. Where it may have run, the next request is another call.
        """
        overall, ask = attempt.overall, attempt.ask
        if key is None or overall is None or overall.executed is not Executed.NO:
            return
        step = NextAttempt(
            session=ask.session,
            call=ask.call,
            leg=ask.leg,
            number=ask.number + 1,
            past=attempt.past,
        )
        self.waiting[key] = (step, until)

    def followed(self, ask: Ask, now: int, *keys: Hashable) -> Ask:
        """Return what a call asks: the next attempt of the one that its server asked for, if it is."""
        while self.waiting and next(iter(self.waiting.values()))[1] < now:
            self.waiting.popitem(last=False)
        key = next((key for key in keys if key in self.waiting), None)
        step, until = self.waiting.pop(key, (None, 0))
        if step is None or now > until:
            return ask
        return structs.replace(ask, **structs.asdict(step))
