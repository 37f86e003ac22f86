"""The programs of examples/, run as a reader would, print what they are there to show."""

from pathlib import Path
from typing import Final

import pytest

from conformance.matrix import rig

pytestmark = pytest.mark.matrix

EXAMPLES: Final = rig.HERE.parents[2] / "examples"
FOUND: Final = """\
quote: rate_limited, again after {wait} s
quote: 12.50
place_order: connection_lost, so look first
place_order: order 7 is placed
refund: given up, permission_denied
"""
ADVISED: Final = """\
quote: rate_limited, again after 0.2 s
quote: the server's own answer
place_order: connection_lost, so look first
find_order: the server's own answer
cancel_order: raised: connection_lost, so look first
refund: given up, permission_denied
done
"""
REMEMBERED: Final = """\
sees: order 7 is not placed
sees: order 7 is not placed, order 8 is not placed
sees: order 7 is not placed, order 8 is not placed, order 9 is not placed
evicts: order 7 is not placed
lost to its budget: what find_order said; it was: order 7 is not placed
still lost: 0; calls: [3]
"""
PROGRAMS: Final = {
    "with_mcp.py": ("examples", FOUND.format(wait=0.2)),
    "with_httpx.py": ("examples", FOUND.format(wait=1.0)),
    "with_langchain.py": ("langchain", FOUND.format(wait=0.2)),
    "with_agents.py": ("examples", ADVISED),
    "with_recall.py": ("examples", REMEMBERED),
}


@pytest.mark.promise("OUT-29")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_decides_by_what_turnlog_says(program: str, tmp_path: Path) -> None:
    environment, wanted = PROGRAMS[program]
    python = rig.BUILD / environment / "bin" / "python"
    with (
        rig.printing_urls([python, EXAMPLES / "shop.py"], tmp_path) as upstreams,
        rig.turnlog(upstreams, tmp_path, rules=(EXAMPLES / "rules.yaml",)) as (url,),
    ):
        printed = rig.finish([python, EXAMPLES / program, url], PYTHONPATH=str(rig.PACKAGE))
    assert printed == wanted


def test_every_program_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("with_*.py")} == PROGRAMS.keys()
