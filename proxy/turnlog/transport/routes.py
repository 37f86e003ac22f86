"""Which upstream a path means, and where there. Pure; one dictionary look-up per request."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from turnlog.packs.lock import COMMAND
from turnlog.settings.http_proxies import HttpProxy
from turnlog.settings.model import Transport
from turnlog.settings.upstream_url import UrlMask
from turnlog.wire.http.reference import origin_of, resolved

OWN = "turnlog"
"""First segment of everything that is turnlog's own."""
HEALTH = f"/{OWN}/health"
READY = f"/{OWN}/ready"
API = f"/{OWN}/api"
AGENT_TOOLS = f"/{OWN}/mcp"
SESSION = "s"
"""First segment of paths that name a session: `/s/{session}/{name}...`."""


_ENDPOINTS: Final = 4096
"""Paths remembered at most; agents may post to any."""
_PATH: Final = re.compile(r"[^?#]*")
_AUTHORITY: Final = re.compile(r"[^/?#]*")


class Target(Struct, frozen=True, kw_only=True):
    """An upstream as routing knows it."""

    name: str
    origin: str
    """`scheme://host:port`, without a path."""
    path: str
    """Path of the configured URL, at least `/`."""
    query: str
    authority: bytes
    """What the upstream reads in `Host`."""
    host: str
    port: int
    place: tuple[str, ...] = ()
    """What distinguishes it from every other upstream, whatever its name: its origin; of a command
    `command:`, program, arguments and working directory."""
    proxy: HttpProxy | None = None
    """The proxy that leads there."""
    ca: str = ""
    """File of the certificates that its own is checked against; empty for the system's."""
    pins_key: bool = False
    """Whether the key of its certificate is part of its identity."""
    mask: UrlMask | None = None
    """What is shown of path and query; `None` where they are shown as they are."""
    transport: Transport = Transport.AUTO

    @property
    def own_origin(self) -> str:
        """The origin in one spelling."""
        scheme, _, authority = self.origin.partition("://")
        return origin_of(scheme, authority)

    @property
    def is_encrypted(self) -> bool:
        """Whether it is reached over TLS."""
        return self.origin.lower().startswith("https:")

    @property
    def is_plainly_proxied(self) -> bool:
        """Whether a proxy reads what goes there: it leads to a server without TLS."""
        return self.proxy is not None and not self.is_encrypted

    @property
    def is_command(self) -> bool:
        """Whether it is started by a command, and not reached over HTTP."""
        return not self.host


class Route(Struct, frozen=True, dict=True):
    """The route of one request."""

    target: Target
    path: str
    """The path as the upstream sees it."""
    query: str
    """`?` and the query as it came, or nothing."""
    session: str
    """Empty where the path names none."""
    prefix: str
    """What stands before the server's own paths in the agent's; empty where nothing does."""
    is_named: bool = False
    """Whether the agent's path names the upstream; else it is that of the only one."""

    @cached_property
    def resource(self) -> str:
        """The request target as the upstream sees it."""
        return self.path + self.query

    @property
    def given_query(self) -> str:
        """The query that the agent gave, without `?` and what the configured URL has."""
        configured, query = self.target.query, self.query[1:]
        if configured and self.path == self.target.path:
            return query.removeprefix(configured).removeprefix("&")
        return query

    @property
    def text(self) -> str:
        """The path as it is matched and recorded: bytes that are no text are replaced."""
        return self.path if self.path.isascii() else _text(self.path)

    def own_resource(self, reference: str, host: str) -> str | None:
        """Return path, query and fragment of a reference in the answer, as the upstream knows them.

        `None` where it leads to another origin. `host` is the agent's Host: the upstream has it from
        X-Forwarded-Host, and may take it for its own.
        """
        own = self.target.own_origin
        found = resolved(reference, self.resource, frozenset({own}))
        if found is not None or not host:
            return found
        found = resolved(reference, self.resource, _origins_of(host))
        # A reference that already has the prefix was made for the agent's view of the upstream.
        knows = found is not None and self.prefix and _is_within(_path(found), self.prefix)
        return None if knows else found

    def led_back(self, reference: str, host: str) -> str | None:
        """Return a reference in the answer as the agent has to know it; `None` where it stays as it is."""
        found = self.own_resource(reference, host)
        if found is None:
            return None
        back = self.back(found)
        if self.prefix or back != found:
            return back
        # Without a prefix the agent's paths are the upstream's: what names no origin, or the agent's
        # own Host, leads there as it is.
        own = _origins_of(host) if host else frozenset[str]()
        return None if resolved(reference, self.resource, own) is not None else back

    def back(self, resource: str) -> str:
        """Return the agent's path, with query and fragment, of a resource of the upstream.

        It is one from which `Routes.find` comes to that resource, in the same session.
        """
        if self.is_named:
            return self.prefix + resource
        path, target = _path(resource), self.target
        is_taken = _split(path)[0] in {OWN, SESSION, target.name} or path.startswith("//")
        if path == target.path and target.query and not is_taken:
            plain = _unconfigured(resource, f"{path}?{target.query}")
            return (
                f"{self.prefix}/{target.name}{resource}" if plain is None else self.prefix + plain
            )
        return f"{self.prefix}/{target.name}{resource}" if is_taken else self.prefix + resource


def _origins_of(host: str) -> frozenset[str]:
    """Return the origins that a Host may stand for."""
    return frozenset({origin_of("http", host), origin_of("https", host)})


