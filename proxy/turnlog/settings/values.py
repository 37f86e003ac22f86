"""Parsers of settings that are more than text: addresses, URLs, names, patterns.

Each takes plain data and raises a `ValueError` that says what to write instead.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from turnlog.core.text.units import size
from turnlog.exchange.principal import COOKIE
from turnlog.packs.sources import RuleSource, find_rule_pack
from turnlog.rules.model import read_pattern
from turnlog.rules.pattern import compile_pattern
from turnlog.wire.http.origin import normal_origin

from .http_proxies import FROM_ENVIRONMENT, NONE, parse_proxy
from .upstream_url import UpstreamUrl

RESERVED_NAMES = frozenset({"s", "turnlog"})
"""First path segments that turnlog uses itself."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}", re.ASCII)
_NAME_CHARS = 64
_NO_NAME = re.compile(r"[^A-Za-z0-9._~-]+", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_LAUNCHER = re.compile(
    r"(npx|npm|pnpm|yarn|bunx?|deno|node|uvx?|pipx|python[0-9.]*|docker|podman|env|(ba|z|da)?sh"
    r"|run|exec|dlx|tool|x)(\.exe|\.cmd)?"
)
_SCRIPTED = re.compile(
    r"((ba|z|da)?sh|python[0-9.]*|npx)(\.exe|\.cmd)? -[A-Za-z]*c"
    r"|(node|bun|deno)(\.exe|\.cmd)? (-e|-p|--eval|--print)"
)
"""A launcher with an option that is followed by a script, which has no name."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_URL_ADVICE = "write one like http://127.0.0.1:9000/mcp"
_ADDRESS_ADVICE = "write HOST:PORT like 127.0.0.1:7411 or [::1]:7411"
_SMALLEST_STORE = 1 << 20
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(Struct, frozen=True):
    """An address to listen on. Port 0 means a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address(value: object) -> Address:
    """Parse `HOST:PORT`, with an IPv6 host in brackets."""
    text = value.strip() if isinstance(value, str) else ""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port[:6]) <= 65_535):
        raise ValueError(f"{str(value)!r} is not an address, {_ADDRESS_ADVICE}")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if bracketed != (":" in bare) or not _is_host(bare):
        raise ValueError(f"{text!r} has no host, {_ADDRESS_ADVICE}")
    return Address(bare, int(port))


def folder(value: object) -> Path:
    """Parse the path of a folder; `~` is the user's home."""
    if not isinstance(value, str) or not value or "\0" in value:
        what = "no value is given" if value is None else f"{str(value)!r} is not a folder"
        raise ValueError(f"{what}, write a path like /srv/turnlog")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"{value!r} has no home folder behind its ~, write the path out") from None


def allowed_host(value: object) -> str:
    """Parse a value that the Host header may have, with or without a port."""
    text = value.lower() if isinstance(value, str) else ""
    if _is_host(text.strip("[]")):
        return text
    try:
        return str(address(text))
    except ValueError:
        raise ValueError(
            f"{str(value)!r} is not a host, write one like proxy.internal:7411"
        ) from None


def allowed_origin(value: object) -> str:
    """Parse an origin that the Origin header may have, such as `chrome-extension://ID`."""
    return normal_origin(value if isinstance(value, str) else str(value))


def principal_name(value: object) -> str:
    """Parse an entry of `identity.principal`: a header name, or `cookie:` and a cookie name."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if _HEADER.fullmatch(text.removeprefix(COOKIE)) is None:
        raise ValueError(
            f"{str(value)!r} names no credential, write a header like x-api-key or *-token, or a "
            "cookie like cookie:session"
        )
    return text


def upstream_name(value: object) -> str:
    """Parse the name of an upstream: one safe path segment that is not reserved."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(
            f"{str(value)!r} cannot name an upstream, use up to 64 letters, digits, - . _ ~"
        )
    if value in RESERVED_NAMES:
        raise ValueError(f"{value!r} is reserved for turnlog's own paths, choose another name")
    return value


