"""The step of `connect`: a keyed function with several inputs, each with its handler.

Handlers of broadcast rows run without a key, at once or after the next barrier (`switching`). Design:
docs/design/broadcast-state.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import described
from barrier_runtime.operators.base import Capture, Emit, Operator, OperatorContext
from barrier_runtime.operators.functions.columns_read import Reads, each_row_tried, row_again, rows_read
from barrier_runtime.operators.functions.instances import check_made
from barrier_runtime.operators.functions.process import ProcessOperator, no_key
from barrier_runtime.operators.functions.switching import WaitingRows
from barrier_runtime.operators.keyed.progress import check_same, columns_of, schema_bytes
from barrier_runtime.operators.outputs.failures import guarded
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.state.broadcast import ConnectedKey
from barrier_runtime.operators.state.broadcast_copy import BroadcastCopies
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.errors import InvalidJob, UserCodeError

_INPUT = "@input"  # not a possible name of an input


def sequenced_schema(names: Sequence[str], schemas: Sequence[pa.Schema | None]) -> pa.Schema | None:
    """Schema of the edge of these inputs. Only a single input may have an unknown schema (None)."""
    if len(names) == 1:
        return schemas[0]
    known = [schema for schema in schemas if schema is not None]
    fields = [pa.field(name, pa.struct(list(schema))) for name, schema in zip(names, known, strict=True)]
    return pa.schema([pa.field(_INPUT, pa.int16()), *fields])


class SequenceOperator(Operator):
    """Orders broadcast inputs by arrival in subtask 0, so that copies of state agree.

    Rows of the edge have a struct column per input, null in rows of other inputs.
    """

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
    """Yields (input, rows) of a sequencer's batch, in order."""
    rows = batch.rows
    inputs = rows.column(0).to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(inputs)) + 1).tolist(), rows.num_rows]
    for start, end in pairwise(starts):
        part = batch.slice(start, end - start)
        number = int(inputs[start])
        struct = rows.column(1 + number).slice(start, end - start)
        names = [field.name for field in struct.type]
        yield number, part.having(pa.RecordBatch.from_arrays(struct.flatten(), names=names))


Switch: TypeAlias = Literal["row", "barrier"]
_INPUTS = "inputs"  # snapshot value: keyed inputs in the order of their ports


@dataclass(frozen=True)
class ConnectedInput:
    name: str
    keys: tuple[str, ...]  # columns; empty: a broadcast input
    schema: pa.Schema | None
    event_time: str | None = None
    switch: Switch = "row"
    rows: RowClass | None = None  # None: dicts

    @property
    def handler(self) -> str:
        return f"on_{self.name}"


class _Port:
    def __init__(self, input: ConnectedInput) -> None:
        self.input = input
        self.call: Callable[..., Any] | None = None
        self.reads: Reads = None
        self.seen: pa.Schema | None = None
        self.codec: KeyCodec | None = None  # of a keyed input, once the columns are known