class Routes:
    """The table of all upstreams."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = {target.name: target for target in targets}
        self._only = targets[0] if len(targets) == 1 else None

    def find(self, request_target: str) -> Route | None:
        """Return the route of a target in origin form, or `None` for none."""
        path, mark, query = request_target.partition("?")
        query = mark + query
        session, before = "", ""
        first, rest = _split(path)
        if first == SESSION and rest:
            name, rest = _split(rest)
            if not name:
                return None
            session, before, path = _text(unquote(name)), f"/{SESSION}/{name}", rest or "/"
            first, rest = _split(path)
            if first == OWN:
                return None
        if target := self._targets.get(first):
            return _route(target, rest, query, session, f"{before}/{first}")
        if self._only is not None:
            return _plain(self._only, path, query, session, before)
        return None


class Endpoints:
    """Which paths of which upstreams are MCP endpoints: a JSON-RPC message was posted to them."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def learn(self, route: Route) -> None:
        """Remember that a JSON-RPC message went to the path of a route."""
        key = (route.target.name, route.path)
        if key not in self._known and len(self._known) < _ENDPOINTS:
            self._known.add(key)

    def knows(self, route: Route) -> bool:
        """Return whether the path of a route is known as an MCP endpoint."""
        return (route.target.name, route.path) in self._known


def target_of(
    name: str,
    url: str,
    *,
    proxy: HttpProxy | None = None,
    ca: str = "",
    mask: UrlMask | None = None,
    pins_key: bool = False,
) -> Target:
    """Return the routing entry of a configured URL, whose form was checked before."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    return Target(
        name=name,
        origin=f"{parts.scheme}://{parts.netloc}",
        path=parts.path or "/",
        query=parts.query,
        authority=parts.netloc.encode("ascii"),
        host=host,
        port=port,
        place=(f"{parts.scheme}://{host}:{port}",),
        proxy=proxy,
        ca=ca,
        mask=mask,
        pins_key=pins_key,
    )


def target_of_command(name: str, command: Sequence[str], folder: Path) -> Target:
    """Return the routing entry of a command upstream that runs in `folder`."""
    return Target(
        name=name,
        origin=f"{COMMAND}{name}",
        path="/mcp",
        query="",
        authority=name.encode(),
        host="",
        port=0,
        place=place_of_command(command, folder),
    )


def place_of_command(command: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return what distinguishes a command from every other one."""
    return (COMMAND, *command, str(folder))


def is_own(path: str) -> bool:
    """Return whether a path is one of turnlog's own, and names no session."""
    return _is_within(path, f"/{OWN}")


def is_probe(path: str) -> bool:
    """Return whether a path says how turnlog is doing: it is asked by address, under any Host."""
    return path in {HEALTH, READY}


def is_page(path: str) -> bool:
    """Return whether a path is one of turnlog's own that a person may open in a browser."""
    return is_own(path) and not any(_is_within(path, folder) for folder in (API, AGENT_TOOLS))


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def own_path(path: str) -> tuple[str, str] | None:
    """Return the session that a path of turnlog's own begins with, and the path behind it; else `None`."""
    first, rest = _split(path)
    name, rest = _split(rest)
    if first != SESSION or not name or _split(rest)[0] != OWN:
        return None
    return _text(unquote(name)), rest


def origin_form(request_target: str) -> str:
    """Return path and query of a target, of an absolute one too (RFC 9112 section 3.2.2)."""
    if request_target.startswith("/") or request_target == "*":
        return request_target
    _, _, rest = request_target.partition("://")
    authority = _AUTHORITY.match(rest)
    rest = rest[authority.end() :] if authority else rest
    return rest if rest.startswith("/") else "/" + rest


def authority_of(request_target: str) -> str:
    """Return the authority of an absolute target; empty for one that begins with a path."""
    if request_target.startswith("/"):
        return ""
    authority = _AUTHORITY.match(request_target.partition("://")[2])
    return authority.group() if authority else ""


def _text(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _split(path: str) -> tuple[str, str]:
    """Split `/a/b/c` into `a` and `/b/c`; of `*` (RFC 9112 section 3.2.4) nothing."""
    first, slash, rest = path[1:].partition("/")
    return first, slash + rest


def _route(target: Target, rest: str, query: str, session: str, prefix: str) -> Route:
    if not rest:
        return _configured(target, query, session, prefix, is_named=True)
    return Route(target, rest, query, session, prefix, is_named=True)


def _plain(target: Target, path: str, query: str, session: str, prefix: str) -> Route:
    if path == target.path:
        return _configured(target, query, session, prefix)
    return Route(target, path, query, session, prefix)


def _configured(
    target: Target, query: str, session: str, prefix: str, *, is_named: bool = False
) -> Route:
    if target.query:
        more = query[1:]
        query = f"?{target.query}&{more}" if more else f"?{target.query}"
    return Route(target, target.path, query, session, prefix, is_named)


def _path(resource: str) -> str:
    """Return a path without what is behind it."""
    return _PATH.match(resource)[0]  # type: ignore[index]  # it matches empty text as well


def _unconfigured(resource: str, configured: str) -> str | None:
    """Return a resource without the query that is configured, which `_configured` adds to each.

    `None` where the resource does not begin with that.
    """
    if not resource.startswith(configured):
        return None
    path, rest = configured.partition("?")[0], resource[len(configured) :]
    match rest[:1]:
        case "" | "#":
            return path + rest
        case "&":
            return f"{path}?{rest[1:]}"
        case _:
            return None
