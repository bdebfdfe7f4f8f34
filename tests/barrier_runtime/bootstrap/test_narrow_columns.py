"""Numbers of DataFrames for the columns of a state: kept, or refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, open_checkpoint, write_savepoint
from barrier_runtime.state.errors import InvalidJob


def grouped(kind: str) -> Dataflow:
    def function(keys: Any, rows: pa.RecordBatch, state: Any) -> None:
        return None

    flow = Dataflow("narrow")
    rows = flow.from_iterator("rows", lambda part, of: [], schema={"user": str}, splits=1)
    rows.key_by("user").process_groups("step", function, state={"n": kind}).sink("out", CollectSink())
    return flow


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("int8", pa.array([300])),
        ("int32", pa.array([2**31])),
        ("int64", pa.array([2**63], pa.uint64())),
        ("float64", pa.array([2**53 + 1])),
        ("float32", pa.array([1e300])),
    ],
)
def test_a_number_that_a_column_cannot_hold_is_refused(kind: str, numbers: pa.Array, tmp_path: Path) -> None:
    frame = pa.table({"user": ["a"], "n": numbers})
    with pytest.raises(InvalidJob, match=f"state step.groups: column 'n': .*cast it to {kind}"):
        write_savepoint(str(tmp_path / "never"), flow=grouped(kind), states={("step", "groups"): frame})
    assert not (tmp_path / "never" / "savepoint.json").exists()


@pytest.mark.parametrize(("kind", "numbers"), [("int8", [-128, 127]), ("float64", [2**53, 1]), ("uint16", [0, 65_535])])
def test_a_number_that_a_column_can_hold_is_kept(kind: str, numbers: list[int], tmp_path: Path) -> None:
    frame = pa.table({"user": ["a", "b"], "n": numbers})
    if kind == "uint16":
        frame = pa.table({"user": ["a", "b"], "n": pa.array(numbers, pa.uint32())})
    url = str(tmp_path / "boot")
    write_savepoint(url, flow=grouped(kind), states={("step", "groups"): frame})
    with open_checkpoint(url) as stored:
        found = stored.table("step", "groups").read_all().to_pylist()
    assert sorted((row["user"], row["n"]) for row in found) == list(zip("ab", numbers, strict=True))
