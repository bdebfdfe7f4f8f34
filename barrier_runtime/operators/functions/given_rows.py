"""Row types of steps: the class, or the schema of dicts, that a user's function returns."""

import types
import typing
from collections.abc import Iterable, Mapping
from inspect import isroutine, unwrap
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from barrier_runtime.data.row_class import RowClass, is_row_class, row_class
from barrier_runtime.data.schemas import SchemaLike, as_schema
from barrier_runtime.operators.outputs.side_outputs import MAIN


class DeclaredRows(NamedTuple):
    """Rows that a function returns: their class, or their schema, or neither is known."""

    schema: pa.Schema | None
    rows: RowClass | None

    @property
    def writes(self) -> pa.Schema | RowClass | None:
        return self.schema if self.rows is None else self.rows

    @property
    def main(self) -> dict[str, RowClass]:
        return {} if self.rows is None else {MAIN: self.rows}


def given_rows(
    schema: SchemaLike | None, function: Any, method: str, where: str, returns: Literal["row", "rows", "any"] = "any"
) -> DeclaredRows:
    """Rows declared by `schema`, or by the annotation of what `function` (or its `method`) returns."""
    given: Any = (
        _annotated(function if isroutine(function) else getattr(function, method, None), returns)
        if schema is None
        else schema
    )
    if given is None:
        return DeclaredRows(None, None)
    rows = row_class(given, where)
    return DeclaredRows(as_schema(given, where) if rows is None else rows.schema, rows)


def side_classes(side: Mapping[str, SchemaLike] | None, where: str) -> dict[str, RowClass]:
    classes = {tag: row_class(schema, f"side output {tag!r} of {where}") for tag, schema in (side or {}).items()}
    return {tag: rows for tag, rows in classes.items() if rows is not None}


def _annotated(function: Any, returns: str) -> type | None:
    """Row class in `-> Order`, `-> Iterator[Order]` or `-> Order | None`."""
    try:
        annotations = getattr(function, "__annotations__", {})
        returned = types.SimpleNamespace(__annotations__={"return": annotations.get("return")})
        names = getattr(unwrap(function), "__globals__", {})
        return _class_in(typing.get_type_hints(returned, names)["return"], returns)
    except Exception:  # an annotation may be any text or value, or name something of a local scope
        return None


def _class_in(hint: Any, returns: str) -> type | None:
    if is_row_class(hint):
        return None if returns == "rows" else hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
        return _class_in(arguments[0], "row") if returns != "row" and arguments else None
    found = {_class_in(each, returns) for each in arguments if each is not type(None)} if _is_union(origin) else {None}
    return found.pop() if len(found) == 1 else None


def _is_union(origin: Any) -> bool:
    return origin in (typing.Union, types.UnionType)
