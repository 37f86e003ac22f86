"""What an operator may set: one frozen Struct.

Every value is checked by its type, so that a `Settings` that exists can be served. How one is made
of defaults, file, environment and flags is `settings.layers`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from turnlog.core.kinds import Durability, WhenFull
from turnlog.core.text.units import Size, reads
from turnlog.exchange.duplicates import NeverTwice
from turnlog.exchange.principal import DEFAULT_NAMES
from turnlog.packs.sources import RuleSource, Sources, in_force
from turnlog.rules.circuit_breaker import Breaker
from turnlog.rules.retry_quota import RetryQuota

from .http_proxies import FROM_ENVIRONMENT
from .upstream_url import UpstreamUrl
from .values import (
    Address,
    address,
    allowed_host,
    allowed_origin,
    expanded_url,
    folder,
    header_name,
    pack_name,
    principal_name,
    proxy_setting,
    rule_source,
    secret_pattern,
    store_size,
    upstream_name,
)


class Transport(StrEnum):
    """What an upstream speaks. `AUTO` tells MCP from plain HTTP by each request."""

    AUTO = "auto"
    MCP = "mcp"
    HTTP = "http"


class LogFormat(StrEnum):
    """How events are written to stdout."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least important events that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Share(StrEnum):
    """Who talks to one process of a command: one protocol session of an agent, or all of them."""

    SESSION = "session"
    ALL = "all"


class Upstream(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool server: an address, or a command that is started on demand."""

    url: Annotated[UpstreamUrl, reads(expanded_url)] | None = None
    command: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    """The program and its arguments; it speaks MCP over stdin and stdout."""
    env: dict[str, str] = {}
    """Variables of the command, beside those that turnlog itself has."""
    cwd: str = ""
    """The command's working directory; empty for turnlog's own."""
    share: Share = Share.SESSION
    transport: Transport = Transport.AUTO
    packs: tuple[Annotated[str, reads(pack_name)], ...] = ()
    """Packs of rules for this server's calls, after the user's own rules."""
    trust_annotations: bool = False
    trust_outcomes: bool = False
    """Whether the server may say how a call ended in turnlog's name: it is a turnlog itself."""
    proxy: Annotated[str, reads(proxy_setting)] = FROM_ENVIRONMENT
    """The HTTP proxy that leads to it: `env`, `none`, or a URL, which may hold credentials."""
    ca: str = ""
    """File of the certificates that its own is checked against; empty for the system's."""
    retry_quota: RetryQuota | None = None
    """Bounds the retries that rules want; `None` for no bound."""
    breaker: Breaker | None = None
    """When the server is left alone; `None` for never."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is kept, in bytes, and what happens when there is no room."""

    record: Size = 1 << 20
    store: Annotated[int, reads(store_size)] = 10 << 30
    when_full: WhenFull = WhenFull.REFUSE_WRITES


class Redact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is cut from records and logs beside the defaults."""

    headers: tuple[Annotated[str, reads(header_name)], ...] = ()
    keys: tuple[str, ...] = ()
    patterns: tuple[Annotated[str, reads(secret_pattern)], ...] = ()


class Identity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what callers are told apart."""

    principal: tuple[Annotated[str, reads(principal_name)], ...] = DEFAULT_NAMES
    """Names of headers, parameters and cookies that authenticate a caller, in place of the defaults."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that an operator may set."""

    listen: Annotated[Address, reads(address)] = Address("127.0.0.1", 7411)
    allow_hosts: tuple[Annotated[str, reads(allowed_host)], ...] = ()
    allow_origins: tuple[Annotated[str, reads(allowed_origin)], ...] = ()
    data: Annotated[Path, reads(folder)] = Path()
    """Absolute once `read_settings` made it; where no source names one, the user's state folder."""
    durability: Durability = Durability.BALANCED
    upstreams: dict[Annotated[str, reads(upstream_name)], Upstream] = {}
    rules: tuple[Annotated[RuleSource, reads(rule_source)], ...] = ()
    """Files of rules, the first ones first; found and absolute once `read_settings` made them."""
    limits: Limits = Limits()
    redact: Redact = Redact()
    identity: Identity = Identity()
    never_twice: NeverTwice = NeverTwice()
    log_format: LogFormat | None = None
    """`None` is `console` where stdout is a terminal, else `json`."""
    log_level: LogLevel = LogLevel.INFO

    def sources(self) -> Sources:
        """Return where the rules come from."""
        return in_force(self.rules, {name: up.packs for name, up in self.upstreams.items()})
