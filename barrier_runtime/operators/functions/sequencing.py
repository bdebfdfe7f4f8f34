"""One order for broadcast rows: all broadcast inputs of a step go through subtask 0 of a sequencer.

With several senders every receiver would see another order, and copies of state would differ (see
docs/design/broadcast-state.md). Several broadcast inputs of a step share an edge, whose rows have a struct column per
input, null in rows of other inputs. A single input passes unchanged.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit, Operator

_INPUT = "@input"  # not a possible name of an input


def sequenced_schema(names: Sequence[str], schemas: Sequence[pa.Schema | None]) -> pa.Schema | None:
    """Returns the schema of rows after the sequencer; with several names all `schemas` are known."""
    if len(names) == 1:
        return schemas[0]
    known = [schema for schema in schemas if schema is not None]
    fields = [pa.field(name, pa.struct(list(schema))) for name, schema in zip(names, known, strict=True)]
    return pa.schema([pa.field(_INPUT, pa.int16()), *fields])


class SequenceOperator(Operator):
    """Passes the rows of each input on in order of arrival. All rows are in subtask 0."""

    def __init__(self, name: str, names: Sequence[str], schemas: Sequence[pa.Schema | None]) -> None:
        self._schema = sequenced_schema(names, schemas) if len(names) > 1 else None

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if self._schema is None:
            emit(batch)
            return
        rows = batch.rows
        columns: list[pa.Array] = [pa.array(np.full(rows.num_rows, port), pa.int16())]
        for number, field in enumerate(list(self._schema)[1:]):
            if number == port:
                columns.append(pa.StructArray.from_arrays(rows.columns, fields=list(field.type)))
            else:
                columns.append(pa.nulls(rows.num_rows, field.type))
        emit(batch.having(pa.RecordBatch.from_arrays(columns, schema=self._schema)))


def by_input(batch: Batch) -> Iterator[tuple[int, Batch]]:
    """Returns (input, rows) of a batch from a sequencer with several inputs, in its order."""
    rows = batch.rows
    inputs = rows.column(0).to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(inputs)) + 1).tolist(), rows.num_rows]
    for start, end in pairwise(starts):
        part = batch.slice(start, end - start)
        number = int(inputs[start])
        struct = rows.column(1 + number).slice(start, end - start)
        names = [field.name for field in struct.type]
        yield number, part.having(pa.RecordBatch.from_arrays(struct.flatten(), names=names))
