"""The state data source called as PySpark calls it, without a session."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql.datasource import EqualTo

from barrier_runtime import CollectSink, Dataflow, InvalidJob, count
from barrier_runtime.coordinator.log import records
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import base_of
from barrier_runtime.spark.state_source import BarrierStateSource
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from tests.barrier_runtime.state_tables.test_pinned_reads import flow as living
from tests.waiting import until


def source(folder: Path, **options: str) -> Any:
    if not folder.exists():
        flow = Dataflow("job")
        rows = [{"k": key} for key in "aab"]
        read = flow.from_iterator("in", lambda part, of: rows, schema={"k": str}, splits=1)
        read.key_by("k").aggregate("my.sums", many=count()).sink("out", CollectSink())
        flow.run_local(checkpoints=folder, parallelism=2)
    given = {"path": str(folder), "job": "job", "state": "my.sums.running", "pushdown": "true", **options}
    return BarrierStateSource(given)


@pytest.mark.slow
def test_a_column_has_one_value_at_most(tmp_path: Path) -> None:
    reader = source(tmp_path / "job").reader(None)
    again = EqualTo(("k",), "b")
    assert list(reader.pushFilters([EqualTo(("k",), "a"), again, EqualTo(("k",), "a")])) == [again]
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"k": "a", "rows": 2}]


def test_a_checkpoint_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"\.option\(\"checkpoint\", 'newest'\): give the number"):
        source(tmp_path / "job", checkpoint="newest").reader(None)


@pytest.mark.slow
def test_partitions_are_read_after_the_log_of_the_job_was_compacted(tmp_path: Path) -> None:
    over: list[bool] = []
    url, paths = str(tmp_path), Paths("kept")

    def base() -> int:
        head = read_log(open_store(url), paths).head
        return 0 if head is None else base_of(head.record)

    with patch.object(records, "MILESTONE_STEP", 8), ThreadPoolExecutor(1) as pool:
        job = pool.submit(living(over).run_local, checkpoints=url, parallelism=2, checkpoint_interval=0.05)
        try:
            until(base, "the log begins")
            reader = until(lambda: planned(url), "a checkpoint is complete")
            position = reader._wanted._decided.position
            until(lambda: base() > position, "the log is compacted beyond the checkpoint")
            users = [user for part in reader.partitions() for batch in reader.read(part) for user in batch["user"]]
            assert len(users) == len(set(users)) > 0
        finally:
            over.append(True)
            job.result()


def planned(url: str) -> Any:
    try:
        return BarrierStateSource({"path": url, "job": "kept", "state": "last.last"}).reader(None)
    except InvalidJob:
        return None
