"""Decide whose requests turnlog takes: a defence against DNS rebinding (Host and Origin).

A page of the web can make a browser send requests to 127.0.0.1 under a name of its own; its Host
and Origin then carry that name. The name decides; a port counts only where one was configured.
"""

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(rb"https?://([^/?#\\]+)", re.IGNORECASE)


@lru_cache(maxsize=256)
def allowed_host(host: bytes, allowed: frozenset[str]) -> bool:
    """Tell whether the value of the one Host field names this proxy.

    Loopback names and addresses always do, on any port. `allowed` holds lower-case names or
    addresses, for any port, or with the one they go with (`proxy.internal:7411`).
    """
    found = _AUTHORITY.fullmatch(host)
    if found is None or int(found[2] or 0) > 65_535:
        return False
    name = _name(found[1].decode("ascii"))
    if name is None:
        return False
    if _is_loopback(name):
        return True
    port = (found[2] or b"").decode("ascii")
    known = {_normal(entry) for entry in allowed}
    return name in known or f"{name}:{port}" in known


def allowed_origin(origin: bytes, allowed: frozenset[str]) -> bool:
    """Tell whether a page of this origin may call; empty means the field is absent.

    Clients that are no browsers send none. `null` (a sandbox, a file) is refused: it is anybody.
    """
    if not origin:
        return True
    found = _ORIGIN.fullmatch(origin)
    return found is not None and allowed_host(found[1], allowed)


def _name(host: str) -> str | None:
    """Return a host in one spelling: lower case, no final dot, addresses as `ipaddress` does."""
    if host.startswith("["):
        address = _address(host[1:-1])
        return str(address) if isinstance(address, IPv6Address) else None
    name = host.lower().removesuffix(".")
    return name or None


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _normal(entry: str) -> str:
    """Return a configured name as `_name` spells it, `:PORT` behind it where one is given."""
    if _address(entry) is not None:
        return str(_address(entry))
    found = _AUTHORITY.fullmatch(entry.encode("utf-8", "replace"))
    if found is None:
        return entry
    name = _name(found[1].decode("ascii")) or entry
    return f"{name}:{found[2].decode('ascii')}" if found[2] else name
