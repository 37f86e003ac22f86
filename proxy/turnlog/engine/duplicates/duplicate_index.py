"""Finds earlier calls that are the same in the store, whichever process made them."""

from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from typing import Final

from msgspec import structs

from turnlog.core.canon import canonical
from turnlog.core.kinds import Effect
from turnlog.exchange.duplicates import Likeness, NeverTwice
from turnlog.observe.clock import Clock
from turnlog.observe.events import Log, StoreFailed
from turnlog.record.attempt import NO_LINKS, Ask, DuplicateLinks, source_of
from turnlog.record.own_answers import OwnAnswer, retold_answer
from turnlog.record.recorder import OFF_LOOP
from turnlog.store.base import ALIAS_SEPARATOR, Corrupt, StoreError
from turnlog.store.lmdb import LmdbStore
from turnlog.store.read.view import View

from .duplicate_match import DuplicateMatch, commits_of, damaged, earlier_of, source_in

_MOST: Final = 2_048
"""Calls of others that are remembered because their answers arrived by way of this process."""

_SAME: Final = Likeness.SAME


class DuplicateIndex:
    """Earlier calls by the keyed digests in their intents. A store that cannot be read stops no call."""

    def __init__(self, store: LmdbStore, limits: NeverTwice, clock: Clock, log: Log) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._log = log
        self._arrived: OrderedDict[bytes, None] = OrderedDict()
        """Calls of earlier processes, or others, whose answers arrived by way of this one."""

    def linked(self, ask: Ask, before: Sequence[str] = ()) -> Ask:
        """Return a call with what finds one that asks the same: where its session is known, or it has
        a key. `before` are the names of the sessions that its own replaces."""
        aliases = ask.session.aliases
        named = aliases[0] if aliases and ask.is_named else ""
        if not (named or ask.key) or not (ask.complete and ask.says_all) or ask.leg:
            return ask
        scheme, form = canon = ask.canonical or canonical(ask.arguments)
        links = self._links(ask, named, before, b"%b\0%b" % (scheme.encode(), form))
        # A large form would lie beside the input for as long as the call runs.
        kept = canon if len(form) <= OFF_LOOP else None
        return structs.replace(ask, canonical=kept, links=links)

    def _links(self, ask: Ask, named: str, before: Sequence[str], asks: bytes) -> DuplicateLinks:
        """Return the links of a call with the input `asks`, in the session that is `named`, if any."""
        tool = f"{ask.target}\0{ask.tool}\0{ask.method}"
        key = f"{ask.principal}\0{tool}\0{ask.key}" if ask.key else ""
        input_digest = sha256(asks).digest()
        links = DuplicateLinks()
        if named:
            session = named.rpartition(ALIAS_SEPARATOR)[0]  # without the principal
            links = structs.replace(
                links,
                same=self._digest("call", f"{named}\0{tool}", input_digest),
                anyone=self._digest("anyone's call", f"{session}\0{tool}", input_digest),
                before=tuple(self._digest("call", f"{b}\0{tool}", input_digest) for b in before),
            )
        if key:
            links = structs.replace(
                links,
                key=self._digest("key to target", key),
                keyed_input=self._digest("key to target, input", key, input_digest),
            )
        return self._with_former(links, ask, asks)

    def _with_former(self, links: DuplicateLinks, ask: Ask, asks: bytes) -> DuplicateLinks:
        """Add the links by which 0.1 would have found the call."""
        former, tool = ask.former, f"{ask.server}\0{ask.tool}\0{ask.method}"
        if links.same and former.session:
            whose = f"{former.session}\0{tool}"
            links = structs.replace(links, former_same=self._digest("same call", whose, asks))
        if links.key:
            key = f"{former.principal}\0{tool}\0{ask.key}"
            links = structs.replace(
                links,
                former_key=self._digest("key", key),
                former_keyed_input=self._digest("key and input", key, asks),
            )
        return links

    def guessed(self, ask: Ask) -> bytes:
        """Return the link by which a call in a guessed session finds an equal one; empty for none."""
        guess = ask.guess
        if guess is None or not guess.pair or ask.leg or not (ask.complete and ask.says_all):
            return b""
        scheme, form = ask.canonical or canonical(ask.arguments)
        whose = f"{guess.pair}\0{guess.beside}\0{ask.target}\0{ask.tool}\0{ask.method}"
        asks = sha256(b"%b\0%b" % (scheme.encode(), form)).digest()
        return self._digest("guessed call", whose, asks)

    def told(self, call: bytes) -> bytes:
        """Return what finds that somebody was told that nobody knows what a call did."""
        return self._digest("told of unknown", "", call)

    def _digest(self, what: str, whose: str, value: bytes = b"") -> bytes:
        name = f"{what}\0{whose}\0".encode("utf-8", "surrogatepass")
        return self._store.keyed(name + value)

    @contextmanager
    def view(self, ask: Ask) -> Generator[View | None]:
        """Open one snapshot for all that is looked up of a call; `None` where it has no links, or the
        store cannot be read."""
        view = None
        try:
            view = self._store.view() if ask.links is not NO_LINKS else None
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
        with view if view is not None else nullcontext():
            yield view

    def find(
        self,
        view: View | None,
        link: bytes,
        links: DuplicateLinks,
        *,
        keyed: bool,
        likeness: Likeness = _SAME,
    ) -> DuplicateMatch | None:
        """Return the newest call with a link."""
        if view is None:
            return None
        try:
            return self._read(view, link, links, keyed=keyed, likeness=likeness)
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return None

    def _read(
        self, view: View, link: bytes, links: DuplicateLinks, *, keyed: bool, likeness: Likeness
    ) -> DuplicateMatch | None:
        try:
            intent = view.linked(link)
            if intent is None:
                return None
            stored = intent.body.links if intent.body is not None else ()
            if likeness is Likeness.OTHERS and links.same in stored:
                return None  # it is the same principal's
            source = source_of(stored)
            if source:
                intent = source_in(view, source)
            commits = commits_of(view, intent)
        except Corrupt as error:
            # Its effect may have happened: of one damaged record less is known, not nothing.
            self._log.emit(StoreFailed(reason=str(error)))
            return damaged(link, keyed=keyed, warned=self._is_warned(view, link))
        if not keyed and _has_other_key(links, stored):
            return None  # by another key its caller says that it is another call
        now, drain = self._clock.wall(), self._limits.drain
        earlier = earlier_of(commits, now, view.is_alive, drain)
        arrived = intent.facts.call in self._arrived
        earlier = structs.replace(
            earlier,
            delivered=earlier.delivered or arrived,
            settling=earlier.settling and not arrived,
            same_input=not keyed or _same_input(links, stored),
            likeness=likeness,
            warned=self._is_warned(view, intent.facts.call),
        )
        return DuplicateMatch(
            earlier=earlier,
            call=intent.facts.call,
            keyed=keyed,
            by_source=bool(source),
            commits=commits,
        )

    def position(self, view: View | None, ask: Ask) -> int | None:
        """Return how far the log goes in which earlier calls are looked for; `None` where none are."""
        if view is None or ask.effect is Effect.READ:
            return None
        try:
            return view.last
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return None

    def answer(self, found: DuplicateMatch) -> OwnAnswer | None:
        """Return the whole answer to an earlier call; `None` where it is not kept so."""
        outcome = found.outcome
        if outcome is None or outcome.body is None or not outcome.body.output_blob:
            return None
        try:
            with self._store.view() as view:
                blob = view.blob(outcome.body.output_blob)
        except StoreError as error:
            self._log.emit(StoreFailed(reason=str(error)))
            return None
        if blob is None or blob.redacted or blob.cut:
            return None
        return retold_answer(outcome.facts, blob.data)

    def arrived(self, call: bytes) -> None:
        """Remember that an answer arrived, until the note of it is on disk."""
        self._arrived[call] = None
        if len(self._arrived) > _MOST:
            self._arrived.popitem(last=False)

    def forget_arrival(self, call: bytes) -> None:
        """Leave it to the notes again whether an answer arrived."""
        self._arrived.pop(call, None)

    def _is_warned(self, view: View, call: bytes) -> bool:
        """Return whether somebody was told that nobody knows what a call did."""
        try:
            return view.linked(self.told(call)) is not None
        except Corrupt:
            return True  # that much can be read of it


def _has_other_key(links: DuplicateLinks, stored: Sequence[bytes]) -> bool:
    """Return whether a call that was found by what it asks had a key, and not the one of `links`."""
    if not links.key or links.key in stored or links.former_key in stored:
        return False
    # Beside those that tell what it asks, only one with a key has links.
    return not {links.same, links.anyone, links.former_same}.issuperset(stored)


def _same_input(links: DuplicateLinks, stored: Sequence[bytes]) -> bool:
    return links.keyed_input in stored or links.former_keyed_input in stored
