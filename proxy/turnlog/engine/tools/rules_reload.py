"""Read the rules again when asked to, and when one of their files has changed."""

import asyncio
from contextlib import suppress
from typing import Final

from turnlog.observe.events import Log, RulesRejected, RulesReloaded
from turnlog.packs.errors import ConfigError
from turnlog.packs.load import file_versions
from turnlog.packs.rulebook import ReadRules, read_each, rulebook
from turnlog.packs.sources import RuleSources

from .tool_cache import ActiveRules

LOOK: Final = 0.5
"""s between two looks at the files. What is found has to stay as it is for one of them, so that no
editor is caught between two writes."""


class Reloader:
    """Replaces the rules in force when their files change; files with errors leave them as they are."""

    def __init__(self, sources: RuleSources, log: Log) -> None:
        """Read the rules. Raises `ConfigError`."""
        self._sources = sources
        self._log = log
        self._files = tuple(source.path for source in sources.each())
        self._read_at = file_versions(self._files)
        self.rules = ActiveRules(rulebook(sources, read_each(sources)))

    async def run(self, asked: asyncio.Event) -> None:
        """Look at the files again and again; read them as soon as `asked` is set."""
        before = self._read_at
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await asked.wait()
            now = await asyncio.to_thread(file_versions, self._files)
            if asked.is_set() or (now == before and now != self._read_at):
                asked.clear()
                self._read_at = now
                await self._reload()
            before = now

    async def _reload(self) -> None:
        try:
            # The parser takes its time, and calls go on.
            reading = await asyncio.to_thread(read_each, self._sources)
        except ConfigError as error:
            self._log.emit(
                RulesRejected(
                    reason=str(error), file=error.path, line=error.line, column=error.column
                )
            )
            return
        self.rules.book = rulebook(self._sources, reading)
        self._log.emit(RulesReloaded(rules=_count(reading)))


def _count(reading: ReadRules) -> int:
    return sum(map(len, reading.values()))
