"""Sink that calls a user's function, at least once."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.rows import rows_of
from barrier_runtime.operators.user_code import function_name, user_error


def print_rows(rows: pa.RecordBatch) -> None:
    """Prints each row as a dict on a separate line."""
    for row in rows_of(rows):
        print(row)


@kinds_checked
class CallableSink(TwoPhaseCommitSink):
    """Calls `function(rows)`, which must be quick, on the slot's loop with every arriving `pyarrow.RecordBatch`."""

    guarantee = "at_least_once"

    def __init__(self, function: Callable[[pa.RecordBatch], Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"CallableSink({getattr(self.function, '__qualname__', self.function)})"

    def open(self, context: SinkContext) -> None:
        self._context = context

    def begin_transaction(self) -> None:
        return None

    def write(self, transaction: None, rows: pa.RecordBatch) -> None:
        try:
            self.function(rows)
        except Exception as error:
            raise user_error(
                error,
                function=function_name(self.function),
                operator=self._context.sink,
                subtask=self._context.subtask,
                batch=rows,
            ) from error

    def pre_commit(self, transaction: None, checkpoint: int) -> None:
        return None

    def commit(self, committable: bytes) -> None:
        """Never called: there is no committable."""

    def abort(self, committable: bytes) -> None:
        """Calls cannot be undone."""