class ConnectedOperator(ProcessOperator):
    """Keyed inputs have the ports from 0 up, in order; all broadcast inputs share the next port."""

    kind = "connect"

    def __init__(
        self,
        name: str,
        inputs: Sequence[ConnectedInput],
        function: Any,
        output: pa.Schema | RowClass | None = None,
        side: Mapping[str, pa.Schema | RowClass] | None = None,
        on_error: OnError | Retry = "fail",
    ) -> None:
        self._keyed = [_Port(input) for input in inputs if input.keys]
        self._broadcast = [_Port(input) for input in inputs if not input.keys]
        self._waits = any(port.input.switch == "barrier" for port in self._broadcast)
        self._at = self._keyed[0]
        columns = canonical_keys(len(self._at.input.keys))
        super().__init__(name, columns, function, None, None, output, None, side, on_error)
        self._event_time = _least_known([port.input.event_time for port in self._keyed])
        self._ready = False
        self._names = ", ".join(port.input.name for port in self._keyed).encode()

    def _made_current(self) -> CurrentKey:
        return ConnectedKey()

    def open(self, context: OperatorContext) -> None:
        for snapshot in context.restored:
            if snapshot.in_flight and snapshot.values.get(_INPUTS, self._names) != self._names:
                raise InvalidJob(
                    f"{self.where}: the checkpoint has rows in flight to its inputs by key, which were "
                    f"{snapshot.values[_INPUTS].decode()} then and are {self._names.decode()} now: start the old "
                    "version of the program, let it end with stop(), and start the new one from there"
                )
        names = {port.input.name: port for port in self._broadcast}
        self._waiting, self._named = WaitingRows(self.where, context.subtask, names, context.restored), names
        copies = BroadcastCopies(self.name, context.subtask, context.exactly_once, context.restored)
        self._copies = copies
        assert isinstance(self._current, ConnectedKey)
        self._current.copies = copies
        self._speaks = context.subtask == 0
        super().open(context)
        self.bind(pa.schema([]))  # broadcast rows may arrive before rows with a key
        copies.opened()
        for port in self._keyed:
            if port.input.schema is not None:
                self._turn_to(port)
                self._check(port.input.schema)
                port.seen = self._seen

    def bind(self, columns: pa.Schema) -> None:
        if self._ready:
            return
        self._ready = True
        super().bind(columns)
        self.by_clock = True  # broadcast rows also become valid in `on_wall_clock`
        for port in (*self._keyed, *self._broadcast):
            port.call = getattr(self._target, port.input.handler)
            port.reads = rows_read(port.call, 1 if port.input.keys else 0, port.input.rows)
        if self._failures is not None:
            for port in self._keyed:
                assert port.call is not None
                port.call = guarded(port.call, self._take, self._sides, self._failures, of_rows=True)
        if self._undo is not None:
            self._undo.add(self._copies)
            for port in (*self._keyed, *self._broadcast):
                port.call = self._repeated(port.call)

    @property
    def state_keys(self) -> tuple[str, ...]:
        return self._columns  # independent of the latest input

    def snapshot(self, checkpoint: int) -> Capture:
        capture = super().snapshot(checkpoint)
        capture.values[_INPUTS] = self._names
        self._copies.add_to(capture)
        if self._waits:
            self._waiting.at_barrier(checkpoint, capture)
        return capture

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self.switch(emit)
        if port < len(self._keyed):
            at = self._keyed[port]
            self._turn_to(at)
            super().process(batch, emit, port)
            at.seen = self._seen
            return
        for number, part in [(0, batch)] if len(self._broadcast) == 1 else by_input(batch):
            at = self._broadcast[number]
            if at.input.switch == "row":
                self._process_broadcast(at, part, emit)
                continue
            self._waiting.add(at.input.name, part)
            if part.reached is not None:
                self._by_row = True
                super().on_watermark(int(part.reached[-1]), emit)

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self._before(watermark_ms, emit)
        super().on_watermark(watermark_ms, emit)

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        self._before(watermark_ms, emit)
        return super().toward(watermark_ms, emit)

    def _before(self, watermark_ms: int, emit: Emit) -> bool:
        if watermark_ms == WATERMARK_MAX:
            self._waiting.ended()
        return self.switch(emit)

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        switched = self._before(WATERMARK_MAX if last else WATERMARK_MIN, emit)
        return super().on_wall_clock(emit, last) or switched

    def before_barrier(self, emit: Emit) -> None:
        self.switch(emit)

    def switch(self, emit: Emit) -> bool:
        """Processes broadcast rows from before the last barrier; returns whether there were any."""
        if not self._waiting.due:
            return False
        due, self._waiting.due = self._waiting.due, []
        for name, batch in due:
            self._process_broadcast(self._named[name], batch, emit)
        return True

    def turn_to(self, port: int) -> None:
        """Makes input `port` the current input, for harnesses."""
        self._turn_to(self._keyed[port])

    def content_of(self, state: str) -> dict[Any, Any]:
        """For harnesses: this subtask's copy of a broadcast state."""
        return dict(vars(self._target)[state].items())

    def _turn_to(self, port: _Port) -> None:
        self._at = port
        self._key_columns = port.input.keys
        self._event_time = port.input.event_time
        self._seen = port.seen
        if port.call is not None:
            self._call, self._reads = port.call, port.reads
        if port.codec is not None:
            self.codec = port.codec

    def _accept(self, schema: pa.Schema) -> None:
        port = self._at
        where = f"{self.where}, input {port.input.name!r}"
        columns = columns_of(schema, port.input.keys, where)
        keys = pa.schema(
            [(name, field.type) for name, field in zip(canonical_keys(len(columns)), columns, strict=True)]
        )
        codec = KeyCodec(columns, port.input.keys, where)
        if self._bound is None:
            self._bind(keys)
        elif any(other.codec is not None for other in self._keyed) and not keys.equals(self._bound):
            raise InvalidJob(
                f"{where}: its keys are ({described(columns)}), but those of the inputs before are "
                f"({described(self._bound)}): cast them to the same types in a step before key_by()"
            )
        else:
            check_same(keys, self._bound, where)
        port.codec = self.codec = codec
        self.on_input_schema(schema)

    def _bind(self, columns: pa.Schema) -> None:
        self._bound = columns
        self._bound_bytes = schema_bytes(columns)
        self.codec = KeyCodec(columns, columns.names, self.where)
        self.bind(columns)

    def _process_broadcast(self, port: _Port, batch: Batch, emit: Emit) -> None:
        if port.seen is None or not batch.schema.equals(port.seen):
            self._event_time = port.input.event_time
            self.on_input_schema(batch.schema)
            port.seen = batch.schema
        self._event_time = port.input.event_time
        self._emit_ns = max(self._emit_ns, batch.emit_ns)
        if self._reclaiming is not None:
            self._reclaiming.begin()
        self._by_row = self._by_row or batch.reached is not None
        reached = None if batch.reached is None else batch.reached.tolist()
        given, context, current = self._nothing_given(), self._context, self._current
        self._begin(batch, self._watermark_ms if self._by_row else None)
        without_key = no_key(self.where, f"{port.input.handler}()")
        for at, (timestamp, row) in enumerate(
            zip(self._timestamps(batch), each_row_tried(batch, port.reads), strict=False)
        ):
            if reached is not None and reached[at] > self._watermark_ms:
                self._advance(reached[at], given)
            if self._by_row:
                self._sides.reached_ms = self._watermark_ms
            current.key, context.key = without_key, None
            context.timestamp, context.watermark = timestamp, self._watermark_ms
            rows = self._handled(port, row, batch, at)
            if self._speaks:
                given.rows += rows
            given.upto(self._watermark_ms)
        if self._replaceable:
            self._check_handles()
        if given.rows:
            emit(given.batch(self._writer, batch.schema, batch.emit_ns))
        self._flush_sides(emit, batch.emit_ns)

    def _handled(self, port: _Port, row: Row, batch: Batch, at: int) -> list[Row]:
        call: Any = port.call
        emitted, rows, failures = self._sides.counts(), list[Row](), self._failures
        self._copies.changes = port.input.handler
        try:
            check_made(row)
            result = call(row, self._context)
            if result is not None:
                self._take(result, rows, row_again(batch, at, port.reads))
        except UserCodeError:
            raise
        except Exception as error:
            self._check_handles()
            if failures is None or not failures.takes(error):
                raise self._failed(error, call, batch=batch.rows, row=at) from error
            self._sides.back_to(emitted)
            rows = []
            if self._speaks:
                failures.add(error, at, self._sides.reached_ms, event_time_ms=self._context.timestamp)
        finally:
            self._copies.changes = ""
        if not self._speaks:
            self._sides.back_to(emitted)
        return rows


def check_switch(switch: object, where: str) -> None:
    if switch not in ("row", "barrier"):
        raise InvalidJob(
            f"{where}: switch={switch!r}: pass 'row' (valid as soon as it comes) or 'barrier' (behind the next "
            "checkpoint barrier)"
        )


def canonical_keys(count: int) -> tuple[str, ...]:
    return tuple(f"key_{number}" for number in range(1, count + 1))


def _least_known(columns: Sequence[str | None]) -> str | None:
    return None if None in columns else columns[0]
