"""`connect`: several named streams as inputs of one keyed function."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import pyarrow as pa

from barrier_runtime.api.arguments import check_handlers, why_by_wall_clock, with_errors
from barrier_runtime.api.steps import OneStream, Outputs, WithErrors, need_watermarks, one_or_all
from barrier_runtime.api.stream import BroadcastStream, KeyedStream, Stream
from barrier_runtime.data.event_time import check_event_time_type
from barrier_runtime.data.schemas import SchemaLike, described, require_columns
from barrier_runtime.graph.logical import BROADCAST, Input, StepNode
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.functions.connected import (
    ConnectedInput,
    ConnectedOperator,
    SequenceOperator,
    canonical_keys,
    sequenced_schema,
)
from barrier_runtime.operators.functions.declared import (
    check_event_time_of_states,
    declared_states,
    needs_time_of_rows,
)
from barrier_runtime.operators.functions.given_rows import given_rows, side_classes
from barrier_runtime.operators.keyed.progress import keys_said
from barrier_runtime.operators.outputs.side_outputs import OnError, side_schemas
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from typing_extensions import Unpack

    class ConnectedProcess(TypedDict, total=False):
        schema: SchemaLike | None
        event_time: str | Mapping[str, str] | None


_TAKEN = ("timer", "wall_timer")  # their handlers are those of timers


def connect(*unnamed: object, **inputs: KeyedStream | BroadcastStream) -> "ConnectedStreams":
    """Connects streams to one function, each under its keyword.

    Rows of streams by key meet at equal values of their keys; every subtask gets the rows of broadcast streams.

    >>> connect(orders=orders.key_by("id"), payments=payments.key_by("order_id"), rules=rules.broadcast())
    """
    if unnamed:
        raise InvalidJob("connect: every input has a name, as in connect(orders=orders.key_by('id'), rules=…)")
    return ConnectedStreams(inputs)


@plain_errors
class ConnectedStreams:
    """Named inputs of `process`, the result of `connect`."""

    def __init__(self, inputs: Mapping[str, KeyedStream | BroadcastStream]) -> None:
        where = "connect"
        if not inputs:
            raise InvalidJob(f"{where}: no inputs: pass streams by name, as in connect(orders=orders.key_by('id'))")
        for name, stream in inputs.items():
            if name in _TAKEN:
                raise InvalidJob(f"{where}: on_{name}() is a handler of timers: give the input {name!r} another name")
            if isinstance(stream, Stream):
                raise InvalidJob(
                    f"{where}: input {name!r} is a Stream: say how its rows go to the subtasks, with .key_by(…) or "
                    ".broadcast()"
                )
            if not isinstance(stream, KeyedStream | BroadcastStream):
                raise InvalidJob(
                    f"{where}: input {name!r} is {stream!r}: pass a stream with .key_by(…) or .broadcast()"
                )
        self._keyed = {name: stream for name, stream in inputs.items() if isinstance(stream, KeyedStream)}
        self._broadcast = {name: stream for name, stream in inputs.items() if isinstance(stream, BroadcastStream)}
        self._streams = {name: stream._stream for name, stream in inputs.items()}
        if not self._keyed:
            raise InvalidJob(
                f"{where}: no input has a key: pass one or more with .key_by(…); broadcast rows alone need no connect()"
            )
        self._check_flows(where)
        self._check_keys(where)
        self._check_broadcast(where)

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        side: None = None,
        on_error: OneStream = "fail",
        **more: "Unpack[ConnectedProcess]",
    ) -> Stream: ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        side: None = None,
        on_error: Literal["side"],
        **more: "Unpack[ConnectedProcess]",
    ) -> WithErrors[Stream]: ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        side: Mapping[str, SchemaLike],
        on_error: OnError | Retry = "fail",
        **more: "Unpack[ConnectedProcess]",
    ) -> Outputs[Stream]: ...

    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        event_time: str | Mapping[str, str] | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError | Retry = "fail",
    ) -> Stream | WithErrors[Stream] | Outputs[Stream]:
        """Runs a function with a handler per input; handlers share state and timers per key.

        `function` is a class with `on_<input>(self, key, row, ctx)` for each input by key and `on_<input>(self, row,
        ctx)` for each broadcast input, and optionally `on_timer`, `on_wall_timer`, `open(self, ctx)` and `close(self)`.
        Results and states are as in `KeyedStream.process`; handlers of broadcast inputs write `BroadcastState`, all
        other handlers read it. Rows that handlers of broadcast inputs yield or emit go out once.

        Event time is the minimum over all inputs, broadcast inputs with event time included: pass `idle_timeout=` to
        sources with few rows. `event_time`: the column of event times of all inputs by key, or a dict of input to
        column; by default those of the sources.

        `schema`, `side` and `on_error` as in `KeyedStream.process`.

        >>> connected = connect(orders=orders.key_by("id"), payments=payments.key_by("order_id"))
        >>> matched = connected.process("match", Match, schema=OUT)
        """
        where = f"connect {name!r}"
        if inspect.isroutine(function):
            raise InvalidJob(
                f"{where}: {function_name(function)} is one function, and each input has a handler of its own: pass a "
                f"class with {', '.join(f'on_{each}' for each in self._streams)}"
            )
        takes: dict[str, tuple[str, ...]] = dict.fromkeys(self._keyed, ("key", "row", "ctx"))
        takes |= dict.fromkeys(self._broadcast, ("row", "ctx"))
        handlers = {f"on_{each}": arguments for each, arguments in takes.items()}
        check_handlers(function, handlers, where)
        states = declared_states(function)
        needed = {each: needs_time_of_rows(function, states, (f"on_{each}",)) for each in self._keyed}
        times = self._times(event_time, needed, where)
        least = None if any(each not in times for each in self._keyed) else "known"
        expiring = check_event_time_of_states(states, least, where)
        on_timer = callable(getattr(function, "on_timer", None))
        if on_timer or expiring:
            said = function_name(function)[:-2]
            why = f"{said} has timers" if on_timer else f"state {expiring[0]!r} has a TTL in event time"
            for each, stream in self._streams.items():
                if each in self._broadcast and stream._plan.is_timeless(stream._node):
                    continue
                told = f"{where}, input {each!r}"
                need_watermarks(stream._plan, stream._node, told, f"{why}, which the watermark drives")
        given, side_rows = given_rows(schema, None, "", where), side_classes(side, where)
        sides = side_schemas(side, on_error, where)
        connected = [
            ConnectedInput(each, stream._keys, stream._stream.schema, times.get(each), rows=stream._stream._rows)
            for each, stream in self._keyed.items()
        ] + [
            ConnectedInput(each, (), stream._stream.schema, times.get(each), stream._switch, stream._stream._rows)
            for each, stream in self._broadcast.items()
        ]
        make = partial(
            ConnectedOperator,
            inputs=connected,
            function=function,
            output=given.writes,
            side={tag: side_rows.get(tag, sides[tag]) for tag in side or {}},
            on_error=on_error,
        )
        node = StepNode(
            name,
            "connect",
            self._inputs(),
            make,
            given.schema,
            stateful=True,
            describe=with_errors(
                f"{function_name(function)[:-2]} of {', '.join(map(self._said, self._streams))}", on_error
            ),
            detail="every" if on_timer or expiring else "none",
            side_outputs=sides,
            row_classes={**given.main, **side_rows},
            by_wall_clock=why_by_wall_clock(function, states) or self._why_by_arrival(),
            keys=self._keys_said(),
            states={state: handle.declared() for state, handle in states.items()},
        )
        streams: Stream | Outputs[Stream] = one_or_all(next(iter(self._streams.values()))._added(node))
        return streams

    def _why_by_arrival(self) -> str:
        """Reason why a replay may produce other rows. Rules that wait for a barrier are no reason."""
        by_row = [each for each, stream in self._broadcast.items() if stream._switch == "row"]
        return f"a row sees what of input {by_row[0]!r} has come before it" if by_row and self._keyed else ""

    def _inputs(self) -> tuple[Input, ...]:
        waits = any(each._switch == "barrier" for each in self._broadcast.values())
        keyed = [
            Input(each._stream._node, "hash", each._keys, each._stream._tag, waits) for each in self._keyed.values()
        ]
        if not self._broadcast:
            return tuple(keyed)
        streams = [each._stream for each in self._broadcast.values()]
        names, schemas = tuple(self._broadcast), [stream.schema for stream in streams]
        make = partial(SequenceOperator, names=names, schemas=schemas)
        node = StepNode(
            None,
            BROADCAST,
            tuple(Input(stream._node, "single", tag=stream._tag) for stream in streams),
            make,
            sequenced_schema(names, schemas),
            describe=", ".join(names),
        )
        return (*keyed, Input(streams[0]._plan.add(node), "broadcast"))

    def _said(self, input: str) -> str:
        waits = input in self._broadcast and self._broadcast[input]._switch == "barrier"
        return f"{input} at barriers" if waits else input

    def _times(
        self, event_time: str | Mapping[str, str] | None, needed: Mapping[str, bool], where: str
    ) -> dict[str, str]:
        if isinstance(event_time, str):
            times = dict.fromkeys(self._keyed, event_time)
        else:
            times = dict(event_time or {})
        for name, column in times.items():
            stream = self._streams.get(name)
            if stream is None:
                raise InvalidJob(f"{where}: event_time= names {name!r}, but its inputs are {_quoted(self._streams)}")
            require_columns(stream.schema, (column,), f"{where}, input {name!r}")
            if stream.schema is not None:
                check_event_time_type(stream.schema.field(column).type, column, f"{where}, input {name!r}")
        for name, keyed in self._keyed.items():
            if name in times:
                continue
            inherited = keyed._keyed_input().event_time_of_function(f"{where}, input {name!r}", needed[name])
            if inherited is not None:
                times[name] = inherited
        return times

    def _check_flows(self, where: str) -> None:
        first = next(iter(self._streams))
        plan = self._streams[first]._plan
        for name, stream in self._streams.items():
            if stream._plan is not plan:
                raise InvalidJob(
                    f"{where}: input {first!r} is a stream of flow {plan.name!r}, and {name!r} one of flow "
                    f"{stream._plan.name!r}: read both in one Dataflow"
                )

    def _check_keys(self, where: str) -> None:
        first = next(iter(self._keyed))
        keys = self._keyed[first]._keys
        for name, keyed in self._keyed.items():
            if len(keyed._keys) != len(keys):
                raise InvalidJob(
                    f"{where}: input {first!r} has the keys ({', '.join(keys)}), and {name!r} has "
                    f"({', '.join(keyed._keys)}): they meet by their values, so key_by() as many columns in each"
                )
        known = {name: kinds for name, keyed in self._keyed.items() if (kinds := _key_types(keyed)) is not None}
        for name, kinds in known.items():
            other = next(iter(known))
            if kinds.types != known[other].types:
                raise InvalidJob(
                    f"{where}: the key of input {other!r} is ({described(known[other])}), and that of {name!r} "
                    f"({described(kinds)}): keys of different types are never equal; cast one of them before key_by(), "
                    'as in select({"id": "CAST(id AS BIGINT)", …})'
                )

    def _keys_said(self) -> str:
        """Key types for snapshots, under names common to all inputs; empty if unknown."""
        known = next((kinds for keyed in self._keyed.values() if (kinds := _key_types(keyed)) is not None), None)
        if known is None:
            return ""
        names = canonical_keys(len(known))
        return keys_said(pa.schema(list(zip(names, known.types, strict=True))), names)

    def _check_broadcast(self, where: str) -> None:
        if len(self._broadcast) < 2:
            return
        for name, stream in self._broadcast.items():
            if stream._stream.schema is None:
                raise InvalidJob(
                    f"{where}: the columns of the broadcast input {name!r} are not known, and several broadcast inputs "
                    "travel together: give schema= in the step or source before"
                )


def _key_types(keyed: KeyedStream) -> pa.Schema | None:
    schema = keyed._stream.schema
    return None if schema is None else pa.schema([schema.field(key) for key in keyed._keys])


def _quoted(names: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(map(repr, names))
