"""Retention: how long content is kept, by default and by rules, and the note of that in the data folder."""

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from turnlog.core.text.units import Age, counted, duration_text
from turnlog.host import whole_file
from turnlog.rules.model import Servers
from turnlog.rules.policy import matches_glob
from turnlog.store.base import StoreError

_NOTE: Final = "retention"
_FOREVER: Final = "forever"


class SessionRetention(StrEnum):
    """How long the headers of commits are kept."""

    FOREVER = "forever"


class RetentionRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ages for the content of some sessions and servers. It does not decide an age that is `None`."""

    server: Servers = ("*",)
    session: Servers = ("*",)
    """Ids and names of sessions."""
    payloads: Age | None = None
    bodies: Age | None = None

    def __post_init__(self) -> None:
        if self.payloads is None and self.bodies is None:
            raise ValueError("this rule decides no age, add payloads or bodies")

    @property
    def is_of_all_servers(self) -> bool:
        """Whether it matches every server, and commits of none."""
        return "*" in self.server

    def is_about(self, names: Sequence[str]) -> bool:
        """Return whether it is about a session that has these names."""
        return any(matches_glob(self.session, name) for name in names)


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ages in seconds after which content is deleted, where no rule decides another."""

    payloads: Age = 604_800.0
    """Age at which inputs and outputs are deleted, a day of them at a time."""
    bodies: Age = 7_776_000.0
    """Age at which all other content of commits is deleted."""
    sessions: SessionRetention = SessionRetention.FOREVER
    """Headers are a hash chain, which has no holes."""
    rules: tuple[RetentionRule, ...] = ()
    """The first one that matches and decides an age wins."""

    def text(self) -> str:
        """Return the ages as a user writes them."""
        ages = f"payloads {_age_text(self.payloads)}, bodies {_age_text(self.bodies)}"
        return f"{ages}, {counted(len(self.rules), 'rule')}" if self.rules else ages

    def payload_ages(self, names: Sequence[str] | None = None) -> "Ages":
        """Return the ages of inputs and outputs in a session of these names; `None` for any session."""
        return _ages([(rule, rule.payloads) for rule in self.rules], self.payloads, names)

    def body_ages(self, names: Sequence[str] | None = None) -> "Ages":
        """Return the ages of all other content in a session of these names; `None` for any session."""
        return _ages([(rule, rule.bodies) for rule in self.rules], self.bodies, names)


class Ages(Struct, frozen=True):
    """Ages of one kind of content."""

    by_rule: tuple[tuple[RetentionRule, float], ...]
    otherwise: float

    def of(self, server: str) -> float:
        """Return the age of what a server's calls have left; of what has no server, for an empty name."""
        named = (age for rule, age in self.by_rule if matches_glob(rule.server, server))
        return next(named, self.otherwise)

    @property
    def shortest(self) -> float:
        return min(self.otherwise, *(age for _, age in self.by_rule), math.inf)

    @property
    def longest(self) -> float:
        return max(self.otherwise, *(age for _, age in self.by_rule), 0.0)


def _ages(
    rules: Sequence[tuple[RetentionRule, float | None]],
    otherwise: float,
    names: Sequence[str] | None,
) -> Ages:
    found: list[tuple[RetentionRule, float]] = []
    for rule, age in rules:
        if age is not None and (names is None or rule.is_about(names)):
            found.append((rule, age))
            if names is not None and rule.is_of_all_servers:
                return Ages(tuple(found[:-1]), age)
    return Ages(tuple(found), otherwise)


def write_retention(data: Path, retention: Retention) -> None:
    """Write the retention of a proxy into its data folder, for `turnlog gc`. Raises `OSError`."""
    # Whole or not at all: of a part other ages would be read.
    with whole_file(data / _NOTE, replace=True) as stream:
        stream.write(msgspec.msgpack.encode(retention))  # JSON has no number for `forever`


def noted_retention(data: Path) -> Retention | None:
    """Return the retention of the proxy that opened a data folder last, if there was one.

    Raises `StoreError` for a note that cannot be read.
    """
    note = data / _NOTE
    try:
        return msgspec.msgpack.decode(note.read_bytes(), type=Retention)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            f"cannot read {str(note)!r} ({error}); start the proxy once, or give --config"
        ) from None


def _age_text(seconds: float) -> str:
    return _FOREVER if seconds == math.inf else duration_text(seconds)
