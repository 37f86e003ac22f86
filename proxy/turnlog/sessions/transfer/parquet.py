"""Rows of the log as a Parquet file. Needs pyarrow, the extra `turnlog[parquet]`."""

from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import IO, Any, Final

import msgspec
from msgspec import structs

from turnlog.sessions.rows import Row

# pyarrow has no types, and importing it this way needs no stubs.
pa: Final[Any] = import_module("pyarrow")
pq: Final[Any] = import_module("pyarrow.parquet")
_TEXT, _COUNT, _TRUTH = pa.string(), pa.int64(), pa.bool_()
_PAYLOAD = pa.struct({"kept": _TEXT, "redacted": _TRUTH, "size": _COUNT, "text": _TEXT})
_OPERATION = pa.struct(
    {
        **dict.fromkeys(("field", "op", "key", "to", "evidence"), _TEXT),
        "maybe": _TRUTH,
    }
)
_SOURCE = pa.struct({"session": _TEXT, "seq": _COUNT, "evidence": _TEXT})
_UPSTREAM = pa.struct({"protocol": _TEXT, "code": _COUNT, "http_status": _COUNT})
_TYPES = {
    **dict.fromkeys(
        ("seq", "intent_seq", "turn", "step", "attempt", "leg", "retry_after_ms", "epoch"), _COUNT
    ),
    **dict.fromkeys(("bytes_in", "bytes_out"), _COUNT),
    **dict.fromkeys(("input", "output"), _PAYLOAD),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "duration_ms": pa.float64(),
    "delta": pa.list_(_OPERATION),
    **dict.fromkeys(("flags", "provenance_reasons"), pa.list_(_TEXT)),
    "discarded": _TRUTH,
    "tainted_by": pa.list_(_SOURCE),
    "upstream": _UPSTREAM,
}
"""Types of the columns that are no texts."""
_RENAMED = {"tool_result": "has_result"}
"""`null` or absent in JSON; a column of Parquet tells the two apart by a truth value."""
SCHEMA = pa.schema(
    {_RENAMED.get(name, name): _TYPES.get(name, _TEXT) for name in Row.__struct_fields__}
    | {"has_result": _TRUTH}
)


class ParquetWriter:
    """Writes pages of rows, each as a row group."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._writer = pq.ParquetWriter(sink, SCHEMA, compression="zstd")

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        if rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist([*map(_record, rows)], SCHEMA))

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _record(row: Row) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.to_builtins(row)
    record["has_result"] = "tool_result" not in record
    record["delta"] = [structs.asdict(operation) for operation in row.delta]
    record["timestamp"] = datetime.fromisoformat(row.timestamp)
    return record
