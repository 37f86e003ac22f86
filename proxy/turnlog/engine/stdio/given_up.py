"""The attempts of a pipe that were given up before their answers came; these may come yet."""

from collections import OrderedDict
from enum import StrEnum
from typing import Final

from msgspec import Struct

from turnlog.core.kinds import ErrorKind, Flag
from turnlog.record.attempt import Attempt

from .piped import PipedExchange

_MOST: Final = 1024
"""Attempts that are remembered."""


class Opening(StrEnum):
    """What becomes of a long line, by its start."""

    PASSES = "passes"
    STAYS = "stays"
    """It comes too late: the agent has got another answer."""
    WAITS = "waits"
    """It cannot be told before its end."""


class AbandonedAttempt(Struct, frozen=True):
    """An attempt that was given up before its answer came."""

    exchange: PipedExchange
    attempt: Attempt
    answered: bool
    """Whether the agent has got an answer in its place."""

    def lost(self) -> None:
        """Learn that no answer will come."""
        if not self.attempt.ended:
            self.attempt.marks.add(Flag.PROCESS_EXIT)
            self.exchange.left(ErrorKind.CONNECTION_LOST)
        if self.attempt is self.exchange.attempt:
            self.exchange.over()


class LateAnswers:
    """Those of one pipe, by the keys of the ids that the server knows."""

    def __init__(self) -> None:
        self._past: OrderedDict[str, AbandonedAttempt] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._past

    def add(self, key: str, past: AbandonedAttempt) -> None:
        """Remember one."""
        self._past[key] = past
        if len(self._past) > _MOST:
            self._past.popitem(last=False)

    def find(self, key: str) -> AbandonedAttempt | None:
        """Return what an answer with this id is for."""
        return self._past.get(key)

    def take(self, key: str) -> AbandonedAttempt | None:
        """Return what an answer with this id is for, which has come."""
        return self._past.pop(key, None)

    @property
    def any_answered(self) -> bool:
        """Whether an agent has got another answer in place of one that may come."""
        return any(past.answered for past in self._past.values())

    def runs_on(self, caller_key: str) -> bool:
        """Return whether a call with this id of the caller's runs on, though its caller got an answer."""
        return any(
            past.answered and past.attempt.caller_key == caller_key and past.attempt.is_guarded
            for past in self._past.values()
        )

    def lost(self) -> None:
        """Learn that no answer will come any more."""
        for past in self._past.values():
            past.lost()
