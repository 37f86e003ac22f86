"""The buckets that hold content of sessions under a hold."""

from collections.abc import Iterable

from turnlog.core.commit import CommitBody
from turnlog.store.blobs import Bucket, bucket_of

from .view import View


class HeldContent:
    """Remembers which buckets the held sessions use, so that each commit is read once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, set[Bucket]]] = {}
        """Of each held session the newest seq that was read, and the buckets up to it."""

    def buckets(self, view: View) -> frozenset[Bucket]:
        """Return the buckets with content of held sessions. Raises `StoreError`."""
        held = view.held()
        self._known = {s: known for s, known in self._known.items() if s in held}
        return frozenset[Bucket]().union(*[self._of(view, session) for session in held])

    def _of(self, view: View, session: bytes) -> set[Bucket]:
        seq, found = self._known.get(session, (-1, set[Bucket]()))
        for commit in view.readable_commits(session, after=seq):
            seq = commit.link.seq
            found |= buckets_of(view, commit.body)
        self._known[session] = (seq, found)
        # What came after it was packed lies beside its log, until it goes on.
        return found | _buckets(view.late_contents(session))


def buckets_of(view: View, body: CommitBody | None) -> set[Bucket]:
    """Return the buckets in which the payloads of a commit were put."""
    named = filter(None, (body.input_blob, body.output_blob) if body is not None else ())
    return _buckets(map(view.handle_here, named))


def _buckets(handles: Iterable[bytes]) -> set[Bucket]:
    return {bucket for handle in handles if (bucket := bucket_of(handle)) is not None}
