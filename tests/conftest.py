"""One proxy for all tests of a module that ask for a rig, each in a session of its own."""

from collections.abc import Iterator

import pytest

from kit.beside import Rig, proxy_beside
from kit.upstreams import RawUpstream


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        RawUpstream() as upstream,
        proxy_beside(tmp_path_factory.mktemp("proxy"), upstream.url) as proxy,
    ):
        yield Rig(upstream, proxy)


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.fresh()
    return shared
