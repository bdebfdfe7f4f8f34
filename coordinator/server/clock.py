"""Clock of a job's runner."""

import time


class SteadyClock:
    """Wall-clock milliseconds that never jump: a reading of the wall clock, then monotonic time."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> int:
        return int((self._offset + time.monotonic()) * 1000)
