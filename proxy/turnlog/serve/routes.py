"""Which upstream a path means, and where there. Pure; one dictionary look-up per request."""

from urllib.parse import unquote, urlsplit

from msgspec import Struct

OWN = "turnlog"
"""First segment of everything that is turnlog's own."""
SESSION = "s"
"""First segment of paths that name a session: `/s/{session}/{name}...`."""


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


class Route(Struct, frozen=True):
    """Where one request goes. `session` is empty where the path names none."""

    target: Target
    url: str
    path: str
    """The path alone, as the upstream sees it."""
    session: str


class Routes:
    """The table of all upstreams."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = {target.name: target for target in targets}
        self._only = targets[0] if len(targets) == 1 else None

    def find(self, request_target: str) -> Route | None:
        """Return the route of a request target (RFC 9112 section 3.2), or `None` for none."""
        path, _, query = _origin_form(request_target).partition("?")
        session = ""
        first, rest = _split(path)
        if first == SESSION and rest:
            name, rest = _split(rest)
            session, path = unquote(name), rest or "/"
            first, rest = _split(path)
        if target := self._targets.get(first):
            return _route(target, rest, query, session)
        if self._only is not None:
            return _plain(self._only, path, query, session)
        return None


def target_of(name: str, url: str) -> Target:
    """Return the routing entry of a configured URL, whose form was checked before."""
    parts = urlsplit(url)
    return Target(
        name=name,
        origin=f"{parts.scheme}://{parts.netloc}",
        path=parts.path or "/",
        query=parts.query,
        authority=parts.netloc.encode("ascii"),
    )


def _origin_form(request_target: str) -> str:
    if request_target.startswith("/"):
        return request_target
    parts = urlsplit(request_target)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _split(path: str) -> tuple[str, str]:
    """Split `/a/b/c` into `a` and `/b/c`."""
    first, slash, rest = path[1:].partition("/")
    return first, slash + rest


def _route(target: Target, rest: str, query: str, session: str) -> Route:
    if not rest:
        return _configured(target, query, session)
    return _elsewhere(target, rest, query, session)


def _plain(target: Target, path: str, query: str, session: str) -> Route:
    if path == target.path:
        return _configured(target, query, session)
    return _elsewhere(target, path, query, session)


def _configured(target: Target, query: str, session: str) -> Route:
    both = "&".join(part for part in (target.query, query) if part)
    url = target.origin + target.path + (f"?{both}" if both else "")
    return Route(target, url, target.path, session)


def _elsewhere(target: Target, path: str, query: str, session: str) -> Route:
    url = target.origin + path + (f"?{query}" if query else "")
    return Route(target, url, path, session)
