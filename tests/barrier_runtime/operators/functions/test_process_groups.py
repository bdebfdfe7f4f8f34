"""Batch functions with keyed state in columns, against a model in plain Python.

Covers batch borders, restarts and parallelisms, in segments and in entries, and refusals.
"""

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Slots, World

from barrier_runtime import CollectSink, Dataflow, InvalidJob
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.operators.functions.process_groups import BatchKeys, ProcessGroupsOperator
from barrier_runtime.state.errors import UserCodeError
from tests.drawn import examples

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Totals:
    """Adds the running sum of the key to each row; a key whose sum reaches a multiple of seven begins anew."""

    state = {"total": "int64", "most": ("int64", -(2**63))}

    def process_groups(self, keys: BatchKeys, batch: pa.RecordBatch, state: dict[str, Any]) -> dict[str, Any]:
        values, totals = batch.column("v").to_numpy(), np.empty(batch.num_rows, np.int64)
        for row, (key, value) in enumerate(zip(keys.of_row.tolist(), values.tolist(), strict=True)):
            state["total"][key] += value
            state["most"][key] = max(state["most"][key], value)
            totals[row] = state["total"][key]
        keys.forget(state["total"] % 70 == 0)
        return {"k": batch.column("k"), "total": totals, "most": state["most"][keys.of_row]}


def operator(function: Any = Totals, **more: Any) -> ProcessGroupsOperator:
    return ProcessGroupsOperator("op", ["k"], function, schema=SCHEMA, **more)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
@examples(60)
def test_state_of_keys_is_what_plain_python_makes_of_the_batches_over_restarts(seed: int) -> None:
    rng = random.Random(seed)
    slots, checkpoint = Slots(operator, 1), 0
    model: dict[int, list[int]] = defaultdict(list)
    for _ in range(rng.randint(1, 6)):
        rows = [{"k": rng.randint(0, 5), "v": rng.randint(-3, 40)} for _ in range(rng.choice([1, 2, 30, 700]))]
        slots.feed(rows, SCHEMA)
        for row in rows:
            model[row["k"]].append(row["v"])
        last = {row["k"]: row for row in slots.take()}
        for k in {row["k"] for row in rows}:
            assert (last[k]["total"], last[k]["most"]) == (sum(model[k]), max(model[k]))
            if sum(model[k]) % 70 == 0:
                model[k].clear()
        if rng.random() < 0.6:
            checkpoint += 1
            for driven in slots.driven:
                table = driven.operator._table  # type: ignore[attr-defined]
                if rng.random() < 0.3 and table._in_segments:
                    table._leave_segments()
            slots = slots.rescaled(checkpoint, rng.choice([1, 2, 3]))


def test_keys_tell_their_rows_in_the_order_in_which_they_came_first() -> None:
    seen: list[Any] = []

    def look(keys: BatchKeys, batch: pa.RecordBatch, state: Any) -> None:
        seen.extend([len(keys), keys.of_row.tolist(), keys.first_rows.tolist(), keys.last_rows.tolist()])
        seen.append(keys.rows.to_pylist())

    for rows in (5, 700):  # small and large batches are grouped in different ways
        seen.clear()
        driven = Driven(operator(look, state={"n": "int64"}))
        driven.feed([{"k": (4, 2, 4, 9, 2)[row % 5], "v": 0} for row in range(rows)], SCHEMA)
        assert seen[0] == 3
        assert seen[1][:5] == [0, 1, 0, 2, 1]
        assert (seen[2], seen[3]) == ([0, 1, 3], [rows - 3, rows - 1, rows - 2])
        assert seen[4] == [{"k": 4}, {"k": 2}, {"k": 9}]
        assert driven.take() == []


def test_only_keys_whose_state_has_changed_are_in_the_next_checkpoint() -> None:
    def count_up(keys: BatchKeys, batch: pa.RecordBatch, state: Any) -> None:
        state["n"] += keys.rows.column("k").to_numpy() % 2

    driven = Driven(operator(count_up, state={"n": "int64"}))
    driven.feed([{"k": k, "v": 0} for k in range(100)], SCHEMA)
    assert np.count_nonzero(driven.operator._table._rows.dirty) == 50  # type: ignore[attr-defined]


def test_a_function_that_raises_has_changed_nothing_and_is_shown_with_its_batch() -> None:
    def breaks(keys: BatchKeys, batch: pa.RecordBatch, state: Any) -> None:
        state["n"] += 1
        raise ValueError("enough")

    driven = Driven(operator(breaks, state={"n": "int64"}))
    with pytest.raises(UserCodeError, match=r"breaks\(\) of operator 'op'.*ValueError: enough\n.*batch: 1 row of k"):
        driven.feed([{"k": 1, "v": 0}], SCHEMA)
    table = driven.operator._table  # type: ignore[attr-defined]
    assert not table.columns["n"].any()


