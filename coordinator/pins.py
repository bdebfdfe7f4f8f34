"""Pins, by which readers keep checkpoints from being deleted. Blocking; runs on threads.

A pin is an object whose name holds the first protected checkpoint and the duration; a dead reader's pin expires.

    <job>/pins/used                          there were pins: only then are they listed before each deletion
    <job>/pins/<checkpoint>-<seconds>-<id>   nothing of that checkpoint or a later checkpoint is deleted

A reader pins the newest known checkpoint, and only then looks for the newest. The coordinator lists pins after dropping
a checkpoint and before deleting files, so no reader loses files. If pins cannot be listed, nothing is deleted.
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
MOST_WAITING = 100_000  # keys; the hourly sweep finds the others again
_NAME = re.compile(r"(\d{1,19})-(\d{1,6})-([0-9a-f]{32})")


@dataclass(frozen=True)
class PinFound:
    key: str
    checkpoint: int
    until_ms: int  # by the store's clock


class CheckpointPin:
    """Use as a context manager, or call `release`.

    Call `renew` from time to time if reading may take longer than `seconds`.
    """

    def __init__(self, store: ObjectStore, paths: Paths, checkpoint: int, seconds: int = PIN_S) -> None:
        """Raises errors of the store, such as `InvalidJob` without write permission."""
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
        if time.monotonic() - self._written_s > self._seconds / 2:
            self._write()

    def release(self) -> None:
        self._store.delete([self._key])

    def __enter__(self) -> "CheckpointPin":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def pins_of(store: ObjectStore, paths: Paths) -> list[PinFound]:
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
    def __init__(self, store: ObjectStore, paths: Paths, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._paths = paths
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, tuple[str, ...]]] = []  # highest checkpoint of each deletion, and the keys

    def free(self, keys: Sequence[str], newest: int = 0) -> list[tuple[str, ...]]:
        """Returns the keys that may be deleted now, in order, with keys of earlier calls.

        `newest`: the newest checkpoint dropped with `keys`; 0: unknown. Keys that arrive during the listing
        may be younger than the pins found.
        """
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
            left = {id(each) for each in self._waiting}  # not taken by another call
            taken = {id(each): each[1] for each in waiting if each[0] < lowest and id(each) in left}
            self._waiting = [each for each in self._waiting if id(each) not in taken]
            while sum(len(each) for _, each in self._waiting) > MOST_WAITING:
                self._waiting.pop()
        return list(taken.values())


def highest_of(paths: Paths, keys: Sequence[str]) -> float:
    """Returns the highest checkpoint of manifests; a file may belong to any."""
    found = [paths.checkpoint_of(key) for key in keys]
    checkpoints = [each[0] for each in found if each is not None]
    return float(max(checkpoints)) if len(checkpoints) == len(found) else _ANY


_ANY = float(1 << 63)  # above every checkpoint, below "no pin"
