"""Evaluates `pyarrow.compute` expressions on a batch, and their common parts once.

Arrow exposes an expression's parts only in serialised form: an Arrow file of a single row, whose columns are literals
and options, and whose schema's metadata is the tree, in walk order:

    call f … options i, end f     a call, with its arguments between, and a column of options if it has any
    literal i · field_ref name    a leaf

A common part is a slice of the walk, replaced by a precomputed column. An expression that changes when read and
written again shares nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

import barrier_runtime.data.sql.kernels
import barrier_runtime.data.sql.texts  # noqa: F401 - functions that expressions call by their names
from barrier_runtime.data.schemas import described, no_column, no_rows, one_array
from barrier_runtime.data.sql.kernels import kernels_of, register
from barrier_runtime.state.errors import InvalidJob

_Token: TypeAlias = tuple[str, str]
_METADATA = "-- schema metadata --\n"
_BEGINS_A_CALL = re.compile(r"[({]")  # in an expression's text, where literals and options may have them too
_made: Callable[[pa.Buffer], pc.Expression] = pc.scalar(0).__reduce__()[0]


@dataclass(frozen=True)
class Shared:
    parts: dict[str, pc.Expression]
    expressions: list[pc.Expression]


def shared(expressions: Sequence[pc.Expression], columns: Sequence[str]) -> Shared:
    if len(set(columns)) < len(columns):  # the names would be ambiguous
        return Shared({}, list(expressions))
    if sum(len(_BEGINS_A_CALL.findall(str(expression))) for expression in expressions) < 2:
        return Shared({}, list(expressions))
    trees = [_Tree.of(expression) for expression in expressions]
    shapes = Counter(tree.shape(*call) for tree in trees if tree is not None for call in tree.calls)
    found: dict[str, list[tuple[int, int, int, pc.Expression]]] = {}
    for number, tree in enumerate(trees):
        if tree is None:
            continue
        for first, last in tree.calls:
            if shapes[tree.shape(first, last)] == 1:
                continue  # making the part is most of the work
            part = tree.part(first, last)
            same = found.setdefault(str(part), [])
            if not same or same[0][3].equals(part):
                same.append((number, first, last, part))
    parts: dict[str, pc.Expression] = {}
    replaced: list[list[tuple[int, int, str]]] = [[] for _ in trees]
    for places in sorted(found.values(), key=lambda each: each[0][1] - each[0][2]):
        free = [each for each in places if not any(first <= each[1] < last for first, last, _ in replaced[each[0]])]
        if len(free) > 1:
            name = f"shared part {len(parts)}"
            while name in columns:
                name += " "
            parts[name] = free[0][3]
            for number, first, last, _ in free:
                replaced[number].append((first, last, name))
    return Shared(
        parts,
        [
            expression if tree is None or not places else tree.without(places)
            for expression, tree, places in zip(expressions, trees, replaced, strict=True)
        ],
    )


@dataclass(frozen=True)
class _Tree:
    tokens: list[_Token]
    row: pa.RecordBatch

    @staticmethod
    def of(expression: pc.Expression) -> "_Tree | None":
        try:
            (buffer,) = expression.__reduce__()[1]
            row = pa.ipc.open_file(buffer).get_batch(0)
            _, _, told = row.schema.to_string(truncate_metadata=False).partition(_METADATA)
            pairs = [line.partition(": ") for line in told.splitlines()]
            tree = _Tree([(key, value[1:-1]) for key, _, value in pairs], row)
            return tree if tree.part(0, len(pairs)).equals(expression) else None
        except (pa.ArrowException, ValueError):
            return None  # a column by number, or a name with a line break

    @property
    def calls(self) -> list[tuple[int, int]]:
        begun, found = list[int](), list[tuple[int, int]]()
        for at, (key, _) in enumerate(self.tokens):
            if key == "call":
                begun.append(at)
            elif key == "end":
                first = begun.pop()
                if any(key == "field_ref" for key, _ in self.tokens[first:at]):
                    found.append((first, at + 1))
        return found

    def shape(self, first: int, last: int) -> tuple[_Token, ...]:
        """Equal for equal parts: without the places of literals and options in the row."""
        return tuple((key, value if key in ("call", "field_ref") else "") for key, value in self.tokens[first:last])

    def part(self, first: int, last: int) -> pc.Expression:
        return self._made_of(self.tokens[first:last])

    def without(self, places: Sequence[tuple[int, int, str]]) -> pc.Expression:
        tokens = list(self.tokens)
        for first, last, name in sorted(places, reverse=True):
            tokens[first:last] = [("field_ref", name)]
        return self._made_of(tokens)

    def _made_of(self, tokens: Sequence[_Token]) -> pc.Expression:
        told: Any = pa.KeyValueMetadata(tokens)  # repeated keys, so no dict
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self.row.schema.with_metadata(told)) as writer:
            writer.write_batch(self.row.replace_schema_metadata(told))
        return _made(sink.getvalue())


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


def evaluated_types(schema: pa.Schema, expressions: list[pc.Expression], where: str) -> list[pa.DataType]:
    return [array.type for array in evaluate(no_rows(schema), expressions, where)]
