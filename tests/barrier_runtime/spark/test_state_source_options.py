"""The state data source called as PySpark calls it, without a session."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo

from barrier_runtime import CollectSink, Dataflow, InvalidJob, count
from barrier_runtime.spark.state_source import BarrierStateSource


def source(folder: Path, **options: str) -> Any:
    if not folder.exists():
        flow = Dataflow("job")
        rows = [{"k": key} for key in "aab"]
        read = flow.from_iterator("in", lambda part, of: rows, schema={"k": str}, splits=1)
        read.key_by("k").aggregate("my.sums", many=count()).sink("out", CollectSink())
        flow.run_local(checkpoints=folder, parallelism=2)
    given = {"path": str(folder), "job": "job", "state": "my.sums.running", "pushdown": "true", **options}
    return BarrierStateSource(given)


def test_a_column_has_one_value_at_most(tmp_path: Path) -> None:
    reader = source(tmp_path / "job").reader(None)
    again = EqualTo(("k",), "b")
    assert list(reader.pushFilters([EqualTo(("k",), "a"), again, EqualTo(("k",), "a")])) == [again]
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"k": "a", "rows": 2}]


def test_a_checkpoint_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"\.option\(\"checkpoint\", 'newest'\): give the number"):
        source(tmp_path / "job", checkpoint="newest").reader(None)
