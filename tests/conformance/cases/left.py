"""What still differs from a case's expectations, and why: nothing else may.

`seen` is what is there instead, so that an entry which has become wrong fails as well. The reasons
that begin with "later" go when that is built; the others stay: there turnlog means to differ.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Left(Struct, frozen=True):
    """One difference that is known."""

    seen: str
    why: str


_LOCK: Final = (
    "only what differs from `turnlog.lock` sets the flag, and nothing is pinned here;"
    " `tools.listed` counts the change"
)
_WATCHED: Final = "drains and joins are for calls with a named effect"
_DRAIN: Final = "an abandoned call with a named effect runs on"
_LAST: Final = "views take the last outcome, here the late one"
_REPEAT: Final = "after a delivered answer the same call is a new call"

_MAY_HAVE_RUN: Final = Left(
    "executed maybe",
    "a tool that says it failed, or an internal error, may have done its work",
)
_INTERNAL: Final = Left(
    "upstream_internal", "-32603 is no fault of the request, it is an internal error"
)
_UNREACHED: Final = "a failure to connect has the retry class `safe`, so that a rule may repeat it"
_TO_THE_END: Final = "a row says how the call ended, here on the resuming stream"

LEFT: Final[Mapping[str, Mapping[str, Left]]] = {
    "C13": {"record: no flag changed_definition": Left("", _LOCK)},
    "C15": {
        "upstream: requests abandoned": Left("0 instead of 1", _DRAIN),
        "call: error": Left("ok", _LAST),
        "call: outcome_known": Left("executed yes", _LAST),
    },
    "C17": {
        "record: no flag late": Left("", _WATCHED),
        "record: no flag repeat_of_unknown": Left("", _WATCHED),
    },
    "C19": {
        "record: flag malformed": Left("", "an error that is no JSON-RPC is flagged"),
    },
    "C33": {
        "record: no flag null_result": Left(
            "", "content null is a value where structuredContent holds one"
        )
    },
    "C35": {
        "call: error": Left("ok", _TO_THE_END),
        "call: outcome_known": Left("executed yes", _TO_THE_END),
    },
    "C39": {"nullid: error": _INTERNAL, "nullid: outcome_known": _MAY_HAVE_RUN},
    "C45": {
        "bad: outcome_known": _MAY_HAVE_RUN,
        "record: flag tainted_out": Left(
            "", "the result of a call that used tainted values is tainted"
        ),
    },
    "C55": {"e500: error": _INTERNAL},
    "C63": {
        "gone: error": Left("ok", "a 204 is a value unless a rule expects content"),
        "empty: error": Left(
            "ok", "nothing forbids a plain tool an empty body, so it is flagged only"
        ),
    },
    "C75": {
        "record: no flag unrecorded": Left(
            "", "content is compressed, so that all of this finds room"
        )
    },
    "C77": {
        "replay: outcome_known": _MAY_HAVE_RUN,
        "record: no flag repeat_of_unknown": Left("", _REPEAT),
    },
    "C79": {
        "record: attempts": Left("2 instead of 1", _UNREACHED),
        "record: flag retried": Left("", _UNREACHED),
    },
    "C81": {
        "upstream: requests abandoned": Left("0 instead of 2", _DRAIN),
        "bad: outcome_known": _MAY_HAVE_RUN,
        **{f"{name}: error": Left("ok", _LAST) for name in "bc"},
        **{f"{name}: outcome_known": Left("executed yes", _LAST) for name in "bc"},
    },
}
