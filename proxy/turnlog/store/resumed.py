"""What a writer that died wrote, and may have told nobody: it is given to the next one once more."""

from turnlog.core.commit import Facts
from turnlog.core.kinds import CommitKind

from .index import Entry, Segment
from .tables import Tables, Txn, last_position, read_segment


def notes_after(
    txn: Txn, tables: Tables, position: int, epoch: int
) -> dict[tuple[bytes, Facts], Entry]:
    """Return an epoch's notes behind `position`, by session and what they say.

    Nothing else tells that two of them are the same; intents and outcomes are found by their call.
    """
    segment = read_segment(txn, tables, Segment(position), last_position(txn, tables))
    own = (entry for entry in segment.entries if entry and entry.link.epoch == epoch)
    return {
        (entry.link.session, entry.facts): entry
        for entry in own
        if entry.facts.kind is CommitKind.NOTE
    }
