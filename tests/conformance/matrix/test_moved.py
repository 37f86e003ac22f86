"""The example of ten steps on the reference filesystem server, killed and finished on another store."""

from pathlib import Path

import pytest

from conformance.matrix import rig
from kit.ten_steps import finished

pytestmark = pytest.mark.matrix


@pytest.mark.promise("STORE-20")
@pytest.mark.parametrize("seed", range(6))
def test_a_task_on_the_reference_server_finishes_elsewhere_and_does_nothing_twice(
    tmp_path: Path, seed: int
) -> None:
    package = rig.node_package("@modelcontextprotocol/server-filesystem")
    printed = finished(tmp_path, [rig.node(), package / "dist" / "index.js"], seed)
    assert [line.partition(":")[0] for line in printed] == [f"step {n}" for n in range(1, 11)]
    assert not [line for line in printed if "failed" in line]
