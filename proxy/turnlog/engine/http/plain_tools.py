"""A cache of what is known of a plain HTTP tool before a call of it is looked at."""

from collections.abc import Callable
from typing import Final

from msgspec import structs

from turnlog.core.kinds import Effect
from turnlog.engine.agent_request import Request
from turnlog.engine.tools.tool_cache import ActiveRules
from turnlog.record.attempt import BLANK, TOOL_CHARS, Ask
from turnlog.rules.http_tools import http_effect, http_tool, normalized_path
from turnlog.rules.model import Access
from turnlog.rules.policy import Subject, tool_of_path

_TOOLS: Final = 4096
"""Most tools that are remembered."""
_NO_WRITES: Final = frozenset({None, Effect.READ, Effect.UNKNOWN})
"""Effects that no rule has named, or that change nothing."""


class HttpToolCache:
    """Remembers what all calls of a plain tool ask alike: its names, its effect, what rules come to.

    That is a model of an `Ask`, whose other fields say nothing. It counts for as long as the rules stay
    what they are; where a rule looks at paths or at a call's arguments none is remembered.
    """

    def __init__(self, rules: ActiveRules, clean: Callable[[str], str]) -> None:
        self._rules = rules
        self._clean = clean
        self._book = rules.book
        """What the tools remembered were worked out from."""
        self._tools: dict[tuple[str, str, str, str, tuple[int, int]], Ask] = {}

    def find(self, request: Request, path: str, arguments: Callable[[], object]) -> Ask:
        """Return what a request for this path asks, as far as others may alike."""
        book, server = self._rules.book, request.server
        # Any token is a method, and a token may be a secret in the wrong place.
        method = self._clean(request.method)[:TOOL_CHARS]
        if self._book is not book:
            self._book = book
            self._tools.clear()
        pathed = book.path_rules(server)
        tool = tool_of_path(pathed, server, method, path) if pathed else None
        mask = request.route.target.mask
        tool = tool or http_tool(method, path if mask is None else mask.pattern(path))
        key = (server, request.credential, method, tool, request.asked.version)
        known = self._tools.get(key) if not pathed else None
        if known is not None:
            return known
        # Paths are many: one that no rule looks at keeps nothing from being remembered.
        subject = Subject(server=server, tool=tool, method=method, path=path if pathed else "")
        model = self._look(request, subject, arguments)
        if (meant := normalized_path(path)) != path:
            # What a server takes `/a/../b` or `/%62` for is denied where `/b` is.
            tool = tool_of_path(pathed, server, method, meant) or http_tool(method, meant)
            subject = Subject(server=server, tool=tool, method=method, path=meant)
            policy = book.policy(subject, arguments)
            return structs.replace(model, policy=policy) if policy.access is Access.DENY else model
        if not pathed and book.is_cached(subject):
            if len(self._tools) >= _TOOLS:
                self._tools.clear()
            self._tools[key] = model
        return model

    def _look(self, request: Request, subject: Subject, arguments: Callable[[], object]) -> Ask:
        policy = self._book.policy(subject, arguments)
        return structs.replace(
            BLANK,
            server=subject.server,
            tool=self._clean(subject.tool),
            method=subject.method,
            effect=policy.effect or http_effect(request.method),
            policy=policy,
            protocol=f"http/{request.http_version}",
            is_named=policy.effect not in _NO_WRITES,
            principal=request.credential,
            target=request.upstream,
        )
