"""The tree of a `pyarrow.compute` expression: its parts, and its functions as calls.

Arrow exposes an expression's parts only in serialised form: an Arrow file of a single row, whose columns are literals
and options, and whose schema's metadata is the tree, in walk order:

    call f … options i, end f     a call, with its arguments between, and a column of options if it has any
    literal i · field_ref name    a leaf

An expression that changes when read and written again has no tree here.

A plan of Arrow's engine costs about 100 us per batch, a call 3 us, so `FunctionCalls` evaluates small batches. An
expression binds other kernels than a call in one case: where types differ, an expression first gives literals the
smallest type. Such expressions have no calls, except that a whole number gets the type of a signed column.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.schemas import no_rows

_Token: TypeAlias = tuple[str, str]
_METADATA = "-- schema metadata --\n"
_LONGEST = 1_000_000  # characters of an expression whose tree is looked at: about 2 s
_made: Any = pc.scalar(0).__reduce__()[0]
_WHOLE: dict[str, Any] = {"truncate_metadata": False}
if "element_size_limit" in (pa.Schema.to_string.__doc__ or ""):  # releases of Arrow that shorten long names
    _WHOLE["element_size_limit"] = 2**31 - 1


@dataclass(frozen=True)
class Tree:
    tokens: list[_Token]
    row: pa.RecordBatch

    @staticmethod
    def of(expression: pc.Expression) -> "Tree | None":
        if len(str(expression)) > _LONGEST:
            return None
        try:
            (buffer,) = expression.__reduce__()[1]
            row = pa.ipc.open_file(buffer).get_batch(0)
            _, _, told = row.schema.to_string(**_WHOLE).partition(_METADATA)
            pairs = [line.partition(": ") for line in told.splitlines()]
            tree = Tree([(key, value[1:-1]) for key, _, value in pairs], row)
            return tree if tree.part(0, len(pairs)).equals(expression) else None
        except (pa.ArrowException, ValueError):
            return None  # a column by number, or a name with a line break

    def calls(self, numbers: dict[object, int]) -> list[tuple[int, int, int]]:
        """(number, first token, last token + 1) of each call that reads a column. Equal calls have equal numbers.
        `numbers`: of the parts of all trees so far.
        """
        levels: list[list[object]] = [[]]
        begun, found = list[int](), list[tuple[int, int, int]]()
        reads = dict[int, bool]()
        for at, (key, text) in enumerate(self.tokens):
            if key == "call":
                begun.append(at)
                levels.append([text])
                continue
            if key == "end":
                inner, first = levels.pop(), begun.pop()
                number = numbers.setdefault(("call", *inner), len(numbers))
                reads[number] = any(isinstance(each, int) and reads[each] for each in inner)
                if reads[number]:
                    found.append((number, first, at + 1))
            else:
                stored = self._stored[int(text)] if key in ("literal", "options") else text
                number = numbers.setdefault((key, stored), len(numbers))
                reads[number] = key == "field_ref"
            levels[-1].append(number)
        return found

    @cached_property
    def _stored(self) -> list[bytes]:
        """Type and bytes of each literal and of each call's options."""
        return [
            pa.record_batch([each], names=[""]).serialize().to_pybytes() + str(each.type).encode() for each in self.row
        ]

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

    def options(self, column: int) -> pc.FunctionOptions:
        batch = pa.record_batch([self.row.column(column)], names=[""])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return pc.FunctionOptions.deserialize(sink.getvalue())


@dataclass(frozen=True)
class _Call:
    function: pc.Function
    arguments: int
    options: pc.FunctionOptions | None


_Value: TypeAlias = pa.Array | pa.Scalar
_Program: TypeAlias = list[str | _Call | pa.Scalar]  # in postfix order; a text is a column's name
_FIRST_DIFFERS = ("if_else", "case_when")  # the first argument is the condition
_ANY_TYPES = "make_struct"
_REGROUPED = ("add", "multiply")  # the engine computes `a * (b * c)` as `(a * b) * c`, which rounds floats otherwise
OWN_FUNCTIONS = "barrier_runtime"  # prefix of names; their kernels take exactly the declared types


