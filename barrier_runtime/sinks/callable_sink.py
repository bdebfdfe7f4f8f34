"""A user's function as a sink: at least once, because a call cannot be taken back when the job rolls back.

For notebooks, tests and targets that do not mind a repeat. The function runs on the slot's loop: it must be quick.
"""

import traceback
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from barrier_runtime.sinks.base import TwoPhaseCommitSink
from state.errors import UserCodeError


class CallableSink(TwoPhaseCommitSink):
    """Calls `function(rows)` with every `pyarrow.RecordBatch` as it arrives."""

    guarantee = "at_least_once"

    def __init__(self, function: Callable[[pa.RecordBatch], Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"CallableSink({getattr(self.function, '__qualname__', self.function)})"

    def begin_transaction(self) -> None:
        return None

    def write(self, transaction: None, rows: pa.RecordBatch) -> None:
        try:
            self.function(rows)
        except Exception as error:
            raise UserCodeError(
                f"{self!r} raised {type(error).__name__} for a batch of {rows.num_rows} rows, the first of which is "
                f"{rows.slice(0, 1).to_pylist()[0]!r}: correct the function",
                traceback.format_exc(),
            ) from error

    def pre_commit(self, transaction: None, checkpoint: int) -> None:
        return None

    def commit(self, committable: bytes) -> None:
        """Never called: pre-commit has nothing to hand over."""

    def abort(self, committable: bytes) -> None:
        """Nothing can be taken back."""
