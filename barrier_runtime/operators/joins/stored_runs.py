"""Runs of join buffers, in snapshots and in local files. See docs/design/joins-and-lookups.md.

In a snapshot each run is a value, written once; bits, written each time, say which rows live and have matched. Runs are
encoded off the loop. At another parallelism each subtask takes the rows of its key groups from all runs.

All runs of an operator, both sides, have a share of the slot's memory (`SlotMemory.hold`). When they outgrow the share,
the oldest are written to files and mapped: they are read as before, and the kernel caches their pages as memory allows.

    a run        event                                       result
    in memory    the runs outgrow their share                on disk: its rows, keys, times and order; not which live
    on disk      a batch is looked up, rows are emitted      on disk
    on disk      half of it is dead, or it is merged         gone; living rows are a new run, in memory
    either       a snapshot                                  unchanged; the snapshot has its rows, under the same name
    on disk      the process dies                            the file is gone; rows come from a snapshot

A file belongs to a single run and has no name, so it vanishes with the run, however the run ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.operators.base import Capture
from barrier_runtime.operators.joins.row_run import RowRun
from barrier_runtime.operators.mapped_file import mapped_file
from barrier_runtime.operators.stored_streams import stream_of
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot, value_format
from barrier_runtime.state.versioned import VersionedDecoder

VALUE = "runs"  # name of the snapshot value

Bools = npt.NDArray[np.bool_]


class StoredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """`value`: name of the snapshot value with the rows (an Arrow IPC stream). `alive`, `matched`: a bit per row."""

    side: int  # 0: left, 1: right
    value: str
    alive: bytes
    matched: bytes


class StoredRuns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """List of runs, oldest first."""

    runs: tuple[StoredRun, ...]
    version: int = 1


_RUNS = VersionedDecoder(value_format("{}: the list of its rows in its snapshot"), msgspec.msgpack.Decoder(StoredRuns))


class RunStore:
    """Names of runs, and the runs that are already objects of the job's store."""

    def __init__(self) -> None:
        # by id of the run, which is kept alive so that its id stays unique
        self._names: dict[int, tuple[RowRun, str]] = {}
        self._made = 0
        self._objects: Mapping[str, FileRef] = {}

    def capture(self, sides: Sequence[Sequence[RowRun]], values: dict[str, bytes], **more: Any) -> Capture:
        """`values`: further values of the operator."""
        known, self._names = self._names, {}
        listed, rows, stored = [], {}, {}
        for side, runs in enumerate(sides):
            for run in runs:
                name = known[id(run)][1] if id(run) in known else self._new_name()
                self._names[id(run)] = run, name
                listed.append(StoredRun(side, name, _bits(run.alive), _bits(run.matched)))
                if name in self._objects:
                    stored[name] = self._objects[name]
                else:
                    rows[name] = run.rows
        if listed:
            values = {**values, VALUE: msgspec.msgpack.encode(StoredRuns(tuple(listed)))}
        return Capture(
            values, blocking=partial(_encoded, rows) if rows else None, stored=stored, on_stored=self._on_stored, **more
        )

    def _new_name(self) -> str:
        self._made += 1
        return f"run-{self._made}"

    def _on_stored(self, objects: Mapping[str, FileRef]) -> None:
        self._objects = objects


def restored_runs(snapshots: Iterable[OperatorSnapshot]) -> Iterator[tuple[int, pa.RecordBatch, Bools, Bools]]:
    """Returns (side, rows, alive, matched) of each run, oldest first."""
    for snapshot in snapshots:
        if VALUE not in snapshot.values:
            continue
        for stored in _RUNS.decode(snapshot.values[VALUE], f"operator {snapshot.operator!r}").runs:
            rows = _decoded(snapshot.values[stored.value], snapshot.operator)
            yield stored.side, rows, _flags(stored.alive, len(rows)), _flags(stored.matched, len(rows))


def _bits(flags: Bools) -> bytes:
    return np.packbits(flags).tobytes()


def _flags(bits: bytes, rows: int) -> Bools:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).astype(np.bool_)


def _encoded(batches: Mapping[str, pa.RecordBatch]) -> dict[str, bytes]:
    """Runs on a worker thread."""
    return {name: stream_of(rows, "lz4") for name, rows in batches.items()}


def _decoded(data: bytes, operator: str) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return reader.read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise Corrupt(
            f"operator {operator!r}: rows of a join in its snapshot cannot be read ({error}): restore from another "
            "checkpoint"
        ) from error


_PARTS = 8  # of the share: larger runs are not merged, so each is written quickly


class RunsOnDisk:
    def __init__(self, directory: Path, held_bytes: Callable[[], int], where: str) -> None:
        """`held_bytes`: returns the current share. `where`: the operator, for errors."""
        self._directory = directory
        self._held_bytes = held_bytes
        self._where = where

    @property
    def most_bytes(self) -> int:
        return self._held_bytes()

    @property
    def most_merged_bytes(self) -> int:
        return self.most_bytes // _PARTS

    def relieve(self, sides: Sequence[Sequence[RowRun]]) -> None:
        """Moves runs to disk, the oldest of each side first, until the others fit the share."""
        most = self.most_bytes
        held = sum(run.held_bytes for runs in sides for run in runs)
        if held <= most:
            return
        for pair in zip_longest(*sides):
            for run in pair:
                if run is not None and not run.on_disk:
                    before = run.held_bytes
                    self._move(run)
                    held += run.held_bytes - before
                    if held <= most:
                        return

    def _move(self, run: RowRun) -> None:
        columns = run.ordered
        first = _aligned(sum(column.nbytes for column in columns))

        def write(file: IO[bytes]) -> None:
            for column in columns:
                file.write(column.data)
            file.write(bytes(first - file.tell()))
            with pa.ipc.new_stream(file, run.rows.schema) as writer:
                writer.write_batch(run.rows)

        mapped = mapped_file(self._directory, write, self._where)
        with pa.ipc.open_stream(pa.py_buffer(mapped).slice(first)) as reader:
            rows = reader.read_next_batch()
        size = len(run)
        of_file = [np.frombuffer(mapped, np.int64, size, 8 * size * number) for number in range(len(columns))]
        run.is_on_disk(rows, *of_file)


def _aligned(size: int) -> int:
    """Next place at which Arrow reads rows without copying them."""
    return -(-size // 64) * 64
