"""One proxy for all tests of a module that ask for a rig, each in a session of its own."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from kit.beside import Rig, proxy_beside
from kit.upstreams import RawUpstream

# How long an example takes says how busy the machine is. The same examples come in each run, so that
# no change is blamed for what another one let in: `make torture` looks for new ones.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("new", settings.get_profile("same"), derandomize=False, print_blob=True)
settings.load_profile("same")


def _ignore(*_: object) -> None: ...


for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        # Under `nohup`, or in the background of a shell without job control (POSIX, 2.11), signals are
        # ignored, and processes under test would inherit that. A handler that does nothing ignores
        # them here, and exec resets it to the default (POSIX, exec).
        signal.signal(_number, _ignore)


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
