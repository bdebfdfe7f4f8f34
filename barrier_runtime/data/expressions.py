"""Evaluates `pyarrow.compute` expressions on a batch.

Acero, Arrow's engine, computes on one thread, because a slot's loop is single-threaded and hand-overs between threads
cost latency.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

import barrier_runtime.data.sql.kernels
import barrier_runtime.data.sql.texts  # noqa: F401 - functions that expressions call by their names
from barrier_runtime.data.schemas import described, no_column, no_rows, one_array
from barrier_runtime.data.sql.row_kernels import kernels_of, register
from barrier_runtime.state.errors import InvalidJob

_UNKNOWN = re.compile(r"No match for FieldRef\.Name\((.*)\) in ")


@dataclass(frozen=True)
class Compiled:
    """An expression with the user's text."""

    expression: pc.Expression
    text: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _compiled, (self.expression, self.text, kernels_of(self.expression))


def _compiled(expression: pc.Expression, text: str, kernels: list[str]) -> Compiled:
    """Makes a pickled expression in a process that has not compiled it."""
    import barrier_runtime.data.sql.named  # noqa: F401 - the kernels

    for each in kernels:
        register(each)
    return Compiled(expression, text)


def columns_used(schema: pa.Schema, expressions: list[pc.Expression]) -> frozenset[str] | None:
    """Names of the columns of `schema` that `expressions` need; None if unknown, as for columns by number.

    The expressions must suit `schema`. Arrow reports missing columns one at a time.
    """
    if any("FieldPath" in str(expression) for expression in expressions):
        return None
    needed: set[str] = set()
    while True:
        try:
            evaluated_types(pa.schema([field for field in schema if field.name in needed]), expressions, "")
        except InvalidJob as error:
            missing = _UNKNOWN.match(str(error.__cause__))
            if missing is None or missing.group(1) in needed or missing.group(1) not in schema.names:
                return None
            needed.add(missing.group(1))
        else:
            return frozenset(needed)


def evaluate(
    batch: pa.RecordBatch,
    expressions: list[pc.Expression],
    where: str,
    parts: Mapping[str, pc.Expression] | None = None,
) -> list[pa.Array]:
    """One array per expression. `parts`: columns that are computed before, by name (`sql/shared_parts`)."""
    steps = [acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))]
    if parts:
        names = batch.schema.names
        kept = [pc.field(at) for at in range(len(names))]
        steps.append(acero.Declaration("project", acero.ProjectNodeOptions([*kept, *parts.values()], [*names, *parts])))
    numbered = [str(number) for number in range(len(expressions))]
    steps.append(acero.Declaration("project", acero.ProjectNodeOptions(expressions, numbered)))
    plan = acero.Declaration.from_sequence(steps)
    try:
        columns = plan.to_table(use_threads=False).columns
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        unknown = _UNKNOWN.match(str(error))
        if unknown is not None:
            raise no_column(unknown.group(1), batch.schema.names, where) from error
        raise InvalidJob(
            f"{where}: the expression cannot be computed: {error}. The rows have the columns "
            f"{described(batch.schema)}: correct the expression, or filter such rows before it"
        ) from error
    return [one_array(column) for column in columns]


def evaluated_types(schema: pa.Schema, expressions: list[pc.Expression], where: str) -> list[pa.DataType]:
    """The types of `evaluate`, by the same plan without rows: mistakes show before the job starts."""
    return [array.type for array in evaluate(no_rows(schema), expressions, where)]
