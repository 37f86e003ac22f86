"""A proxy saves the states of long sessions while it has little else to do."""

from pathlib import Path

from e2e.stores import turnlog
from kit.beside import proxy_beside
from kit.clients import MCP_HEADERS, Client, call, wait_until
from kit.upstreams import RawUpstream
from turnlog.sessions.state.state_at import EVERY


def test_the_state_of_a_long_session_is_saved_before_it_is_requested(tmp_path: Path) -> None:
    with RawUpstream() as upstream, proxy_beside(tmp_path, upstream.url) as proxy:
        with Client(proxy.url) as client:
            for number in range(EVERY // 2 + 1):
                body = call("read", request_id=number)
                client.request("POST", "/s/long/mcp", body, headers=MCP_HEADERS)
        states = proxy.data / "states"
        wait_until(lambda: any(states.glob(f"*/*-{EVERY - 1}-*")), "a state is saved")
        held = turnlog("status", data=proxy.data)
    assert held.returncode == 0
    (line,) = [line for line in held.stdout.splitlines() if line.startswith("states")]
    assert line.split()[1:] != ["0", "B"]
