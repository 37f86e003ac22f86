from pathlib import Path

import pytest

from faults.torture import torture


@pytest.mark.timeout(300)
def test_the_log_explains_what_kills_of_proxy_and_server_left_behind(tmp_path: Path) -> None:
    report = torture(tmp_path, kills=8, seed=11)
    assert report.effects > 0
    assert report.executions > 0
