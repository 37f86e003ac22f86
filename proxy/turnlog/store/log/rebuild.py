"""Make the derived tables anew from the log, beside whoever reads and writes."""

from pathlib import Path

from turnlog.store import folder
from turnlog.store.base import StoreDamaged

from . import structure
from .environment import close_environment, open_environment, write_transaction
from .flush import write_segment
from .index import Segment
from .index_check import SLICE
from .keys import WATERMARK
from .tables import NAMES, Tables, last_position, read_segment
from .translate_errors import translated


def rebuild(data: Path) -> None:
    """Make the derived tables of the store in folder `data` anew. Blocks, raises `StoreError`.

    In one transaction, so that nobody meets half of them: the other writers wait.
    """
    folder.check(data)
    folder.check_log(data)
    path = data / "log"
    env = open_environment(path, readonly=False, create=False, tables=len(NAMES))
    try:
        with translated("rebuild the indexes of", data):
            if found := structure.problems(env, path / "data.mdb"):
                raise StoreDamaged(
                    f"{str(path / 'data.mdb')!r} is damaged: {found[0]}; its indexes cannot be made "
                    "anew in place; restore the folder from a backup"
                )
            tables = Tables(env, create=True)
            with write_transaction(env) as txn:
                for table in tables.derived:
                    txn.drop(table, delete=False)
                txn.delete(WATERMARK, db=tables.meta)
                last = last_position(txn, tables)
                for after in range(0, last, SLICE):
                    end = min(after + SLICE, last)
                    segment = read_segment(txn, tables, Segment(after), end)
                    write_segment(txn, tables, segment, {})
            env.sync(True)
    finally:
        close_environment(env)
