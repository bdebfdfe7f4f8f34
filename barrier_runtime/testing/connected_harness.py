"""`ConnectedHarness`: runs a function of `connect` alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.row_class import AnyRow, RowClass, row_class
from barrier_runtime.data.schemas import SchemaLike, SchemaOf, as_schema
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.connected import (
    ConnectedInput,
    ConnectedOperator,
    SequenceOperator,
    Switch,
    check_switch,
)
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.retry import Retry
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.testing.function_harness import NAME, FunctionHarness, HarnessSnapshot, Out, key_columns

_WHERE = "ConnectedHarness"


@dataclass(frozen=True)
class ConnectedHarnessSnapshot:
    """State of a `ConnectedHarness` at a barrier."""

    content: HarnessSnapshot
    rows: Mapping[str, pa.Schema]


@kinds_checked
class ConnectedHarness(FunctionHarness[Out]):
    """Runs the functions that `connect(…).process` runs.

    >>> with ConnectedHarness(Match, keys={"orders": "id", "payments": "order_id"}, broadcast=["limits"]) as harness:
    ...     harness.push("limits", {"shop": "a", "max": 10.0})
    ...     assert harness.push("orders", {"id": 1, "shop": "a", "amount": 12.0}) == [{"id": 1, "refused": True}]
    ...     assert harness.broadcast("limits") == {"a": 10.0}

    `keys`: the inputs by key, each with the column or columns of its `key_by`. `broadcast`: the other inputs. `rows`:
    schemas of pushed rows by input; default: the types of an input's first row (several broadcast inputs need schemas).
    `event_time`: a column of all inputs by key, or a dict of input to column. The other arguments are those of
    `KeyedHarness`. A snapshot is refused if copies of broadcast state differ between subtasks. With
    `broadcast={"limits": "barrier"}`, `snapshot()` is a barrier: the next call returns results of handlers for rows
    that become valid there.
    """

    def __init__(
        self,
        function: Any,
        *,
        keys: Mapping[str, str | Sequence[str]],
        broadcast: Sequence[str] | Mapping[str, Switch] = (),
        rows: Mapping[str, SchemaLike] | None = None,
        schema: SchemaOf[Out] | None = None,
        event_time: str | Mapping[str, str] | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError | Retry = "fail",
        parallelism: int = 1,
        max_parallelism: int = 128,
        restore: ConnectedHarnessSnapshot | None = None,
        wall_ms: int | None = None,
    ) -> None:
        if restore is not None and not isinstance(restore, ConnectedHarnessSnapshot):
            raise InvalidJob(f"{_WHERE}: restore={restore!r}: give what snapshot() of such a harness returned")
        if not keys:
            raise InvalidJob(f"{_WHERE}: keys= is empty: name the inputs by key, as in keys={{'orders': 'id'}}")
        for name in (*keys, *broadcast):
            if not callable(getattr(function, f"on_{name}", None)):
                raise InvalidJob(f"{_WHERE}: function={function!r} has no on_{name}(): pass a class that has it")
        known = dict(restore.rows) if restore is not None else {}
        known |= {name: as_schema(each, f"{_WHERE}, input {name!r}", "rows") for name, each in (rows or {}).items()}
        classes = {name: row_class(each, f"{_WHERE}, input {name!r}") for name, each in (rows or {}).items()}
        self._classes = classes
        times = dict.fromkeys(keys, event_time) if isinstance(event_time, str) else dict(event_time or {})
        inputs = [
            ConnectedInput(name, key_columns(key, _WHERE), known.get(name), times.get(name), rows=classes.get(name))
            for name, key in keys.items()
        ]
        switches: Mapping[str, Switch] = (
            broadcast if isinstance(broadcast, Mapping) else dict.fromkeys(broadcast, "row")
        )
        for name, switch in switches.items():
            check_switch(switch, f"{_WHERE}, input {name!r}")
            inputs.append(ConnectedInput(name, (), known.get(name), times.get(name), switch, classes.get(name)))
        if len(broadcast) > 1 and not known.keys() >= set(broadcast):
            raise InvalidJob(f"{_WHERE}: there are several broadcast inputs: give the schema of each in rows=")
        self._function, self._input_rows = function, known
        self._inputs = {input.name: input for input in inputs}
        self._ports = [input.name for input in inputs if input.keys]
        self._broadcast = [input.name for input in inputs if not input.keys]
        self._operators: list[ConnectedOperator] = []
        schemas = [known.get(name) for name in self._broadcast]
        self._sequencer = SequenceOperator("broadcast", self._broadcast, schemas) if self._broadcast else None
        self._turn_to(inputs[0].name)
        content = None if restore is None else restore.content
        super().__init__(schema, side, on_error, parallelism, max_parallelism, content, wall_ms)
        self._switch()

    def _made(
        self, output: pa.Schema | RowClass | None, side: Mapping[str, pa.Schema | RowClass], on_error: OnError | Retry
    ) -> ProcessOperator:
        made = ConnectedOperator(NAME, tuple(self._inputs.values()), self._function, output, side, on_error)
        self._operators.append(made)
        return made

    def push(self, input: str, *rows: AnyRow) -> list[Out]:
        """Processes rows of `input` one by one and returns the results.

        Every subtask receives rows of a broadcast input.
        """
        for row in rows:
            self._turn_to(input)
            self._row_class = self._classes.get(input)
            batch = self._batch(row)
            if input in self._ports:
                self._of(batch).process(Batch(batch, 0), self._emit, self._ports.index(input))
            else:
                self._to_all(batch, self._broadcast.index(input))
            self._input_rows[input] = batch.schema
            self._reached_by(batch)
        return self._taken()

    def broadcast(self, name: str) -> dict[Any, Any]:
        """Broadcast state `name`. Raises `InvalidJob` if copies differ between subtasks."""
        first, *others = [operator.content_of(name) for operator in self._operators]
        for subtask, other in enumerate(others, 1):
            if list(first.items()) != list(other.items()):
                raise InvalidJob(f"{_WHERE}: {name!r} is {first!r} in subtask 0, and {other!r} in subtask {subtask}")
        return first

    def snapshot(self) -> ConnectedHarnessSnapshot:
        """Completes a checkpoint and returns the snapshot."""
        snapshot = ConnectedHarnessSnapshot(self._snapshot(), dict(self._input_rows))
        self._switch()
        return snapshot

    def _switch(self) -> None:
        for operator in self._operators:
            operator.switch(self._emit)

    def _turn_to(self, name: str) -> None:
        if name not in self._inputs:
            raise InvalidJob(f"{_WHERE}: there is no input {name!r}, only {', '.join(map(repr, self._inputs))}")
        input = self._inputs[name]
        self._rows, self._keys, self._event_time = self._input_rows.get(name), input.keys, input.event_time

    def _at(self, key: Any, at_ms: int | None = None) -> ProcessOperator:
        known = next((name for name in self._ports if name in self._input_rows), self._ports[0])
        self._turn_to(known)
        for operator in self._operators:
            operator.turn_to(self._ports.index(known))
        return super()._at(key, at_ms)

    def _to_all(self, batch: pa.RecordBatch, number: int) -> None:
        assert self._sequencer is not None

        def to_each(sequenced: Batch) -> None:
            for operator in self._operators:
                operator.process(sequenced, self._emit, len(self._ports))

        self._sequencer.process(Batch(batch, 0), Emit(to_each), number)