@dataclass(frozen=True)
class FunctionCalls:
    """Expressions as calls, for rows of one schema. `parts` are computed first, and have names as columns have."""

    columns: dict[str, int]
    parts: dict[str, _Program]
    results: list[_Program]

    @staticmethod
    def of(
        parts: Mapping[str, pc.Expression], expressions: Sequence[pc.Expression], schema: pa.Schema
    ) -> "FunctionCalls | None":
        """None if an expression has no calls that surely give the same."""
        if len(set(schema.names)) < len(schema):
            return None
        known: dict[str, _Value] = dict(zip(schema.names, no_rows(schema).columns, strict=True))
        programs = list[_Program]()
        for name, expression in [*parts.items(), *((None, each) for each in expressions)]:
            program = _program(expression, known)
            if program is None:
                return None
            result = _run(program, known)
            if not isinstance(result, pa.Array):
                return None
            if name is not None:
                known[name] = result
            programs.append(program)
        used = {step for program in programs for step in program if isinstance(step, str)}
        return FunctionCalls(
            {name: at for at, name in enumerate(schema.names) if name in used},
            dict(zip(parts, programs, strict=False)),
            programs[len(parts) :],
        )

    def __call__(self, rows: pa.RecordBatch) -> list[pa.Array]:
        values: dict[str, _Value] = {name: rows.column(at) for name, at in self.columns.items()}
        for name, program in self.parts.items():
            values[name] = _run(program, values)
        return [_run(program, values) for program in self.results]


def _run(program: _Program, values: Mapping[str, _Value]) -> _Value:
    stack = list[_Value]()
    for step in program:
        if isinstance(step, str):
            stack.append(values[step])
        elif isinstance(step, _Call):
            arguments = stack[-step.arguments :]
            del stack[-step.arguments :]
            stack.append(step.function.call(arguments, step.options))
        else:
            stack.append(step)
    (result,) = stack
    return result


def _program(expression: pc.Expression, columns: Mapping[str, _Value]) -> _Program | None:
    """Runs each call on `columns`, which are empty, to learn the types."""
    tree = Tree.of(expression)
    if tree is None:
        return None
    levels: list[list[tuple[_Program, _Value]]] = [[]]
    options: pc.FunctionOptions | None = None
    for key, text in tree.tokens:
        if key == "call":
            levels.append([])
        elif key == "field_ref" and text in columns:
            levels[-1].append(([text], columns[text]))
        elif key == "literal":
            literal = tree.row.column(int(text))[0]
            levels[-1].append(([literal], literal))
        elif key == "options":
            options = tree.options(int(text))
        elif key == "end":
            call = _call(text, levels.pop(), options)
            if call is None:
                return None
            levels[-1].append(call)
            options = None
        else:
            return None
    ((program, _),) = levels[0]
    return program


def _call(
    name: str, arguments: list[tuple[_Program, _Value]], options: pc.FunctionOptions | None
) -> tuple[_Program, _Value] | None:
    bound = _bound(name, arguments)
    if not bound:
        return None
    call = _Call(pc.get_function(name), len(bound), options)
    try:
        result = call.function.call([value for _, value in bound], options)
    except pa.ArrowException:
        return None  # the plan says why
    if name in _REGROUPED and pa.types.is_floating(result.type):
        return None
    return [*(step for program, _ in bound for step in program), call], result


def _bound(name: str, arguments: list[tuple[_Program, _Value]]) -> list[tuple[_Program, _Value]] | None:
    """The arguments for which a call and an expression bind the same kernel; None if that is not sure."""
    values = [value for _, value in arguments]
    literals = [value for value in values if isinstance(value, pa.Scalar)]
    if not literals or name == _ANY_TYPES or name.startswith(OWN_FUNCTIONS):
        return arguments
    first = name in _FIRST_DIFFERS
    kinds = _kinds(values[first:])
    if len(kinds) == 1:
        return arguments
    columns = _kinds(value for value in values[first:] if isinstance(value, pa.Array))
    if len(columns) != 1 or not pa.types.is_signed_integer(kind := columns.pop()):
        return None
    fitted = arguments[:first]
    for program, value in arguments[first:]:
        if isinstance(value, pa.Scalar) and value.type != kind:
            if not (len(program) == 1 and value.is_valid and pa.types.is_integer(value.type)):
                return None
            try:
                value = value.cast(kind)
            except pa.ArrowInvalid:
                return None
            program = [value]
        fitted.append((program, value))
    return fitted


def _kinds(values: Iterable[_Value]) -> set[pa.DataType]:
    return {value.type for value in values}
