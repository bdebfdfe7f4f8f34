"""`split`: each row goes to the branch that a function, or an expression, names. Every branch is a side output."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import Row, cut, each_row_of, preview
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.side_outputs import send
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob


class SplitOperator(Operator):
    """By a Python function of a row; the base of what splits otherwise."""

    def __init__(self, name: str, function: Callable[[Row], str] | Any, into: Sequence[str]) -> None:
        self._name = name
        self._function = function
        self._into = tuple(into)

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask
        self._metrics = context.metrics

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows: dict[str, list[int]] = {branch: [] for branch in self._into}
        for row, branch in enumerate(self._branches(batch)):
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

    def _branches(self, batch: Batch) -> list[Any]:
        found: list[Any] = []
        try:
            found.extend(map(self._function, each_row_of(batch)))
        except Exception as error:
            raise user_error(
                error,
                function=self._said,
                operator=self._name,
                subtask=self._subtask,
                batch=batch.rows,
                row=len(found),
            ) from error
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
