"""Fold sessions on while nobody asks, a little at a time, so that whoever asks finds states saved."""

from itertools import islice, takewhile
from typing import Final

from turnlog.core.commit import Commit
from turnlog.core.state.fold import fold
from turnlog.core.state.session_state import State, encode_state
from turnlog.store.base import StoreError, View
from turnlog.store.states import SavedStates

from .state_at import EVERY, nearest

AT_ONCE: Final = 128
"""Commits that one step folds: some 2 ms."""
_LOOKED_AT: Final = 256
"""Sessions that one look takes in, the most recently active first."""


class Saving:
    """Knows which sessions have commits that no saved state comes near to. Not thread-safe."""

    def __init__(self, saved: SavedStates) -> None:
        self._saved = saved
        self._seen = 0
        self._due: dict[bytes, int] = {}
        """The seq up to which each session is to be folded."""
        self._state: tuple[bytes, State] | None = None
        """The session that was folded last, and how far it has come."""
        self._unsaved: set[bytes] = set()
        """Sessions whose states cannot be saved: they are too large, or there is no place."""

    @property
    def is_due(self) -> bool:
        """Whether there is something to fold."""
        return bool(self._due)

    def look(self, view: View) -> None:
        """Take in which sessions have grown since the last look."""
        rows = takewhile(lambda row: row.position > self._seen, view.sessions())
        for row in islice(rows, _LOOKED_AT):
            last = (row.head_seq + 1) // EVERY * EVERY - 1
            if row.session not in self._unsaved and last > self._kept(row.session, last):
                self._due[row.session] = last
        self._seen = view.last

    def step(self, view: View) -> None:
        """Fold a few commits of a session that is due, and save the state where one belongs.

        A session that cannot be read is due again when it has grown. Raises `StoreError`.
        """
        session, last = next(iter(self._due.items()))
        try:
            over = self._fold(view, session, last)
        except StoreError:
            del self._due[session]
            raise
        if over:
            del self._due[session]

    def _fold(self, view: View, session: bytes, last: int) -> bool:
        """Fold a few commits of a session; tell whether that was all."""
        state = self._taken_up(view, session, last)
        most = min(AT_ONCE, EVERY - (state.seq + 1) % EVERY, last - state.seq)
        commits = list(islice(view.commits(session, after=state.seq), most))
        if not commits:
            return True
        state = fold(state, commits)
        self._state = (session, state)
        if (state.seq + 1) % EVERY == 0 and not self._save(state, commits[-1]):
            self._unsaved.add(session)
            return True
        return state.seq >= last

    def _save(self, state: State, newest: Commit) -> bool:
        return self._saved.save(newest.link.session, state.seq, newest.hash, encode_state(state))

    def _taken_up(self, view: View, session: bytes, last: int) -> State:
        if self._state is not None and self._state[0] == session and self._state[1].seq < last:
            return self._state[1]
        return nearest(view, self._saved, session, last)

    def _kept(self, session: bytes, last: int) -> int:
        """Return the seq of the newest state that is saved, without a look into it."""
        return (
            next((found.seq for found in self._saved.newest(session, last)), -1)
            if last > 0
            else last
        )
