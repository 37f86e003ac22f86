"""The secret of whoever may use the API: DATA/token."""

import secrets
from pathlib import Path

from turnlog.store.log.translate_errors import translated

from .base import StoreError
from .folder import publish

_LENGTH = 32
"""Bytes of chance in a token, and the least length of one that an operator chose."""


def read_token(data: Path) -> bytes:
    """Return the token of a data folder; make it on first use.

    Processes that race get the same one. Raises `StoreError`.
    """
    file = data / "token"
    with translated("read", file):
        if not file.exists():
            publish(file, secrets.token_urlsafe(_LENGTH).encode() + b"\n")
        file.chmod(0o600)
        token = file.read_bytes().strip()
    if len(token) < _LENGTH:
        raise StoreError(
            f"the token {str(file)!r} is too short; delete it, and start turnlog again"
        )
    return token
