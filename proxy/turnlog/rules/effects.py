"""Name the effect that a call has on the world, by what a rule selects of its arguments."""

import json
from collections.abc import Sequence

from turnlog.core.canon import canonical

from .expression import MAX_SEARCHED_BYTES, UNREADABLE, ExpressionInput, is_search, select


def effect_key(wanted: Sequence[str], args: object, *, size: int) -> bytes:
    """Return what names the effect of a call with these arguments, in one canonical form.

    Empty where nothing does: nothing is selected, nobody can read the arguments, or they are too
    large (`size`, in bytes) to be searched while the call waits.
    """
    if args is UNREADABLE or (size > MAX_SEARCHED_BYTES and any(map(is_search, wanted))):
        return b""
    found = [select(expression, ExpressionInput(args=args)) for expression in wanted]
    if not any(found):
        return b""
    return canonical(json.dumps(found).encode())[1]
