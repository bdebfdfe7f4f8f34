"""Several streams become one: whatever comes in on any port goes out. Watermarks are merged by the subtask's inputs."""

import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.state.errors import InvalidJob


class UnionOperator(Operator):
    def __init__(self, name: str) -> None:
        self._name = name
        self._schema: pa.Schema | None = None

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if self._schema is None:
            self._schema = batch.rows.schema
        elif batch.rows.schema is not self._schema and not batch.rows.schema.equals(self._schema):
            raise InvalidJob(
                f"union {self._name!r}: input {port} has the columns "
                f"{', '.join(f'{f.name}: {f.type}' for f in batch.rows.schema)}, earlier ones had "
                f"{', '.join(f'{f.name}: {f.type}' for f in self._schema)}: select() the same columns in every input"
            )
        emit(batch)
