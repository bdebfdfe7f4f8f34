"""`explode`: one row per element of an array, or per entry of a map."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.plain_rows import PlainRows, without_views
from barrier_runtime.data.values.json_columns import is_list
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.functions.batch_functions import column_of
from barrier_runtime.state.errors import InvalidJob

POSITION = pa.int32()  # of an element, as in Spark


class ExplodeOperator(Operator):
    """Emits the other columns of a row with each element, in the order of the elements."""

    def __init__(self, name: str, column: str, into: Sequence[str], outer: bool, position: str | None) -> None:
        """`into`: name of the element, or of key and value. `outer`: a row without elements goes out with nulls."""
        self._where = f"explode {name!r}"
        self._column = column
        self._into = list(into)
        self._outer = outer
        self._position = position
        self._takeable = PlainRows(without_views)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        batch = self._takeable.batch(batch)
        rows = batch.rows
        begins, counts, children = _parts(column_of(rows, self._column, self._where))
        given = np.maximum(counts, 1) if self._outer else counts
        parents = np.repeat(np.arange(len(rows)), given)
        if not len(parents):
            return
        places = np.arange(len(parents)) - np.repeat(np.cumsum(given) - given, given)
        absent = counts[parents] == 0
        at = pa.array(begins[parents] + places, mask=absent)
        columns: dict[str, pa.Array] = {}
        for field in rows.schema:
            if field.name == self._column:
                columns.update(zip(self._into, (child.take(at) for child in children), strict=True))
            else:
                columns[field.name] = rows.column(field.name).take(pa.array(parents))
        if self._position is not None:
            columns[self._position] = pa.array(places.astype(np.int32), mask=absent)
        emit(batch.only(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), parents))


def _parts(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[pa.Array]]:
    """First element of each row in the children, number of elements, and the children: elements, or keys and values."""
    if not pa.types.is_map(column.type) and not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    offsets = column.offsets.to_numpy().astype(np.int64)
    counts = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    is_map = pa.types.is_map(column.type)
    return offsets[:-1], counts, [column.keys, column.items] if is_map else [column.values]


def exploded(
    schema: pa.Schema, column: str, into: Sequence[str] | None, position: str | None, where: str
) -> tuple[list[str], pa.Schema]:
    """Names of the new columns in place of `column`, and the columns of the result."""
    kind = schema.field(column).type
    if pa.types.is_map(kind):
        names, kinds = list(into or ("key", "value")), [kind.key_type, kind.item_type]
    elif is_list(kind):
        names, kinds = list(into or (column,)), [kind.value_type]
    else:
        raise InvalidJob(f"{where}: column {column!r} is {kind}: it takes an array or a map")
    if len(names) != len(kinds):
        wanted = "names of the key and the value" if len(kinds) > 1 else "one name"
        raise InvalidJob(f"{where}: into={names!r}: give {wanted}")
    fields = list(schema)
    at = schema.names.index(column)
    fields[at : at + 1] = [pa.field(name, each) for name, each in zip(names, kinds, strict=True)]
    if position is not None:
        fields.append(pa.field(position, POSITION))
    output = pa.schema(fields)
    if twice := sorted({name for name in output.names if output.names.count(name) > 1}):
        raise InvalidJob(f"{where}: the output column {twice[0]!r} exists already: choose another name by into=")
    return names, output
