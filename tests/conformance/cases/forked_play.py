"""`play.py` for `kit.prefork`: a forked process need not load the interpreter and `asyncio` first."""

import asyncio
from importlib import import_module
from typing import Any

PROGRAM = "conformance.cases.forked_play"

for _name in ("argparse", "base64", "shlex"):
    import_module(_name)  # what else `play.py` imports


def main() -> None:
    """Play the part that the arguments name."""
    # Loaded here: it counts time from its own start.
    play: Any = import_module("conformance.cases.play")
    asyncio.run(play.main())
