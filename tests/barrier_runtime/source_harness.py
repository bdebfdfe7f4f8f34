"""Harness that drives a subtask's source by hand: a clock set by the test, snapshots, restores."""

from typing import Any

from operator_harness import World

from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source import Source
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot

NAME = "src"


class CountedReader:
    """Reader of a split whose position is the number of rows read. Subclasses have `poll`, which moves `_next`."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._next = 0

    @property
    def finished(self) -> bool:
        return self._next == self._rows

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        return b"%d" % self._next

    def seek(self, position: bytes) -> None:
        self._next = int(position)

    def close(self) -> None:
        """Nothing is open."""


def names(*ids: str) -> NameSet:
    made = NameSet()
    for id in ids:
        made.add(id)
    return made


def spec_of(source: Source, parallelism: int = 1, **options: Any) -> SourceSpec:
    return SourceSpec(NAME, source, tuple(source.splits(parallelism)), **options)


def opened(spec: SourceSpec, world: World, restored: tuple[OperatorSnapshot, ...] = ()) -> SourceDriver:
    driver = SourceDriver()
    try:
        driver.open(world.context(NAME, restored), spec)
    except BaseException:
        driver.close()  # as a slot does: discovery may have begun
        raise
    return driver


def snapshot_of(driver: SourceDriver, world: World, checkpoint: int = 1) -> OperatorSnapshot:
    return world.finish(NAME, checkpoint, driver.snapshot(checkpoint))


def rows_of(batches: list[Batch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.rows.to_pylist()]


def drained(driver: SourceDriver, max_rows: int | None = None, now_ns: int = 0) -> list[Batch]:
    """Reads all batches until the end, as fast as possible."""
    batches = []
    while not driver.finished:
        batch = driver.poll(now_ns, max_rows)
        if batch is not None:
            batches.append(batch)
    return batches
