"""`KeyedHarness`: a user's keyed function by itself, row by row, in the test's own thread. No Spark, no event loop, no
source or sink; but the operator, the keyed state and the snapshots of production, so what holds here holds in a job.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.declared_kinds import kinds_checked
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import SchemaLike, as_schema
from barrier_runtime.operators.functions.process import ProcessOperator, check_keyed_function
from barrier_runtime.operators.outputs.failures import OnError
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.state.handle import KeyedState
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.testing.function_harness import NAME, FunctionHarness, HarnessSnapshot, key_columns


@kinds_checked
class KeyedHarness(FunctionHarness):
    """Runs what `KeyedStream.process` runs.

    >>> with KeyedHarness(Totals, key="user") as harness:
    ...     assert harness.push({"user": "ann", "n": 3}) == [{"user": "ann", "total": 3}]
    ...     assert harness.state("ann") == {"total": 3}
    ...     snapshot = harness.snapshot()
    >>> with KeyedHarness(Totals, key="user", restore=snapshot, parallelism=2) as harness:
    ...     assert harness.push({"user": "ann", "n": 1}) == [{"user": "ann", "total": 4}]

    `key`: the column of `key_by`, or several. `rows`: the schema of the rows that are pushed; without it the first push
    tells their types. `schema`, `state`, `event_time`, `side` and `on_error` are those of `process`. `parallelism`:
    among so many subtasks the keys are divided. `restore` begins with what `snapshot()` gave, maybe that of another
    parallelism or of an earlier version of the function. The wall clock stands at `wall_ms` (ms since the epoch;
    without it where it was at the snapshot, or at 0) until `wall` moves it; wall-clock timers and states with `TTL(…,
    clock="processing")` live by it. Changes in place that are not stored are refused at a snapshot, as by
    `check_state`. Errors are those of a job: `UserCodeError` for what the function raises, `InvalidJob` for wrong use.
    """

    def __init__(
        self,
        function: Any,
        *,
        key: str | Sequence[str],
        rows: SchemaLike | None = None,
        schema: SchemaLike | None = None,
        state: Mapping[str, KeyedState] | None = None,
        event_time: str | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError | Retry = "fail",
        parallelism: int = 1,
        max_parallelism: int = 128,
        restore: HarnessSnapshot | None = None,
        wall_ms: int | None = None,
    ) -> None:
        where = "KeyedHarness"
        if restore is not None and not isinstance(restore, HarnessSnapshot):
            raise InvalidJob(f"{where}: restore={restore!r}: give what snapshot() of such a harness returned")
        self._keys = key_columns(key, where)
        self._rows = (
            as_schema(rows, where, "rows") if rows is not None else restore.rows if restore is not None else None
        )
        self._event_time = event_time
        self._function, self._state = function, state
        super().__init__(schema, side, on_error, parallelism, max_parallelism, restore, wall_ms)

    def _made(
        self, output: pa.Schema | None, side: Mapping[str, pa.Schema], on_error: OnError | Retry
    ) -> ProcessOperator:
        check_keyed_function(self._function, "KeyedHarness")
        return ProcessOperator(
            NAME, self._keys, self._function, self._state, self._event_time, output, self._rows, side, on_error
        )

    def push(self, *rows: Row) -> list[Row]:
        """Process these rows one after the other; what the function gives for them."""
        for row in rows:
            batch = self._batch(row)
            self._of(batch).process(Batch(batch, 0), self._emit)
            self._reached_by(batch)
        return self._taken()

    def snapshot(self) -> HarnessSnapshot:
        """A checkpoint, completed; the harness goes on. Raises `InvalidJob` for state that cannot be written."""
        return self._snapshot()
