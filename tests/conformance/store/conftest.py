"""The contract is held against every engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.store.kit import ENGINES, Engine
from turnlog.store.lmdb import LmdbStore


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]()


@pytest.fixture
async def store(engine: Engine, tmp_path: Path) -> AsyncIterator[LmdbStore]:
    """A store that flushes its indexes after every third commit, so that both halves are read."""
    opened = engine.open(tmp_path / "data", flush_every=3)
    yield opened
    await opened.close()
