"""The only place that reads clocks and random bytes; everything else gets them as arguments."""

import os
import time
from collections.abc import Callable

from msgspec import Struct


class Clock(Struct, frozen=True):
    """Wall clock and monotonic clock in ns; `entropy(n)` returns n random bytes."""

    wall: Callable[[], int] = time.time_ns
    monotonic: Callable[[], int] = time.monotonic_ns
    entropy: Callable[[int], bytes] = os.urandom
