"""A recent position of a log, stored beside the log: where the search for the log's end begins.

The hint decides nothing. A missing, old or wrong hint costs requests: `find_head` reads the log itself from the hint
upwards until a record is absent, and the next put-if-absent decides. The writer of a log rewrites the hint now and
then, after the record and off its path; a failed write is harmless.
"""

import contextlib

import msgspec

from barrier_runtime.coordinator.log.records import NO_RECORD
from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none

EVERY = 8  # records between two writes of the hint
READ_AHEAD = EVERY + 1  # positions from the hint on that are read side by side


class _Hint(msgspec.Struct):
    position: int


_DECODER = msgspec.json.Decoder(_Hint)


class HeadHint:
    """The hint of one log, under `key`. Blocking."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._written = NO_RECORD

    def read(self) -> int:
        """The position that the hint names; `NO_RECORD` if there is no hint, or nothing that is one."""
        try:
            data = get_or_none(self._store, self._key)
            return NO_RECORD if data is None else max(NO_RECORD, _DECODER.decode(data).position)
        except (BarrierRuntimeError, OSError, msgspec.MsgspecError):
            return NO_RECORD  # trouble of the store shows in the reading of the log itself

    def follow(self, position: int) -> None:
        """The record at `position` is there: store that, if the hint is `EVERY` records behind."""
        if position < self._written + EVERY:
            return
        self._written = position
        with contextlib.suppress(BarrierRuntimeError, OSError):  # an older hint costs requests, and nothing else
            self._store.put(self._key, msgspec.json.encode(_Hint(position)))
