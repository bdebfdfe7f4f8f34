"""Conversion of exceptions of sinks to the project's errors, which name the sink, class and call."""

from collections.abc import Callable
from typing import NoReturn, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.operators.user_code import user_traceback
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, UserCodeError
from barrier_runtime.state.outside_errors import must_be_mended, told

T = TypeVar("T")

OPENING = "its target cannot be opened"
STAGING = "rows cannot be staged"
COMMITTING = "decided rows cannot be committed"
_ROWS = "Correct or filter the rows before the sink, convert the column, or correct the sink's arguments"
_TARGET = "Correct the target or the sink's arguments"


class SinkTrouble:
    def __init__(self, sink: TwoPhaseCommitSink, name: str, subtask: int) -> None:
        kind = type(sink)
        self._ours = kind.__module__.startswith("barrier_runtime.")
        self._where = f"sink {name!r} ({kind.__name__}), subtask {subtask}"

    def of(self, error: BaseException, doing: str) -> BarrierRuntimeError:
        """Converts `error` for the job. For a user's sink class the error shows the user's own frames."""
        if isinstance(error, BarrierRuntimeError):
            return error
        found = told(error, f"{self._where}: {doing}", _TARGET if doing == OPENING else _ROWS)
        if isinstance(found, InvalidJob) and not self._ours:
            return UserCodeError(str(found), user_traceback(error))
        return found

    def of_write(self, error: BaseException, schema: pa.Schema) -> BarrierRuntimeError:
        if isinstance(error, BarrierRuntimeError):
            return error
        if not must_be_mended(error):
            return told(error, self._where, _ROWS)
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        return self.of(error, f"rows with the columns {columns} cannot be written")

    def around(self, doing: str, call: Callable[[], T]) -> T:
        """Calls `call`, and converts exceptions."""
        try:
            return call()
        except Exception as error:
            self.raise_named(error, doing)

    def raise_named(self, error: Exception, doing: str) -> NoReturn:
        found = self.of(error, doing)
        if found is error:
            raise error
        raise found from error

    def commit_failed(self, error: BaseException) -> str:
        """Text of a failed commit. The rows are decided: the commit is retried until it succeeds."""
        found = self.of(error, COMMITTING) if must_be_mended(error) else error
        if not isinstance(found, InvalidJob):
            return f"{type(found).__name__}: {found}"
        return f"{found}. The decided rows are kept, and are committed as soon as the cause is mended"
