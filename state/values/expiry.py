"""Time to live of a keyed state: the time stored with each value, and the rules of expiry. Pure.

An entry of a state with TTL is stored as

    C1 · 45 ('E') or 50 ('P') · write time, 8 bytes, ms · value      clock "event" or "processing"

and without TTL as the value alone. No MessagePack and no pickle begins with C1; a number of entries (`entry_table`)
continues with 00, a value of a later version with 56 ('V'). An entry is expired once `write time + ttl <= now`.

If a program removes the TTL, readers skip the times until entries are rewritten. With a TTL, entries without a time of
the program's clock have the time `since_ms`: the wall clock or, in event time, the subtask's watermark at the restore;
without a watermark, the first time at which a value is judged. docs/state.md has a table of all changes.
"""

import struct
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

Stamped: TypeAlias = tuple[int | None, Any]  # write time, ms, and value; None: no time of the state's clock

_MARKS = {"event": b"\xc1E", "processing": b"\xc1P"}
_time = struct.Struct(">q")
_HEAD = 2 + _time.size


class StoredTtl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    ms: int  # 0: no TTL now, but entries may have times of an earlier TTL
    refresh: str = "on_write"  # or "on_read"
    clock: str = "event"  # or "processing"
    since_ms: int | None = None  # time of entries without a time; None: no such entries, or none was judged yet


class StateClock(Protocol):
    def now_ms(self) -> int:
        """Time of the current row or timer."""
        ...

    def passed_ms(self) -> int:
        """No later row or timer of the same key is judged at an earlier time."""
        ...

    def reached_ms(self) -> int:
        """As `passed_ms`, for all keys of the subtask."""
        ...

    def opened_ms(self) -> int | None:
        """Time of the restore, if known."""
        ...


class Expiry:
    """`stored.ms` 0: entries do not expire, and are written without time."""

    def __init__(self, stored: StoredTtl, clock: StateClock, tell: Callable[[StoredTtl], None]) -> None:
        self.stored = stored
        self.ttl_ms = stored.ms or None
        self.on_read = stored.refresh == "on_read"
        self.keeps_latest = stored.clock == "event"  # out-of-order rows do not shorten a life
        self.now_ms = clock.now_ms
        self.passed_ms = clock.passed_ms
        self.reached_ms = clock.reached_ms
        self.mark = _MARKS[stored.clock]
        self._tell = tell

    def since_ms(self, now_ms: int) -> int:
        since_ms = self.stored.since_ms
        if since_ms is None:
            since_ms = now_ms
            self.stored = msgspec.structs.replace(self.stored, since_ms=now_ms)
            self._tell(self.stored)
        return since_ms

    def time_in(self, data: bytes) -> int | None:
        return _time.unpack_from(data, 2)[0] if data[:2] == self.mark else None

    def encoder(self, encode: Callable[[Any], bytes]) -> Callable[[Stamped], bytes]:
        mark, pack = self.mark, _time.pack

        def encoded(stamped: Stamped) -> bytes:
            ms, value = stamped
            return encode(value) if ms is None else mark + pack(ms) + encode(value)

        return encoded

    def decoder(self, decode: Callable[[bytes], Any]) -> Callable[[bytes], Stamped]:
        mark, read = self.mark, _time.unpack_from

        def decoded(data: bytes) -> Stamped:
            if not is_timed(data):
                return None, decode(data)
            return read(data, 2)[0] if data[:2] == mark else None, decode(data[_HEAD:])

        return decoded


def without_time(data: bytes) -> tuple[int | None, bytes]:
    """Write time (None: no time) and encoded value."""
    return (_time.unpack_from(data, 2)[0], data[_HEAD:]) if is_timed(data) else (None, data)


def is_timed(data: bytes) -> bool:
    return data[:2] in (b"\xc1E", b"\xc1P")


def continued(
    declared: StoredTtl | None, before: StoredTtl | None, restored: bool, opened_ms: int | None
) -> StoredTtl | None:
    """Times of entries of a continued state; None: entries have no times.

    `before`: the checkpoint's description. `restored`: the checkpoint has the state.
    """
    if declared is None:
        return None if before is None else StoredTtl(0, clock=before.clock)
    if not restored:
        return declared
    if before is None or before.clock != declared.clock or not before.ms:
        return msgspec.structs.replace(declared, since_ms=opened_ms)
    return msgspec.structs.replace(declared, since_ms=before.since_ms)
