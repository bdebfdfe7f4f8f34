"""Pins: readers of a job's checkpoints keep them from being deleted while they read. Blocking; runs on threads.

A pin is an object whose name says it all: from which checkpoint on nothing is deleted, and for how long it holds. It
expires by itself, so a reader that died keeps nothing for ever.

    <job>/pins/used                          there were pins: only then are they listed before each deletion
    <job>/pins/<checkpoint>-<seconds>-<id>   nothing of that checkpoint or a later one is deleted

Why no reader loses: it pins the newest checkpoint that it knows, and only then looks which one is the newest now. That
one is dropped later than the pin was written, and the coordinator lists pins after it has dropped a checkpoint and
before it deletes anything of it.

| what happens                          | then                                                                         |
|---------------------------------------|------------------------------------------------------------------------------|
| the reader ends                       | it deletes its pin; what was held back goes with the next deletion           |
| the reader dies                       | its pin expires; the coordinator deletes it                                  |
| the coordinator dies                  | what it held back is found by its successor's sweep, which asks for pins too |
| pins cannot be listed                 | nothing is deleted now                                                       |
| the user deletes the job's checkpoints| pins do not hold that                                                        |
"""

import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths

PIN_S = 600
_NAME = re.compile(r"(\d{1,19})-(\d{1,6})-([0-9a-f]{32})")


@dataclass(frozen=True)
class PinFound:
    key: str
    checkpoint: int
    until_ms: int  # by the store's clock


class CheckpointPin:
    """A reader's. `checkpoint`: from that one on. Use as a context manager, or `release` it; `renew` it from time to
    time where reading may take longer than `seconds`."""

    def __init__(self, store: ObjectStore, paths: Paths, checkpoint: int, seconds: int = PIN_S) -> None:
        """Raises what the store raises, as `InvalidJob` where it may not be written."""
        self._store = store
        self._seconds = seconds
        self._key = paths.pin(f"{checkpoint}-{seconds}-{uuid.uuid4().hex}")
        store.put(paths.pins_used, b"")
        self._written_s = 0.0
        self._write()

    def _write(self) -> None:
        self._store.put(self._key, b"")
        self._written_s = time.monotonic()

    def renew(self) -> None:
        """Does something only when half of its time is over."""
        if time.monotonic() - self._written_s > self._seconds / 2:
            self._write()

    def release(self) -> None:
        self._store.delete([self._key])

    def __enter__(self) -> "CheckpointPin":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def pins_of(store: ObjectStore, paths: Paths) -> list[PinFound]:
    """All that are there, also those whose time is over."""
    if get_or_none(store, paths.pins_used) is None:
        return []
    found = []
    for info in store.list(paths.pins_prefix):
        match = _NAME.fullmatch(info.key.removeprefix(paths.pins_prefix))
        if match is not None:
            checkpoint, seconds, _ = match.groups()
            found.append(PinFound(info.key, int(checkpoint), info.modified_ms + int(seconds) * 1000))
    return found


class PinnedDeletions:
    """A coordinator's: deletions that wait for readers."""

    def __init__(self, store: ObjectStore, paths: Paths, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._paths = paths
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, tuple[str, ...]]] = []  # highest checkpoint of it, and what is to go

    def free(self, keys: Sequence[str], newest: int = 0) -> list[tuple[str, ...]]:
        """What may be deleted now: `keys`, and what has waited before, in order. What may not, waits. `newest`: of the
        checkpoints that are dropped with `keys`; 0: their names tell. No lock is held while the store is asked, and
        what came to wait meanwhile may be younger than the pins that were found."""
        with self._lock:
            if keys:
                self._waiting.append((float(newest) or highest_of(self._paths, keys), tuple(keys)))
            waiting = list(self._waiting)
        pins = pins_of(self._store, self._paths)  # after the checkpoints of `keys` were dropped
        now_ms = self._wall_ms()
        over = [pin.key for pin in pins if pin.until_ms < now_ms]
        if over:
            self._store.delete(over)
        lowest = min((pin.checkpoint for pin in pins if pin.key not in over), default=float("inf"))
        with self._lock:
            left = {id(each) for each in self._waiting}  # of these no other call has taken
            taken = {id(each): each[1] for each in waiting if each[0] < lowest and id(each) in left}
            self._waiting = [each for each in self._waiting if id(each) not in taken]
        return list(taken.values())


def highest_of(paths: Paths, keys: Sequence[str]) -> float:
    """The highest checkpoint whose manifest is among the keys; files alone may be of any."""
    checkpoints = [found[0] for key in keys if (found := paths.checkpoint_of(key)) is not None]
    return float(max(checkpoints)) if checkpoints else _ANY


_ANY = float(1 << 63)  # above every checkpoint, and below no pin at all
