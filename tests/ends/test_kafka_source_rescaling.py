"""Partitions of a topic over several subtasks: restored at another parallelism, with partitions added in between."""

import time
from pathlib import Path
from typing import Any

from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic, fetching_threads, source_of
from tests.waiting import until


class SequentialExecutor:
    """Does the work at once."""

    def submit(self, work: Any, done: Any) -> None:
        done(work(), None)


class Subtasks:
    """All subtasks of a source in a generation, each as in a slot."""

    def __init__(
        self, kafka: KafkaServer, topic: Topic, parallelism: int, restored: tuple[OperatorSnapshot, ...], folder: Path
    ) -> None:
        self._parallelism = parallelism
        self.drivers: list[SourceDriver] = []
        source = source_of(kafka, topic.name, start="latest", discover=None)
        spec = SourceSpec("src", source, tuple(source.splits(parallelism)))
        for subtask in range(parallelism):
            driver = SourceDriver()
            driver.open(self._context(subtask, restored, folder), spec)
            self.drivers.append(driver)

    def read(self, count: int) -> list[tuple[int, int]]:
        """Returns (partition, offset) of `count` rows."""
        found: list[tuple[int, int]] = []

        def enough() -> bool:
            for driver in self.drivers:
                batch = driver.poll(time.time_ns(), 7)
                if batch is not None:
                    found.extend((row["partition"], row["offset"]) for row in batch.rows.to_pylist())
            return len(found) >= count

        until(enough, f"{count} rows came")
        return found

    def snapshots(self, checkpoint: int) -> tuple[OperatorSnapshot, ...]:
        return tuple(
            OperatorSnapshot(
                operator="src",
                subtask=subtask,
                parallelism=self._parallelism,
                values=driver.snapshot(checkpoint).values,
            )
            for subtask, driver in enumerate(self.drivers)
        )

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()

    def _context(self, subtask: int, restored: tuple[OperatorSnapshot, ...], folder: Path) -> OperatorContext:
        def nothing(*_: Any) -> Any:
            raise AssertionError("a source does not ask for this")

        return OperatorContext(
            job="job",
            token=1,
            operator="src",
            subtask=subtask,
            parallelism=self._parallelism,
            max_parallelism=128,
            restored=restored,
            open_keyed=nothing,
            executor=SequentialExecutor(),
            snapshot_executor=SequentialExecutor(),
            metrics=MetricGroup(),
            local_dir=folder,
            make_store=nothing,
            job_store=MemoryStore(),
            call_later=nothing,
            wake=nothing,
            wake_from_thread=lambda: None,  # the test polls until a record arrives
        )


def test_every_record_is_read_once_over_rescalings_new_partitions_and_a_void_read(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    """R1, R2: 2 → 3 → 1 subtasks. The job begins at the latest record; partitions made later are read from their
    beginning, although a restart lists them and would otherwise begin at the latest record.
    """
    topic = Topic(kafka, partitions=3)
    for partition in range(3):
        topic.write(["before the job"] * 5, partition)
    counted: list[tuple[int, int]] = []
    restored: tuple[OperatorSnapshot, ...] = ()
    subtasks = Subtasks(kafka, topic, 2, restored, tmp_path)
    written = 0
    for partitions, parallelism in ((3, 2), (4, 3), (5, 1)):
        for partition in range(partitions):
            topic.write(["x"] * 20, partition)
        written += 20 * partitions
        if partitions > 3:
            subtasks = Subtasks(kafka, topic, parallelism, restored, tmp_path)
        counted += subtasks.read(written - len(counted) - 15)
        restored = subtasks.snapshots(partitions)
        subtasks.read(5)  # after the checkpoint: read again later
        subtasks.close()
        topic.grow(partitions + 1)
    last = Subtasks(kafka, topic, 2, restored, tmp_path)
    counted += last.read(written - len(counted))
    last.close()
    assert len(counted) == len(set(counted)) == written
    expected = {(partition, offset) for partition in range(3) for offset in range(5, 65)}
    expected |= {(3, offset) for offset in range(40)} | {(4, offset) for offset in range(20)}
    assert set(counted) == expected
    until(lambda: not fetching_threads(), "all consumers are closed")