def longer(keys: Any, batch: Any, state: Any) -> None:
    state["n"] = np.zeros(len(keys) + 1, np.int64)


def other_type(keys: Any, batch: Any, state: Any) -> None:
    state["n"] = state["n"] + 0.5


def one_more(keys: Any, batch: Any, state: Any) -> None:
    state["m"] = state["n"]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (longer, r"longer\(\) of operator 'op' left state\['n'\] as int64, \(2,\).*change it in place"),
        (other_type, r"left state\['n'\] as float64, \(1,\), but it is int64"),
        (one_more, r"put \['m'\] into its state, which are not declared: declare them"),
        (lambda keys, batch, state: [1], r"returned list: return a pyarrow.RecordBatch or Table, a dict of columns"),
        (
            lambda keys, batch, state: {"a": [1, 2], "b": [1]},
            r"returned the columns a, b, but its schema is \(k: int64\)",
        ),
        (lambda keys, batch, state: {"k": [1.5]}, r"'k' that is not kept as int64 .*its fraction would be cut"),
        (lambda keys, batch, state: {"k": np.array([1.5])}, r"'k' that is not kept as int64 .*truncated"),
        (lambda keys, batch, state: batch, r"returned \(k: int64, v: int64\), but its schema is \(k: int64\)"),
        (lambda keys, batch, state: keys.forget([3]), r"keys.forget\(\[3\]\): give a mask .* of the 1 key,"),
    ],
)
def test_wrong_use_is_refused_with_the_remedy(function: Any, told: str) -> None:
    driven = Driven(operator(function, state={"n": "int64"}, output=pa.schema([("k", pa.int64())])))
    with pytest.raises((InvalidJob, UserCodeError), match=told):
        driven.feed([{"k": 1, "v": 0}], SCHEMA)


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (lambda keys, batch, state: None, {}, r"process_groups 'p' does not say what its state is: declare state"),
        (Totals, {"state": {"n": "int64"}}, r"its state is declared in Totals and in state=: keep one"),
        (
            Totals().process_groups,
            {"state": {"n": "object"}},
            r"state\['n'\] = 'object' is not a numpy dtype",
        ),
        (3, {"state": {"n": "int64"}}, r"process_groups 'p': 3 is not a function and has no process_groups\(self"),
        (dict, {"state": {"n": "int64"}}, r"is not a function and has no process_groups\(self, keys, batch, state\)"),
    ],
)
def test_what_is_no_such_function_is_refused_when_the_flow_is_written(function: Any, options: Any, told: str) -> None:
    rows = Dataflow("f").rate("numbers", 1, 1).key_by("value")
    with pytest.raises(InvalidJob, match=told):
        rows.process_groups("p", function, **options)


def test_columns_of_state_come_and_go_as_aggregates_do() -> None:
    world, snapshots = World(), ()
    given: list[Any] = []

    def look(keys: BatchKeys, batch: pa.RecordBatch, state: Any) -> None:
        given.append({name: column.tolist() for name, column in state.items()})
        for column in state.values():
            column += 1

    for checkpoint, state in enumerate(({"a": "int64", "b": "int64"}, {"b": "int64", "c": ("int64", 5)}), 1):
        driven = Driven(operator(look, state=state), world, snapshots)
        driven.feed([{"k": 1, "v": 0}], SCHEMA)
        snapshots = (driven.snapshot(checkpoint),)  # type: ignore[assignment]
        driven.operator.close()
    assert given == [{"a": [0], "b": [0]}, {"b": [1], "c": [5]}]


@pytest.mark.slow
def test_a_column_that_is_gone_or_of_another_type_is_refused_before_the_run_is_begun(tmp_path: Any) -> None:
    def run(fails: bool = False, **columns: Any) -> None:
        log = tmp_path / "f" / "log"

        def function(keys: BatchKeys, batch: pa.RecordBatch, state: Any) -> pa.RecordBatch:
            if fails and log.exists() and len(list(log.iterdir())) > 3:
                raise ValueError("enough")
            return batch

        flow = Dataflow("f")
        rows = flow.rate("numbers", 400, 20_000, splits=1).key_by("value")
        rows.process_groups("p", function, state=columns).sink("out", CollectSink())
        flow.run_local(checkpoints=str(tmp_path), checkpoint_interval=0.05, restart="none")

    with pytest.raises(JobFailed, match="enough"):
        run(fails=True, n="int64", m="int64")
    with pytest.raises(JobFailed, match=r"'p': the checkpoint has values of column m, .*allow_non_restored"):
        run(n="int64")
    with pytest.raises(JobFailed, match=r"column n: its state was columns \(<i8\) .* is columns \(<f8\) now"):
        run(n="float64", m="int64")
