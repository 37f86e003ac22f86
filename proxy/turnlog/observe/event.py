"""What a log event is, and what takes it."""

from enum import IntEnum
from typing import ClassVar, Protocol

from msgspec import Struct


class Level(IntEnum):
    """How much an event matters, in the numbers of the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", gc=False):
    """What every event has. `level` is the event's own and stands on the line by name."""

    level: ClassVar[Level] = Level.INFO

    @property
    def severity(self) -> Level:
        """The level of this very event, where that depends on what it says."""
        return self.level


class Log(Protocol):
    """What takes events."""

    @property
    def tells_content(self) -> bool:
        """Whether calls are logged with short forms of what was asked and answered."""
        ...

    def wants(self, kind: type[Event]) -> bool:
        """Tell whether an event of this kind would be written, to save making one."""
        ...

    def emit(self, event: Event) -> None:
        """Write `event`, if its level is wanted. Never blocks and never raises."""
        ...


def name_of(event: Event | type[Event]) -> str:
    """Return the event's name on the line, as `call.ended`."""
    return str(event.__struct_config__.tag)
