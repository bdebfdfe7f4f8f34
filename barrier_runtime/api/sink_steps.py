"""Ends of streams: sinks, stored rows before sinks, functions of each checkpoint's rows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import pyarrow as pa

from barrier_runtime.api.arguments import check_callable, check_deterministic
from barrier_runtime.api.steps import S, UnkeyedSteps
from barrier_runtime.connectors.sink import TwoPhaseCommitSink, check_methods, sink_facts
from barrier_runtime.coordinator.wire.messages import STABLE_KIND
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.schemas import Duration, as_duration
from barrier_runtime.graph.logical import Input, StepNode
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.uncopyable import own_copy
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from typing_extensions import Self

    from barrier_runtime.connectors.memory.batch_function import BatchCall, BatchCheckpoint
    from barrier_runtime.launch.display import Rows

AnySink: TypeAlias = TwoPhaseCommitSink | Callable[[], TwoPhaseCommitSink] | Callable[..., None]


@plain_errors
class SinkSteps(UnkeyedSteps[S]):
    _node: int

    def stable(self, name: str = "stable") -> "Self":
        """Stores the rows with each checkpoint; later steps get them after its decision (docs/guarantees.md).

        After every restart later steps get the same rows in the same order, even if the steps before ask other systems,
        read a clock, draw random numbers or merge streams. So a sink with `deterministic=True` is exactly once behind
        `stable()`. Rows arrive up to a checkpoint interval later, and the end of the input waits for a checkpoint.

        >>> profiles.stable().sink("redis", RedisUpsertSink(url, key="user", deterministic=True))
        """
        kept = self._added(_stable_step(name, self._as_input(), self.schema, self._same_rows()))[0]
        return cast("Self", kept)

    def take(self, rows: int = 20) -> pa.Table:
        """Returns the first rows as an Arrow table, for looking at the stream.

        The steps before run in this process until there are enough rows, without checkpoints and sinks. Not for sources
        that lose read messages (RabbitMQ)."""
        from barrier_runtime.launch.local import first_rows

        return first_rows(self._plan, self._as_input(), rows)

    def show(self, rows: int = 20) -> None:
        """Prints the first rows as a table. See `take`.

        >>> orders.filter("amount > 100").show(3)
        """
        from rich.console import Console

        from barrier_runtime.launch.display import rich_table

        Console().print(rich_table(self.take(rows)))

    def preview(self, rows: int = 20, *, within: Duration = 10.0) -> "Rows":
        """Returns the first rows, for the last line of a notebook's cell. See `take`.

        Waits at most `within` (seconds, or a `timedelta`), so slow and silent streams work, too.
        """
        from barrier_runtime.launch.display import Rows
        from barrier_runtime.launch.local import first_rows

        seconds = as_duration(within, "preview: within").total_seconds()
        return Rows(first_rows(self._plan, self._as_input(), rows, seconds), rows)

    def sink(self, name: str, sink: AnySink) -> None:
        """Writes the rows. Each subtask has a copy of `sink`, or of the result of the factory `sink`.

        The function `print` writes each row on a line at once, at least once; on Spark to the executors' output.

        >>> orders.sink("orders", ParquetSink("s3://lake/orders"))
        >>> orders.sink("look", print)
        """
        self._write(name, sink, self._as_input())

    def _write(self, name: str, sink: Any, rows: Input) -> None:
        from barrier_runtime.connectors.memory.callable import CallableSink, print_rows

        where = f"sink {name!r}"
        if sink is print:
            sink = CallableSink(print_rows)
        if isinstance(sink, TwoPhaseCommitSink):
            check_methods(sink, where, self.schema)
            make_sink: Callable[[], TwoPhaseCommitSink] = partial(own_copy, sink, where)
        elif callable(sink) and hasattr(sink, "guarantee"):
            if isinstance(sink, type):
                check_methods(sink, where)
            make_sink = cast("Callable[[], TwoPhaseCommitSink]", sink)
            if not getattr(sink, "after_decision", False):
                make_sink = partial(_without_stored_rows, make_sink, where)
        else:
            what = "give CallableSink(…) around a function of a pyarrow.RecordBatch, " if callable(sink) else "pass "
            raise InvalidJob(
                f"{where}: {sink!r} is not a sink: {what}a TwoPhaseCommitSink such as ParquetSink(url), or a factory "
                "of one with an attribute `guarantee`"
            )
        if getattr(sink, "deterministic", False) is True:
            check_deterministic(self._plan, self._node, where)
        if getattr(sink, "after_decision", False):
            rows = Input(self._plan.add(_stable_step(f"{name}-stable", rows, self.schema)))
        self._add_sink(name, sink, make_sink, None, rows)

    def for_each_batch(
        self,
        function: Callable[[Any, "BatchCheckpoint"], Any],
        *,
        name: str = "for_each_batch",
        attempts: int = 10,
        on_error: Literal["fail"] = "fail",
    ) -> None:
        """Calls `function(rows, checkpoint)` in this program for each decided checkpoint, in order.

        `rows` is a Spark DataFrame of the driver's session, or a `pyarrow.Table` in `run_local`. Checkpoints without
        rows are omitted. A call that raises is repeated with the same rows and the same `checkpoint.number`; after
        `attempts` failures in a row the job stops with `BatchFunctionFailed`. A call is also repeated if the program
        dies before the success is noted: a target that stores `checkpoint.application` and `checkpoint.number` with the
        rows has the rows once. Rows cannot be skipped (`on_error`): they are decided.

        >>> orders.for_each_batch(write_orders, name="orders_out")
        """
        from barrier_runtime.connectors.memory.batch_function import BatchCall, BatchFunctionSink

        where = f"for_each_batch {name!r}"
        check_callable(function, where)
        if not isinstance(attempts, int) or attempts < 1:
            raise InvalidJob(f"{where}: attempts is {attempts!r}: give 1 or more")
        if on_error != "fail":
            raise InvalidJob(
                f"{where}: on_error={on_error!r}: the rows it gets are those of a decided checkpoint, all together, so "
                "none can be left out or sent on any more: let the function pass over what it cannot write, sort such "
                "rows out before, as in map(…, on_error='side'), or say with attempts= how often a call is repeated"
            )
        sink = BatchFunctionSink(function_name(function))
        self._add_sink(name, sink, partial(own_copy, sink, where), BatchCall(function, attempts), self._as_input())

    def _add_sink(
        self,
        name: str,
        sink: Any,
        make_sink: Callable[[], TwoPhaseCommitSink],
        call: "BatchCall | None",
        rows: Input,
    ) -> None:
        from barrier_runtime.runtime.sinks.operator import SinkOperator

        self._plan.add(
            StepNode(
                name,
                "sink",
                (rows,),
                partial(SinkOperator, make_sink=make_sink),
                None,
                stateful=True,
                is_sink=True,
                batch_call=call,
                **sink_facts(sink),
            )
        )


def _without_stored_rows(make_sink: Callable[[], TwoPhaseCommitSink], where: str) -> TwoPhaseCommitSink:
    sink = make_sink()
    if getattr(sink, "after_decision", False):
        raise InvalidJob(
            f"{where}: the factory makes a sink with after_decision=True, and has no such attribute itself, so no "
            "step stores the rows before the sink: set after_decision = True on the factory"
        )
    return sink


def _stable_step(
    name: str, rows: Input, schema: pa.Schema | None, row_classes: Mapping[str, RowClass] | None = None
) -> StepNode:
    from barrier_runtime.operators.stable import StableOperator

    return StepNode(
        name,
        STABLE_KIND,
        (replace(rows, aligned=True),),
        StableOperator,
        schema,
        stateful=True,
        describe="rows are released after the decision of their checkpoint, and repeated identically",
        timeless=True,
        begins_chain=True,
        row_classes=row_classes or {},
    )
