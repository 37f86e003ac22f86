"""What lies under `/turnlog/`: answers of turnlog about itself."""

import asyncio
from typing import Final

from turnlog.store.base import Store, StoreError

from .answers import Made, document, problem

_HEALTH: Final = "/turnlog/health"
_READY: Final = "/turnlog/ready"


class Own:
    """Answers for `/turnlog/...`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stopping = False

    async def answer(self, method: str, path: str) -> Made:
        """Return the answer to a request whose path begins with `/turnlog`."""
        if path not in {_HEALTH, _READY}:
            return problem(404, "Not Found", f"turnlog has no page {path!r}", {})
        if method not in {"GET", "HEAD"}:
            return problem(405, "Method Not Allowed", f"{path} takes GET", {})
        if path == _HEALTH:
            return document({"status": "ok"})
        return await self._ready()

    async def _ready(self) -> Made:
        if self.stopping:
            return problem(503, "Service Unavailable", "turnlog is stopping", {})
        try:
            usage = await asyncio.to_thread(self._usage)
        except StoreError as error:
            return problem(503, "Service Unavailable", str(error), {})
        return document({"status": "ready", "commits": usage})

    def _usage(self) -> int:
        with self._store.view() as view:
            return view.usage().commits
