"""What a writer is asked for besides drafts."""

from enum import StrEnum

from msgspec import Struct

from turnlog.core.commit import Commit


class Errand(StrEnum):
    """What a writer does behind what was submitted before."""

    FLUSH = "flush"
    RECOVER = "recover"
    EXPIRE = "expire"


class Closed(Struct, frozen=True, array_like=True, gc=False):
    """The attempts that an errand closed."""

    commits: list[Commit] = []
    """Their outcomes."""
    epochs: int = 0
    """How many writers had died."""
