"""`split`: every row goes to exactly one branch, which a function or an expression names."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from operator_harness import World

from barrier_runtime import CollectSink, Dataflow, InvalidJob, IteratorSource, JobFailed, count
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.expressions import Compiled
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.expressions import SplitExpressionOperator
from barrier_runtime.operators.outputs.split import SplitOperator

Row = dict[str, Any]
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
BRANCHES = ("big", "middle", "small")
EXPRESSION = pc.if_else(pc.field("n") > 200, "big", pc.if_else(pc.field("n") > 100, "middle", "small"))
COMPILED = Compiled(EXPRESSION, "by size")


def size(row: Row) -> str:
    return "big" if row["n"] > 200 else "middle" if row["n"] > 100 else "small"


def numbers(first: int, of: int) -> Iterator[Row]:
    for n in range(first, 300, of):
        yield {"k": f"k{n % 3}", "n": n}


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("by", [size, EXPRESSION], ids=["function", "expression"])
@pytest.mark.usefixtures("both_ways")
def test_each_row_goes_to_one_branch_with_the_columns_of_the_stream(parallelism: int, by: Any) -> None:
    flow = Dataflow("sizes")
    rows = flow.source("numbers", IteratorSource(numbers, schema=SCHEMA))
    big, middle, small = rows.split("size", by, into=BRANCHES)
    assert big.schema == middle.schema == small.schema == SCHEMA
    sinks = CollectSink(), CollectSink(), CollectSink()
    big.sink("big", sinks[0])
    middle.key_by("k").aggregate("per-k", seen=count()).sink("middle", sinks[1])
    small.map(lambda row: row).sink("small", sinks[2])
    flow.run_local(parallelism=parallelism)
    assert [sorted(row["n"] for row in sink.rows()) for sink in sinks] == [
        list(range(201, 300)),
        list(range(101, 201)),
        list(range(101)),
    ]


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: SplitOperator("s", size, BRANCHES),
        lambda: SplitExpressionOperator("s", COMPILED, BRANCHES),
    ],
)
def test_rows_part_in_order_with_the_event_time_that_was_reached_at_them(
    make: Callable[[], SplitOperator], as_list: bool
) -> None:
    rows = pa.RecordBatch.from_pylist([{"k": "a", "n": n} for n in (201, 1, 202, 2)], SCHEMA)
    given: dict[str, list[Batch]] = {"big": [], "small": []}
    operator, world = make(), World()
    operator.open(world.context("s"))
    few = FewRows.of(rows)
    assert few is not None
    batch = Batch(few if as_list else rows, 7, np.array([10, 20, 30, 40]))
    operator.process(batch, Emit(given["small"].append, {"big": [given["big"].append]}))
    (big,) = given["big"]
    assert (big.rows["n"].to_pylist(), big.emit_ns, list(big.reached)) == ([201, 202], 7, [10, 30])
    assert given["small"] == [], "no row is in the main output"
    assert world.metrics.counts == {"unread_side_rows": 2}


@pytest.mark.parametrize("branch", ["huge", None, 3, ["big"]])
def test_a_branch_that_is_not_declared_is_refused_with_the_declared_ones_and_the_row(branch: Any) -> None:
    flow = Dataflow("sizes")
    rows = flow.source("numbers", IteratorSource(numbers, schema=SCHEMA))
    big, _ = rows.split("size", lambda row: branch if row["n"] == 5 else "big", into=("big", "small"))
    big.sink("big", CollectSink())
    with pytest.raises(JobFailed, match=r"(?s)split 'size' gave .*, but its branches are 'big', 'small'.*'n': 5"):
        flow.run_local(parallelism=1)


def test_so_is_one_that_an_expression_gives_and_a_null() -> None:
    for wrong in ("huge", None):
        flow = Dataflow("sizes")
        rows = flow.source("numbers", IteratorSource(numbers, schema=SCHEMA))
        by = pc.if_else(pc.field("n") == 5, pa.scalar(wrong, pa.string()), "big")
        big, _ = rows.split("size", by, into=("big", "small"))
        big.sink("big", CollectSink())
        with pytest.raises(
            JobFailed, match=rf"(?s)of split 'size' gave {wrong!r}, but its branches are 'big', 'small'"
        ):
            flow.run_local(parallelism=1)


def test_what_the_function_raises_is_told_with_its_row() -> None:
    flow = Dataflow("sizes")
    rows = flow.source("numbers", IteratorSource(numbers, schema=SCHEMA))
    big, _ = rows.split("size", lambda row: str(1 / (5 - row["n"]) * 0) and "big", into=("big", "small"))
    big.sink("big", CollectSink())
    with pytest.raises(JobFailed, match=r"(?s)operator 'size', subtask 0, raised ZeroDivisionError.*'n': 5"):
        flow.run_local(parallelism=1)


@pytest.mark.parametrize(
    ("by", "into", "said"),
    [
        (size, "big", r"split 's': into='big': name two branches or more"),
        (size, ("big",), r"split 's': into=\('big',\): name two branches or more"),
        (size, ("big", "big"), "split 's': branch 'big' is named twice"),
        (size, ("big", " "), "split 's': branch ' ' has no name"),
        ("n", BRANCHES, "split 's': the expression n gives int64"),
        (
            pc.field("n") > 3,
            BRANCHES,
            "split 's': the expression .* gives bool: use one that gives the name of a branch",
        ),
    ],
)
def test_wrong_use_is_refused_when_the_flow_is_written(by: Any, into: Any, said: str) -> None:
    rows = Dataflow("sizes").source("numbers", IteratorSource(numbers, schema=SCHEMA))
    with pytest.raises(InvalidJob, match=said):
        rows.split("s", by, into=into)
