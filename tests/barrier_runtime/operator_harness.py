"""Harness that drives an operator by hand: real keyed state, real snapshots in an object store, no slot."""

import contextlib
import dataclasses
import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.base import Capture, Emit, Operator, OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.state.backend.keyed_backend import KeyedBackend, open_keyed_backend
from barrier_runtime.state.columns import column_table
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.paths import Paths

Kind = Literal["memory", "rocksdb"]


@contextlib.contextmanager
def held_in_memory(entries: int | None) -> Iterator[None]:
    """Limits columnar tables to about `entries` entries in memory; None: the usual limit."""
    if entries is None:
        yield
        return
    with patch.object(ColumnTable, "_entry_limit", entries), patch.object(column_table, "SPILLED_AT_ONCE", 3):
        yield


def entries_left(operator: Any) -> int:
    """Of a keyed operator's state after a snapshot: in memory, and in the store."""
    kv = operator.backend._shard.kv
    table = getattr(operator, "_table", None)  # made with the first batch
    return int(table.entries if table is not None else 0) + sum(1 for _ in kv.scan(b"", b"\xff" * 8))


class InlineExecutor:
    """Does the work at once."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)


class World:
    """The object store and the folder that outlive an operator instance."""

    def __init__(
        self, kind: Kind = "memory", subtask: int = 0, parallelism: int = 1, cache_bytes: int = 64 << 20
    ) -> None:
        self.cache_bytes = cache_bytes
        self.kind: Kind = kind
        self.subtask = subtask
        self.parallelism = parallelism
        self.store = MemoryStore()
        self.metrics = MetricGroup()
        self.directory = Path(tempfile.mkdtemp(prefix="barrier-runtime-test-"))
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self.memory = SlotMemory(64 << 20)
        self._numbers = itertools.count(1)
        self._token = 0
        self.wall_ms = 0  # the wall clock

    def context(self, operator: str, restored: tuple[OperatorSnapshot, ...] = ()) -> OperatorContext:
        self._token += 1
        token, directory = self._token, self.directory / f"{self._token}-{operator}"
        directory.mkdir(parents=True)

        def open_keyed() -> KeyedBackend:
            return open_keyed_backend(
                kind=self.kind,
                operator=operator,
                subtask=self.subtask,
                parallelism=self.parallelism,
                max_parallelism=128,
                restored=restored,
                store=self.store,
                paths=Paths("job"),
                token=token,
                slot_uuid=f"slot-{token}",
                directory=directory,
                copies=LocalCopies(),
                memory=self.memory,
                cache_bytes=self.cache_bytes,
                new_uuid=lambda: f"file-{next(self._numbers)}",
            )

        return OperatorContext(
            job="job",
            token=token,
            operator=operator,
            subtask=self.subtask,
            parallelism=self.parallelism,
            max_parallelism=128,
            restored=restored,
            open_keyed=open_keyed,
            executor=InlineExecutor(),
            snapshot_executor=InlineExecutor(),
            metrics=self.metrics,
            local_dir=directory,
            make_store=lambda url: self.store,
            job_store=self.store,
            call_later=lambda seconds, callback: callback(),
            wake=lambda: None,
            wake_from_thread=lambda: None,  # tests look until something is there
            wall_ms=lambda: self.wall_ms,
        )

    def finish(self, operator: str, checkpoint: int, capture: Capture) -> OperatorSnapshot:
        """Finishes a snapshot as the slot does after the synchronous part."""
        values = dict(capture.values)
        if capture.blocking is not None:
            values.update(capture.blocking())
        keyed = None
        if capture.keyed is not None:
            while not capture.keyed.drain():
                pass
            keyed = capture.keyed.write(checkpoint)
            capture.keyed.clean_up()
        return OperatorSnapshot(operator, self.subtask, self.parallelism, values, keyed)


class _OfLoop:
    """Call allowed only on the slot's loop, not while the operator opens on a worker thread."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        self.is_opened = False

    def __call__(self, *arguments: Any) -> None:
        assert self.is_opened, "the loop's timers are not for other threads: set it in the first turn"
        self._call(*arguments)


class Driven:
    """An opened operator; collects the emitted rows as dicts."""

    def __init__(
        self,
        operator: Operator,
        world: World | None = None,
        restored: tuple[OperatorSnapshot, ...] = (),
        name: str = "op",
        tags: Sequence[str] = (),
    ) -> None:
        """`tags`: tags of side outputs, whose batches are collected in `side`."""
        self.operator = operator
        self.world = world or World()
        self.name = name
        self.batches: list[Batch] = []
        self.side: dict[str, list[Batch]] = {tag: [] for tag in tags}
        self._emit = Emit(self.batches.append, {tag: [batches.append] for tag, batches in self.side.items()})
        context = self.world.context(name, restored)
        call_later, wake = _OfLoop(context.call_later), _OfLoop(context.wake)
        operator.open(dataclasses.replace(context, call_later=call_later, wake=wake))
        call_later.is_opened = wake.is_opened = True

    def feed(
        self,
        rows: "list[dict[str, Any]] | pa.RecordBatch",
        schema: pa.Schema | None = None,
        emit_ns: int = 0,
        reached: npt.NDArray[np.int64] | None = None,
        port: int = 0,
    ) -> None:
        batch = rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist(rows, schema=schema)
        self.operator.process(Batch(batch, emit_ns, reached), self._emit, port)

    def watermark(self, ms: int) -> None:
        self.operator.on_watermark(ms, self._emit)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.rows.to_pylist()]

    def take(self) -> list[dict[str, Any]]:
        """Rows emitted since the last call."""
        rows = self.rows
        self.batches.clear()
        return rows

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        return self.world.finish(self.name, checkpoint, self.operator.snapshot(checkpoint))


class Slots:
    """The subtasks of a keyed operator (key column "k") side by side, with watermarks of their own."""

    def __init__(
        self,
        make: Callable[[], Operator],
        parallelism: int,
        restored: tuple[OperatorSnapshot, ...] = (),
        store: Any = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.make, self.parallelism, self._tags = make, parallelism, tags
        self.driven: list[Driven] = []
        for subtask in range(parallelism):
            world = World("memory", subtask, parallelism)
            world.store = self.driven[0].world.store if self.driven else store or world.store
            world._numbers = self.driven[0].world._numbers if self.driven else world._numbers
            self.driven.append(Driven(make(), world, restored, name="op", tags=tags))

    def feed(
        self,
        rows: list[dict[str, Any]],
        schema: pa.Schema | None = None,
        reached: npt.NDArray[np.int64] | None = None,
    ) -> None:
        batch = Batch(pa.RecordBatch.from_pylist(rows, schema=schema), 0, reached)
        for subtask, part in hash_partition(batch, ("k",), self.parallelism, 128):
            self.driven[subtask].feed(part.rows, reached=part.reached)

    def take(self) -> list[dict[str, Any]]:
        return [row for driven in self.driven for row in driven.take()]

    def watermarks(self, *watermarks: int) -> None:
        for driven, watermark in zip(self.driven, watermarks, strict=True):
            driven.watermark(watermark)

    def late(self) -> float:
        return sum(driven.world.metrics.counts.get("late_rows", 0.0) for driven in self.driven)

    def rescaled(self, checkpoint: int, parallelism: int) -> "Slots":
        snapshots = tuple(driven.snapshot(checkpoint) for driven in self.driven)
        for driven in self.driven:
            driven.operator.close()
        slots = Slots(self.make, parallelism, snapshots, self.driven[0].world.store, self._tags)
        for driven in slots.driven:  # new files get new names
            driven.world._numbers = self.driven[0].world._numbers
        return slots
