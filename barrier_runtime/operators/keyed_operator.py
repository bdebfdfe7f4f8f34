"""What all keyed operators share: one keyed backend, the watermark, and binding to the columns they depend on."""

from collections.abc import Sequence

import pyarrow as pa

from barrier_runtime.elements import WATERMARK_MIN
from barrier_runtime.keys import KeyCodec
from barrier_runtime.operators.base import Capture, Operator, OperatorContext
from barrier_runtime.operators.keyed_progress import (
    VALUE,
    Progress,
    check_same,
    columns_of,
    restored_progress,
    schema_bytes,
    schema_of,
)
from state.keyed_backend import KeyedBackend


class KeyedOperator(Operator):
    """Base of the stateful operators after `key_by`."""

    kind = "keyed operator"

    def __init__(self, name: str, keys: Sequence[str], columns: Sequence[str], schema: pa.Schema | None) -> None:
        """`columns`: all columns that the state depends on, keys included. `schema`: of the input, when known."""
        self.name = name
        self.where = f"{self.kind} {name!r}"
        self._key_columns = tuple(keys)
        self._columns = tuple(columns)
        self._declared = schema
        self._seen: pa.Schema | None = None  # the input's schema, once a batch came
        self._bound: pa.Schema | None = None  # the columns the state depends on
        self._bound_bytes = b""
        self._watermark_ms = WATERMARK_MIN
        self._emit_ns = 0
        self._opened = False

    def open(self, context: OperatorContext) -> None:
        self.context = context
        self.report = context.report
        self.backend: KeyedBackend = context.open_keyed()
        self._opened = True
        progress = restored_progress(context.restored, self.name)
        self._watermark_ms = progress.watermark_ms
        self._emit_ns = progress.emit_ns
        if progress.schema:
            self._bind(schema_of(progress.schema))
        if self._declared is not None:
            self._accept(self._declared)

    def snapshot(self, checkpoint: int) -> Capture:
        self.backend.freeze(checkpoint)
        progress = Progress(self._watermark_ms, self._emit_ns, self._bound_bytes)
        return Capture(values={VALUE: progress.encode()}, keyed=self.backend)

    def on_complete(self, checkpoint: int) -> None:
        self.backend.completed(checkpoint)

    def on_abort(self, checkpoint: int) -> None:
        self.backend.aborted(checkpoint)

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self.backend.close()

    def _check(self, schema: pa.Schema) -> None:
        """Called per batch: almost always the very same schema object."""
        if schema is not self._seen:
            if self._seen is None or not schema.equals(self._seen):
                self._accept(schema)
            self._seen = schema

    def _accept(self, schema: pa.Schema) -> None:
        columns = columns_of(schema, self._columns, self.where)
        if self._bound is None:
            self._bind(columns)
        else:
            check_same(columns, self._bound, self.where)
        self.on_input_schema(schema)

    def _bind(self, columns: pa.Schema) -> None:
        self._bound = columns
        self._bound_bytes = schema_bytes(columns)
        self.codec = KeyCodec(columns, self._key_columns, self.where)
        self.bind(columns)

    def bind(self, columns: pa.Schema) -> None:
        """Open the state tables. Called once: at `open` when types are known, else at the first batch."""

    def on_input_schema(self, schema: pa.Schema) -> None:
        """The input has this schema from now on."""
