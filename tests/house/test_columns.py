"""The only way into a column: values that users give become Arrow through `data/values`, which keeps or refuses each
value.

Arrow's own conversions change values silently. So a type that is not stated at the call is handled by `column_of`,
`column_of_json`, `column_of_texts` or `kept_cast`; code that builds the runtime's own columns is listed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.parsed import nodes

ROOT = Path(__file__).resolve().parents[2]
CONVERTER = "barrier_runtime/data/values/"
_STATE = "values of the runtime's own state, in the types that it stored"
_SINK = "columns on their way out, whose types the target has"
_EMPTY = "columns without rows"
ALLOWED = {
    "barrier_runtime/api/windowed.py": _EMPTY,
    "barrier_runtime/connectors/files/source/binary.py": "bytes, size and time of a file, as the store tells them",
    "barrier_runtime/connectors/iceberg/data_files.py": "paths and sizes of the table's own files",
    "barrier_runtime/connectors/kafka/sink/records.py": _SINK,
    "barrier_runtime/connectors/kafka/source/debezium_columns.py": "texts of decimals, whose form was checked",
    "barrier_runtime/connectors/parquet_format.py": "times of INT96, compared after the cast",
    "barrier_runtime/connectors/postgres/changes/values.py": "bytes and times, parsed from PostgreSQL's own text",
    "barrier_runtime/connectors/sink_bases/sql/columns.py": _SINK,
    "barrier_runtime/data/few_rows.py": "lists that were made from Arrow, or checked by `accepted`",
    "barrier_runtime/data/keys.py": _STATE,
    "barrier_runtime/data/rows.py": "columns as Python values: the way out",
    "barrier_runtime/data/schemas.py": _EMPTY,
    "barrier_runtime/data/sql/arguments.py": "a whole number beside a double is a double, as in Spark; cast constants",
    "barrier_runtime/data/sql/kernels.py": "results of functions of SQL, in the type that the function has",
    "barrier_runtime/operators/aggregation/batch_values.py": "numbers that an aggregate of floats takes",
    "barrier_runtime/operators/aggregation/kinds/cell_outputs.py": _STATE,
    "barrier_runtime/operators/aggregation/plan.py": _STATE,
    "barrier_runtime/operators/aggregation/state_columns.py": _STATE,
    "barrier_runtime/operators/deduplication/operator.py": _STATE,
    "barrier_runtime/spark/frame_source.py": "sizes and names of files that were written",
    "barrier_runtime/state_tables/beside_keyed.py": _STATE,
    "barrier_runtime/state_tables/stored_state.py": _STATE,
    "barrier_runtime/state_tables/wanted_keys.py": "a key that a person writes, whose cast is refused where it is none",
    "barrier_runtime/testing/environment.py": "rows that the certification makes",
}


def _is_written_down(kind: ast.expr) -> bool:
    """`pa.int64()`, `_TIME`, `METADATA[name]`: a type that no user declares."""
    if isinstance(kind, ast.Call):
        called = kind.func
        return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "pa"
    named = kind.value if isinstance(kind, ast.Subscript) else kind
    return isinstance(named, ast.Name) and named.id.lstrip("_").isupper()


def _conversions(file: str) -> Iterator[int]:
    """Lines that make columns by Arrow's own conversions of values."""
    for node in nodes(file):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, options = node.func.attr, {each.arg: each.value for each in node.keywords}
        if name == "array" and isinstance(node.func.value, ast.Name) and node.func.value.id == "pa":
            kinds = [*node.args[1:2], *(options[each] for each in ("type",) if each in options)]
            if kinds and not _is_written_down(kinds[0]):
                yield node.lineno
        elif name == "table" and "schema" in options:
            yield node.lineno
        elif name in ("from_pylist", "from_pydict"):
            if not (node.args and isinstance(node.args[0], ast.List) and not node.args[0].elts):
                yield node.lineno
        elif name == "cast" and "safe" in options:
            yield node.lineno


def _found() -> dict[str, list[int]]:
    files = (str(file.relative_to(ROOT)) for file in sorted((ROOT / "barrier_runtime").rglob("*.py")))
    lines = {file: list(_conversions(file)) for file in files if not file.startswith(CONVERTER)}
    return {file: found for file, found in lines.items() if found}


def test_values_of_users_become_columns_by_the_converter() -> None:
    found = _found()
    assert {file: lines for file, lines in found.items() if file not in ALLOWED} == {}, "use column_of or kept_cast"
    assert ALLOWED.keys() - found.keys() == set(), "no exception any more"
