"""Evaluates `pyarrow.compute` expressions on a batch, and their common parts once.

A common part is a slice of a tree's walk, replaced by a precomputed column.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

import barrier_runtime.data.sql.kernels
import barrier_runtime.data.sql.texts  # noqa: F401 - functions that expressions call by their names
from barrier_runtime.data.expression_tree import FunctionCalls, Tree
from barrier_runtime.data.schemas import described, no_column, no_rows, one_array
from barrier_runtime.data.sql.kernels import kernels_of, register
from barrier_runtime.state.errors import InvalidJob

_BEGINS_A_CALL = re.compile(r"[({]")  # in an expression's text, where literals and options may have them too


@dataclass(frozen=True)
class Shared:
    parts: dict[str, pc.Expression]
    expressions: list[pc.Expression]


def shared(expressions: Sequence[pc.Expression], columns: Sequence[str]) -> Shared:
    if len(set(columns)) < len(columns):  # the names would be ambiguous
        return Shared({}, list(expressions))
    if sum(len(_BEGINS_A_CALL.findall(str(expression))) for expression in expressions) < 2:
        return Shared({}, list(expressions))
    trees = [Tree.of(expression) for expression in expressions]
    numbers: dict[object, int] = {}
    found: dict[int, list[tuple[Tree, int, int]]] = {}
    for tree in (each for each in trees if each is not None):
        for number, first, last in tree.calls(numbers):
            found.setdefault(number, []).append((tree, first, last))
    parts: dict[str, pc.Expression] = {}
    replaced: dict[int, list[tuple[int, int, str]]] = {id(tree): [] for tree in trees}
    for places in sorted(found.values(), key=lambda each: each[0][1] - each[0][2]):
        free = [
            (tree, first, last)
            for tree, first, last in places
            if len(places) > 1 and not any(begin <= first < end for begin, end, _ in replaced[id(tree)])
        ]
        if len(free) > 1:
            name = f"shared part {len(parts)}"
            while name in columns:
                name += " "
            tree, first, last = free[0]
            parts[name] = tree.part(first, last)
            for tree, first, last in free:
                replaced[id(tree)].append((first, last, name))
    return Shared(
        parts,
        [
            tree.without(replaced[id(tree)]) if tree is not None and replaced[id(tree)] else expression
            for expression, tree in zip(expressions, trees, strict=True)
        ],
    )


_UNKNOWN = re.compile(r"No match for FieldRef\.Name\((.*)\) in ")


@dataclass(frozen=True)
class Compiled:
    expression: pc.Expression
    text: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _compiled, (self.expression, self.text, kernels_of(self.expression))


def _compiled(expression: pc.Expression, text: str, kernels: list[str]) -> Compiled:
    import barrier_runtime.data.sql.named  # noqa: F401 - the kernels

    for each in kernels:
        register(each)
    return Compiled(expression, text)


def columns_used(schema: pa.Schema, expressions: list[pc.Expression]) -> frozenset[str] | None:
    """Columns of `schema` that `expressions` need; None if unknown, as for columns by number."""
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
    """One array per expression. `parts`: precomputed columns (`Shared`).
    Uses a single thread.
    """
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


def calls(common: Shared, schema: pa.Schema) -> FunctionCalls | None:
    """FunctionCalls that give what `evaluate` gives; None if that is not sure."""
    found = FunctionCalls.of(common.parts, common.expressions, schema)
    if found is None:
        return None
    none = no_rows(schema)
    planned, called = evaluate(none, common.expressions, "", common.parts), found(none)
    return found if [each.type for each in called] == [each.type for each in planned] else None


def evaluated_types(schema: pa.Schema, expressions: list[pc.Expression], where: str) -> list[pa.DataType]:
    return [array.type for array in evaluate(no_rows(schema), expressions, where)]
