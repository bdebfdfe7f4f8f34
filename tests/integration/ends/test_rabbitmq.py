"""A queue through a job on Spark while slots, coordinators, the program and the broker are killed."""

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RabbitServer
from tests.ends.rabbitmq_world import Feeder, address, queue_of
from tests.integration.chaos.verdict import Figures
from tests.integration.ends import rabbitmq_job
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.harness import run_under_kills


class OnceEach:
    """Judges looks at new rows: no number occurs twice. A redelivered message comes after its successors, so order and
    gaps are meaningless before the end.
    """

    def __init__(self) -> None:
        self.figures = Figures()
        self._times: collections.Counter[int] = collections.Counter()

    @property
    def rows(self) -> int:
        return len(self._times)

    def observe(self, where: str, seen: Any) -> None:
        before = self.figures.duplicated
        for value in seen:
            self._times[value] += 1
            if self._times[value] > 1:
                self.figures.duplicated += 1
                self.figures.example(f"{where}: {value} shows {self._times[value]} times")
        self.figures.rows = self.rows
        self.figures.observations += 1
        self.figures.wrong_observations += self.figures.duplicated > before


def committed_rows(folder: Path) -> CommittedRows:
    return CommittedRows(str(folder), rabbitmq_job.NAME, rabbitmq_job.SINK)


def new_values(folder: Path) -> Callable[[], list[int]]:
    reader = committed_rows(folder)
    return lambda: [row["value"] for row in reader.rows()]


def test_a_number_that_comes_twice_is_seen_in_one_look_and_over_two() -> None:
    for looks in ([[1, 1]], [[1], [2, 1]]):
        audit = OnceEach()
        for seen in looks:
            audit.observe("look", seen)
        assert (audit.figures.duplicated, audit.figures.wrong_observations, audit.figures.right) == (1, 1, False)


@pytest.mark.long(90)
@pytest.mark.spark
def test_every_message_comes_once_through_all_kills_and_none_stays_in_the_queue(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    """R3, T3: the broker is killed and stopped as well, once for eight seconds."""
    folder = tmp_path / "out"
    with queue_of(rabbitmq) as queue, Feeder(queue, per_second=400) as feeder:
        report = run_under_kills(
            Path(rabbitmq_job.__file__),
            {"url": address(rabbitmq), "queue": queue.name, "folder": str(folder)},
            folder=tmp_path,
            open_reader=lambda: new_values(folder),
            make_audit=OnceEach,
            server=rabbitmq,
            kills=8,
            seed=11,  # only the last strike starts the program a second time
            outage_s=8.0,
            drain=feeder.stop,
        )
        assert report.clean, str(report)
        assert report.kills >= 8
        rows = committed_rows(folder).rows()
        assert sorted(row["value"] for row in rows) == list(range(feeder.confirmed))
        assert any(row["redelivered"] for row in rows), "no kill made the broker deliver a message again"
        assert queue.left() == 0
