"""`split`: each row goes to the branch, a side output, that a function or expression names."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.plain_rows import PlainRows, without_views
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.rows import Row, cut, preview
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.functions.columns_read import each_row_read, rows_read
from barrier_runtime.operators.outputs.failures import Failures
from barrier_runtime.operators.outputs.side_outputs import OnError, send
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob

_FAILED = object()


class SplitOperator(Operator):
    def __init__(
        self,
        name: str,
        function: Callable[[Row], str] | Any,
        into: Sequence[str],
        on_error: OnError = "fail",
        rows: RowClass | None = None,
    ) -> None:
        self._name = name
        self._function = function
        self._reads = rows_read(function, 0, rows)
        self._into = tuple(into)
        self._takeable = PlainRows(without_views)
        self._failures = None if on_error == "fail" else Failures(on_error, name, self._said)

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask
        self._metrics = context.metrics
        if self._failures is not None:
            self._failures.opened(context)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        batch = self._takeable.batch(batch)
        rows: dict[str, list[int]] = {branch: [] for branch in self._into}
        for row, branch in enumerate(self._branches(batch)):
            if branch is _FAILED:
                continue
            try:
                rows[branch].append(row)
            except (KeyError, TypeError):
                self._refuse(branch, batch, row)
        for branch, chosen in rows.items():
            if len(chosen) == len(batch):
                send(emit, branch, batch, self._metrics)
            elif chosen:
                few = batch.few
                taken = batch.rows.take(pa.array(chosen)) if few is None else few.take(chosen)
                send(emit, branch, batch.only(taken, np.array(chosen)), self._metrics)
        if self._failures is not None:
            self._failures.flush(emit, batch.emit_ns)

    def _branches(self, batch: Batch) -> list[Any]:
        found: list[Any] = []
        failures = self._failures
        if failures is not None:
            failures.begin(batch)
        rows = each_row_read(batch, self._reads)
        for _ in range(len(batch)):
            try:
                found.append(self._function(next(rows)))
            except Exception as error:
                at = len(found)
                if failures is None or not failures.takes(error):
                    raise user_error(
                        error,
                        function=self._said,
                        operator=self._name,
                        subtask=self._subtask,
                        batch=batch.rows,
                        row=at,
                    ) from error
                failures.add(error, at, None if batch.reached is None else int(batch.reached[at]))
                found.append(_FAILED)
        return found

    @property
    def _said(self) -> str:
        return function_name(self._function)

    def _refuse(self, branch: object, batch: Batch, row: int) -> NoReturn:
        raise InvalidJob(
            f"{self._said} of split {self._name!r} gave {cut(repr(branch))}, but its branches are "
            f"{', '.join(map(repr, self._into))}: give one of them, or add it to into=\n"
            f"  record: {preview(batch.rows, row)}"
        )
