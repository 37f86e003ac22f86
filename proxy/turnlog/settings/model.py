"""The settings as one frozen Struct; `settings.layers` reads them.

Every value is checked by its type, so that an existing `Settings` is valid.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from turnlog.core.kinds import Durability, WhenFull
from turnlog.core.text.units import Size, reads
from turnlog.exchange.duplicates import NeverTwice
from turnlog.exchange.principal import DEFAULT_NAMES
from turnlog.packs.sources import RuleSource, RuleSources, rule_sources
from turnlog.rules.circuit_breaker import BreakerSettings
from turnlog.rules.retry import RetryQuota
from turnlog.sessions.retention.ages import Retention

from .http_proxies import FROM_ENVIRONMENT
from .signatures import JwsSettings, SignatureSettings, needs_cryptography
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
    """The protocol of an upstream; `AUTO` distinguishes MCP from plain HTTP for each request."""

    AUTO = "auto"
    MCP = "mcp"
    HTTP = "http"


class LogFormat(StrEnum):
    """Format of the log on stdout."""

    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The lowest level of events that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Share(StrEnum):
    """Whether a process of a command serves one MCP session or all of them."""

    SESSION = "session"
    ALL = "all"


class UpstreamSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool server: a URL, or a command that is started on demand."""

    url: Annotated[UpstreamUrl, reads(expanded_url)] | None = None
    command: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    """Program and arguments of a server that speaks MCP over stdin and stdout."""
    env: dict[str, str] = {}
    """Environment variables of the command, in addition to those of turnlog."""
    cwd: str = ""
    """Working directory of the command; empty for that of turnlog."""
    share: Share = Share.SESSION
    transport: Transport = Transport.AUTO
    packs: tuple[Annotated[str, reads(pack_name)], ...] = ()
    """Packs of rules for this server's calls; the user's own rules come before them."""
    trust_annotations: bool = False
    trust_outcomes: bool = False
    """Whether `turnlog/outcome` in its answers is believed, because the server is a turnlog."""
    proxy: Annotated[str, reads(proxy_setting)] = FROM_ENVIRONMENT
    """The HTTP proxy to reach it: `env`, `none`, or a URL, which may hold credentials."""
    ca: str = ""
    """File of the CA certificates to verify it with; empty for those of the system."""
    pin_tls: Annotated[bool, reads(needs_cryptography)] = False
    """Whether the public key of its certificate is part of its identity, which `turnlog trust` pins."""
    retry_quota: RetryQuota | None = None
    """Limit on the retries that rules ask for; `None` for no limit."""
    breaker: BreakerSettings | None = None
    """When the circuit breaker opens; `None` for never."""
    signatures: SignatureSettings | None = None
    """Which HTTP message signatures of its answers are verified; `None` for none."""
    jws: JwsSettings | None = None
    """Which JWS in its results is verified; `None` for none."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, and what happens when the store is full."""

    record: Size = 1 << 20
    store: Annotated[int, reads(store_size)] = 10 << 30
    when_full: WhenFull = WhenFull.REFUSE_WRITES


class Redact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Secrets to redact in records and logs, in addition to the defaults."""

    headers: tuple[Annotated[str, reads(header_name)], ...] = ()
    keys: tuple[str, ...] = ()
    patterns: tuple[Annotated[str, reads(secret_pattern)], ...] = ()


class IdentitySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The credentials that distinguish one caller from another."""

    principal: tuple[Annotated[str, reads(principal_name)], ...] = DEFAULT_NAMES
    """Headers, query parameters and cookies that authenticate a caller; replaces the defaults."""


class Switch(StrEnum):
    """Whether something is done."""

    ON = "on"
    OFF = "off"


class ProvenanceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the record of where the inputs of calls came from."""

    inputs: Switch = Switch.ON
    """Whether the values in arguments are looked up in the session's earlier outputs."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of an operator."""

    listen: Annotated[Address, reads(address)] = Address("127.0.0.1", 7411)
    allow_hosts: tuple[Annotated[str, reads(allowed_host)], ...] = ()
    allow_origins: tuple[Annotated[str, reads(allowed_origin)], ...] = ()
    data: Annotated[Path, reads(folder)] = Path()
    """Absolute after `read_settings`; by default in the user's state folder."""
    durability: Durability = Durability.BALANCED
    upstreams: dict[Annotated[str, reads(upstream_name)], UpstreamSettings] = {}
    rules: tuple[Annotated[RuleSource, reads(rule_source)], ...] = ()
    """Rule files, the first wins; existing and absolute after `read_settings`."""
    limits: Limits = Limits()
    retention: Retention = Retention()
    redact: Redact = Redact()
    identity: IdentitySettings = IdentitySettings()
    never_twice: NeverTwice = NeverTwice()
    provenance: ProvenanceSettings = ProvenanceSettings()
    log_format: LogFormat | None = None
    """`None` means `console` on a terminal, else `json`."""
    log_level: LogLevel = LogLevel.INFO

    def sources(self) -> RuleSources:
        """Return the sources of the rules in force."""
        return rule_sources(self.rules, {name: up.packs for name, up in self.upstreams.items()})
