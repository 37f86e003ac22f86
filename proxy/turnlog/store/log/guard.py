"""What readers call: nothing but a `StoreError` leaves it."""

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from turnlog.store.folder import FAILURES, explained, translated


class _Reading(Protocol):
    @property
    def data(self) -> Path: ...


S = TypeVar("S", bound=_Reading)
P = ParamSpec("P")
R = TypeVar("R")


def guarded(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return `method` with what `translated` does around it, which takes ten times as long."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except FAILURES as error:
            raise explained("read", self.data, error) from error

    return call


def guarded_iterator(
    method: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[S, P], Iterator[R]]:
    """Return a generator method with `translated` around all that it does."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        with translated("read", self.data):
            yield from method(self, *args, **kwargs)

    return call
