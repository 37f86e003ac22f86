from pathlib import Path

import pytest

from faults.purges import purges
from faults.torture import Manner, stall, torture


@pytest.mark.promise("REC-27")
@pytest.mark.timeout(300)
def test_the_log_explains_what_kills_of_proxy_and_server_left_behind(tmp_path: Path) -> None:
    report = torture(tmp_path, kills=8, seed=11)
    assert report.effects > 0
    assert report.executions > 0


@pytest.mark.promise("TWICE-29")
@pytest.mark.timeout(300)
def test_nothing_happens_twice_unseen_where_processes_are_stopped_and_agents_give_up(
    tmp_path: Path,
) -> None:
    table = {found.manner: found for found in stall(tmp_path, stalls=12, seed=11)}
    assert all(found.executions > 0 for found in table.values())
    assert table[Manner.WAITS].given_up == 0


@pytest.mark.promise("STORE-16", "STORE-17")
@pytest.mark.timeout(300)
def test_nothing_is_left_of_sessions_whose_purges_were_killed_beside_calls(tmp_path: Path) -> None:
    found = purges(tmp_path, rounds=2, seed=7)
    assert found.calls > 0
