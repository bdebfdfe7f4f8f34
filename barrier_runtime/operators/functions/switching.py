"""Rows of broadcast inputs with `switch="barrier"`: valid after the same barrier in all subtasks.
Design: docs/design/broadcast-state.md.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby

import msgspec
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Capture
from barrier_runtime.operators.stored_streams import batches_of
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import SWITCHES, OperatorSnapshot, value_format
from barrier_runtime.state.versioned import VersionedDecoder

_RESTORED = 0  # in place of a barrier: rows became valid in a restore
_ROWS = f"{SWITCHES}-rows"  # snapshot value of subtask 0


class _Switches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    waiting: int
    barriers: str  # digest of the barriers after which rows became valid
    version: int = 1


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`parts`: input, rows as an Arrow IPC stream, and their earliest emission time (ns)."""

    parts: tuple[tuple[str, bytes, int], ...]
    version: int = 1


_SWITCHES = VersionedDecoder(value_format("{}: its switches at barriers"), msgspec.msgpack.Decoder(_Switches))
_STORED = VersionedDecoder(value_format("{}: its rows that wait for a barrier"), msgspec.msgpack.Decoder(_Rows))


class WaitingRows:
    def __init__(self, where: str, subtask: int, inputs: Collection[str], restored: Sequence[OperatorSnapshot]) -> None:
        self._subtask = subtask
        self._waiting: list[tuple[str, Batch]] = []
        self.due: list[tuple[str, Batch]] = []
        self._barriers = _barriers_of(restored, where)
        for snapshot in restored:
            if _ROWS in snapshot.values:
                self.due = [
                    (name, Batch(rows, emit_ns))
                    for name, stream, emit_ns in _STORED.decode(snapshot.values[_ROWS], where).parts
                    for rows in batches_of(stream, _STORED.format, where)
                ]
        if self.due:
            self._barriers = _and(self._barriers, _RESTORED)
        gone = next((name for name, _ in self.due if name not in inputs), None)
        if gone is not None:
            raise InvalidJob(
                f"{where}: in the checkpoint rows of its broadcast input {gone!r} wait for a barrier, and there is no "
                "such input now: keep the input for one more start, or restore from another checkpoint"
            )

    def add(self, input: str, batch: Batch) -> None:
        self._waiting.append((input, batch.reaching(None)))

    def at_barrier(self, checkpoint: int, capture: Capture) -> None:
        waiting, self._waiting = self._waiting, []
        count = sum(len(batch) for _, batch in waiting)
        capture.values[SWITCHES] = msgspec.msgpack.encode(_Switches(count, self._barriers))
        if not waiting:
            return
        self._barriers = _and(self._barriers, checkpoint)
        self.due += waiting
        if self._subtask == 0:
            capture.blocking = partial(_with_rows, capture.blocking, waiting)

    def ended(self) -> None:
        """Makes the waiting rows due: no barrier will follow."""
        self.due += self._waiting
        self._waiting = []


def switched_between(
    before: Sequence[OperatorSnapshot], checkpoint: int, reached: Sequence[OperatorSnapshot], where: str
) -> bool:
    """Returns whether rows became valid after a barrier between two checkpoints.
    `before`: an operator's snapshots of `checkpoint` (none for 0, the start); `reached`: its later snapshots."""
    known = _barriers_of(before, where)
    at_it = (known, _and(known, checkpoint), _and(known, _RESTORED))
    return _barriers_of(reached, where) not in (at_it if checkpoint else ("",))


def _barriers_of(snapshots: Sequence[OperatorSnapshot], where: str) -> str:
    told = [each.values[SWITCHES] for each in snapshots if SWITCHES in each.values]
    return _SWITCHES.decode(told[-1], where).barriers if told else ""


def _and(barriers: str, checkpoint: int) -> str:
    return hashlib.sha256(f"{barriers} {checkpoint}".encode()).hexdigest()


def _with_rows(others: Callable[[], dict[str, bytes]] | None, waiting: list[tuple[str, Batch]]) -> dict[str, bytes]:
    """Runs on a worker thread."""
    parts = []
    for _, along in groupby(waiting, lambda each: (each[0], each[1].schema)):
        (name, *_), batches = zip(*along, strict=True)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            writer.write_table(pa.Table.from_batches([batch.rows for batch in batches]).combine_chunks())
        parts.append((name, sink.getvalue().to_pybytes(), min(batch.emit_ns for batch in batches)))
    return {**(others() if others is not None else {}), _ROWS: msgspec.msgpack.encode(_Rows(tuple(parts)))}