def name_of_command(command: Sequence[str]) -> str:
    """Return a name for the server that a command starts.

    Launchers, their options and variables are skipped, and a package gives its bare name:
    `npx -y @scope/server-files@1.2 DIR` is `server-files`. A launcher with a script gives the
    launcher: `sh -c 'exec server'` is `sh`.
    """
    launcher = ""
    for word in command:
        base = word.rstrip("/").rpartition("/")[2]
        if _SCRIPTED.fullmatch(f"{launcher} {word}"):
            return launcher.removesuffix(".exe").removesuffix(".cmd")
        if _LAUNCHER.fullmatch(base):
            launcher = base
        if word.startswith("-") or _ASSIGNMENT.match(word) or _LAUNCHER.fullmatch(base):
            continue
        name = _NO_NAME.sub("-", base.partition("@")[0].removesuffix(".py").removesuffix(".js"))
        name = name.strip("-._~")[:_NAME_CHARS]
        if name and name not in RESERVED_NAMES:
            return name
    return "command"


def expanded_url(value: object) -> UpstreamUrl:
    """Parse the URL of a tool server; an `UpstreamUrl` is returned unchanged."""
    return value if isinstance(value, UpstreamUrl) else UpstreamUrl(upstream_url(value))


def upstream_url(value: object) -> str:
    """Parse the http or https URL of a tool server."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)!r} is not a URL, {_URL_ADVICE}")  # noqa: TRY004
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(f"{value!r} holds characters no URL may hold, percent-encode them")
    parts = _split(value)
    if parts.scheme.lower() not in _DEFAULT_PORTS:
        raise ValueError(f"{value!r} is not an http or https URL, {_URL_ADVICE}")
    if "@" in parts.netloc:
        raise ValueError("the URL holds credentials, let the agent send them in a header")
    if not _is_host(parts.hostname or ""):
        raise ValueError(f"{value!r} has no host, {_URL_ADVICE}")
    if "#" in value:
        raise ValueError(f"{value!r} has a fragment, which is never sent, remove it")
    return value


def proxy_setting(value: object) -> str:
    """Parse the setting `proxy`: `env`, `none`, or the URL of an HTTP proxy."""
    text = "none" if value is None else str(value)
    if text not in {FROM_ENVIRONMENT, NONE}:
        parse_proxy(text, "proxy")
    return text


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL ({error}), {_URL_ADVICE}") from None
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError(f"{url!r} names no usable port, {_URL_ADVICE}")
    return parts


def header_name(value: object) -> str:
    """Parse the name of an HTTP header; returned in lower case."""
    if not isinstance(value, str) or _HEADER.fullmatch(value) is None:
        raise ValueError(f"{str(value)!r} is not a header name, write one like X-Api-Key")
    return value.lower()


def secret_pattern(value: object) -> str:
    """Parse an RE2 regular expression that does not match the empty text."""
    text = read_pattern(value)
    if compile_pattern(text).is_in(""):
        raise ValueError(f"{text!r} matches empty text and would redact everything, narrow it")
    return text


def pack_name(value: object) -> str:
    """Parse the name of a pack of rules."""
    name = str(value)
    find_rule_pack(name)
    return name


def rule_source(value: object) -> RuleSource:
    """Parse the path of a rules file; a `RuleSource` is returned unchanged."""
    if isinstance(value, RuleSource):
        return value
    if not isinstance(value, str) or not value or "\0" in value:
        if isinstance(value, dict):
            raise ValueError(
                "this is a rule: give a file of rules with --rules, or name its path here"
            )
        raise ValueError(f"{str(value)!r} is not a file, write a path")
    return RuleSource(Path(value), value)


def is_loop(listen: Address, url: str) -> bool:
    """Return whether calls to `url` would come back to `listen`; no DNS lookup is made."""
    parts = urlsplit(url)
    if listen.port != (parts.port or _DEFAULT_PORTS[parts.scheme.lower()]):
        return False
    theirs = _reached_by(parts.hostname or "")
    if is_ip(listen.host) and ip_address(listen.host).is_unspecified:
        return any(is_ip(host) and ip_address(host).is_loopback for host in theirs)
    return bool(_reached_by(listen.host) & theirs)


def _reached_by(host: str) -> set[str]:
    """Return the addresses of a host, without a DNS lookup."""
    if host.lower() == "localhost":
        return {"127.0.0.1", "::1"}
    if not is_ip(host):
        return {host.lower()}
    number = ip_address(host)
    # A connection to 0.0.0.0 goes to this machine.
    return {"127.0.0.1", "::1"} if number.is_unspecified else {str(number)}


def _is_host(text: str) -> bool:
    return is_ip(text) or _HOST.fullmatch(text) is not None


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def store_size(value: object) -> int:
    """Parse the size limit of a store, in bytes."""
    found = size(value)
    if found < _SMALLEST_STORE:
        raise ValueError("no store is smaller than 1MiB, write a size like 64MiB or 10GiB")
    return found
