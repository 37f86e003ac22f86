"""Signals that ask a wrap to end."""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Signals that ask to end, as long as the loop is there: they must not cut its last work off."""

    def __init__(self) -> None:
        self._came: list[signal.Signals] = []
        self._take: Callable[[signal.Signals], None] = self._came.append
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            # What our client has us ignore (nohup) the command ignores as well.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._told, number)

    def _told(self, number: signal.Signals) -> None:
        self._take(number)

    def go_to(self, take: Callable[[signal.Signals], None]) -> None:
        """Let `take` have each signal, those that came before as well."""
        self._take = take
        for number in self._came:
            take(number)
