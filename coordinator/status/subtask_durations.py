"""Durations of every subtask in a checkpoint, packed for the history. Pure.

The history is rewritten after each checkpoint; a packed subtask takes 10 to 30 bytes:

    version (1 byte), then zlib of: count, and a column per field of `_FIELDS`, subtasks in the order of their ids

Bounds: the `MOST` slowest subtasks of a checkpoint; `MOST_TOGETHER` of a job's newest checkpoints. So a job of up to
160 subtasks has all subtasks of the last 100 checkpoints.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from operator import attrgetter

from barrier_runtime.coordinator.status.status import CheckpointStatus, SubtaskPhases
from barrier_runtime.coordinator.wire.messages import Ack, SubtaskId
from barrier_runtime.state.versioned import Format

MOST = 4_096
MOST_TOGETHER = 16_384
_VERSION = 1
_TENTHS = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms", "precommit_ms", "upload_ms")  # of a millisecond
_FIELDS = ("chain", "subtask", "ack_ms", *_TENTHS, "rows", "new_bytes")
_FORMAT = Format("phase times of subtasks", _VERSION, damaged="they are shown to people; nothing else depends on them")
_COUNT = struct.Struct("<I")
_TOP = (2.0**32 - 1) / 10  # ms


def packed(acks: Mapping[SubtaskId, Ack], acked_ms: Mapping[SubtaskId, int], triggered_ms: int) -> bytes:
    if not acks:
        return b""
    ids: Sequence[SubtaskId] = list(acks)
    if len(ids) > MOST:
        ids = nlargest(MOST, ids, key=acked_ms.__getitem__)
    ids = sorted(ids)
    times = [acks[each].times for each in ids]
    columns: list[list[int]] = [
        [each.chain for each in ids],
        [each.index for each in ids],
        [max(0, acked_ms[each] - triggered_ms) for each in ids],
        *(_tenths(map(attrgetter(name), times)) for name in _TENTHS),
        [each.rows for each in times],
        [new_bytes(acks[each]) for each in ids],
    ]
    flat = chain.from_iterable(columns)
    return bytes((_VERSION,)) + zlib.compress(_COUNT.pack(len(ids)) + _layout(len(ids)).pack(*flat), 1)


def _tenths(values: Iterable[float]) -> list[int]:
    return [round(10 * value) if 0.0 < value < _TOP else round(10 * _TOP) if value >= _TOP else 0 for value in values]


def unpacked(data: bytes, most: int = MOST) -> list[SubtaskPhases]:
    """Raises `InvalidJob` for another version, `Corrupt` for damage."""
    if not data:
        return []
    try:
        _FORMAT.check(data[0])
        raw = zlib.decompress(data[1:])
        (count,) = _COUNT.unpack_from(raw)
        flat = _layout(count).unpack_from(raw, _COUNT.size)
    except (zlib.error, struct.error) as error:
        raise _FORMAT.unreadable(error) from error
    columns = {name: flat[at * count : (at + 1) * count] for at, name in enumerate(_FIELDS)}
    slowest = nlargest(most, range(count), key=columns["ack_ms"].__getitem__)
    return [
        SubtaskPhases(**{name: column[at] / 10 if name in _TENTHS else column[at] for name, column in columns.items()})
        for at in slowest
    ]


def all_subtasks(record: CheckpointStatus, most: int = MOST) -> list[SubtaskPhases]:
    full = {(each.chain, each.subtask) for each in record.subtasks}
    others = (each for each in unpacked(record.phases, most) if (each.chain, each.subtask) not in full)
    return [*record.subtasks, *others][:most]


def new_bytes(ack: Ack) -> int:
    """Includes rows in flight."""
    keyed = sum(each.keyed.new_bytes for each in ack.operators if each.keyed is not None)
    return keyed + sum(each.file.size for snapshot in ack.operators for each in snapshot.in_flight)


def _layout(count: int) -> struct.Struct:
    return struct.Struct(f"<{count * (len(_FIELDS) - 2)}I{count * 2}Q")
