"""`Stream`, `KeyedStream` and `BroadcastStream`, on which users write steps.

Methods of each class return the other classes, so the three share a file; base classes (`steps`) have most steps.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar, cast, overload

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.api.arguments import (
    check_generator,
    check_order,
    check_row_function,
    with_errors,
)
from barrier_runtime.api.column_steps import ColumnName, themselves
from barrier_runtime.api.joins import JoiningStream
from barrier_runtime.api.keyed_steps import StatefulSteps
from barrier_runtime.api.lookup_steps import LookupSteps
from barrier_runtime.api.missing_steps import AFTER_KEY_BY, BEFORE_BROADCAST, BEFORE_KEY_BY, no_step
from barrier_runtime.api.row_steps import RowSteps
from barrier_runtime.api.sink_steps import AnySink, SinkSteps
from barrier_runtime.api.steps import MAIN, WINDOW_START, KeyedInput, OneStream, Outputs, WithErrors, one_or_all
from barrier_runtime.data.event_time import Detail, check_event_time_type
from barrier_runtime.data.keys import check_key_type
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.data.row_class import RowClass, row_class
from barrier_runtime.data.schemas import (
    Duration,
    SchemaLike,
    as_duration,
    check_free,
    described,
    milliseconds,
    require_columns,
    widest,
)
from barrier_runtime.graph.explain import drawn, told
from barrier_runtime.graph.logical import Input, Plan, SourceNode, StepNode
from barrier_runtime.graph.updates import UpdatesOfStep, first_update_passes
from barrier_runtime.launch.outcome import plain_errors
from barrier_runtime.operators.functions.given_rows import given_rows, side_classes
from barrier_runtime.operators.outputs.side_outputs import OnError, side_schemas
from barrier_runtime.operators.retry import Retry
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from barrier_runtime.api.keyed_steps import KeyedProcess
    from barrier_runtime.api.row_steps import RowProcess, RowStep
    from barrier_runtime.api.windowed import WindowedStream
    from barrier_runtime.data.column_expression import ColumnExpression
    from barrier_runtime.data.row_class import AnyRow, Instance
    from barrier_runtime.data.rows import Row
    from barrier_runtime.operators.state.handle import KeyedState
    from barrier_runtime.operators.watermark_generator import WatermarkGenerator

    Q = TypeVar("Q", bound=Instance)
    Takes = TypeVar("Takes", contravariant=True)

    class OfRow(Protocol[Takes]):
        def process(self, row: Takes, ctx: Any, /) -> Any: ...

    class OfKeyAndRow(Protocol[Takes]):
        def process(self, key: Any, row: Takes, ctx: Any, /) -> Any: ...


R = TypeVar("R")
_NO_DELAY = datetime.timedelta()
_NAMED_KEY = "an expression gets a name, as in key_by(group='sensor % 16')"


@plain_errors
class Stream(RowSteps["Stream"], LookupSteps["Stream"], SinkSteps["Stream"]):
    """A stream of rows. Methods return new streams; each consumer gets all rows.

    `schema`: None if unknown until the first batch. Between subtasks dictionary-encoded columns are decoded."""

    def __init__(
        self,
        plan: Plan,
        node: int,
        schema: pa.Schema | None,
        rebalanced: bool = False,
        tag: str = "",
        rows: RowClass | None = None,
    ) -> None:
        self._plan = plan
        self._node = node
        self._tag = tag  # of a side output; empty: the main output
        self.schema = None if schema is None else plain_schema(schema)
        self._rebalanced = rebalanced
        self._rows = rows  # class of the rows; None: dicts

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, AFTER_KEY_BY)

    def __repr__(self) -> str:
        return f"<Stream {told(self._plan, self._node, self.schema)}>"

    def _repr_svg_(self) -> str:
        return drawn(self._plan, self._node)

    def with_watermarks(
        self,
        column: str,
        max_out_of_orderness: Duration = _NO_DELAY,
        *,
        generator: Callable[[], "WatermarkGenerator"] | None = None,
    ) -> "Self":
        """Sets the event time to `column`: the watermark is the greatest value less `max_out_of_orderness`.

        Directly after a source the watermark is made per split, which is more exact; elsewhere it replaces the input's
        watermark. `generator`: a subclass of `WatermarkGenerator`, which returns the event time reached at each row,
        per subtask."""
        from barrier_runtime.operators.watermark_generator import GeneratedWatermarkOperator, WatermarkOperator

        where = "with_watermarks"
        bound_ms = milliseconds(max_out_of_orderness, f"max_out_of_orderness of {where}")
        require_columns(self.schema, (column,), where)
        if self.schema is not None:
            check_event_time_type(self.schema.field(column).type, column, where)
        if generator is not None:
            check_generator(generator, bound_ms, where)
        elif isinstance(self._plan.nodes[self._node], SourceNode) and not self._rebalanced:
            self._plan.set_watermarks(self._node, column, bound_ms)
            return self
        make: Callable[..., Any] = partial(WatermarkOperator, column=column, max_out_of_orderness_ms=bound_ms)
        said = f"{column}, {datetime.timedelta(milliseconds=bound_ms)}"
        if generator is not None:
            make = partial(GeneratedWatermarkOperator, column=column, make=generator)
            said = f"{column}, by {function_name(generator)}"
        node = StepNode(
            None, "with_watermarks", (self._as_input(),), make, self.schema, describe=said, makes_watermarks=True,
            event_times=frozenset([column]), row_classes=self._same_rows(),
        )  # fmt: skip
        return cast("Self", self._added(node)[0])

    def typed(self, rows: type[R]) -> "TypedStream[R]":
        """Declares the row type: later functions get instances of the dataclass or `msgspec.Struct` `rows`.

        The result has exactly the class's columns. Integers, floats and times may be narrower than declared; no value
        changes. `typed(dict)`: later functions get dicts.

        >>> orders.select({"id": "id", "eur": "price * 0.908"}).typed(Priced).map(discounted)
        """
        where = f"typed({getattr(rows, '__name__', None) or repr(rows)})"
        every = self._all_columns(where)
        if rows is dict:
            return cast("TypedStream[R]", self._selected(themselves(every), where, None))
        wanted = row_class(rows, where)
        if wanted is None:
            raise InvalidJob(f"{where}: rows={rows!r}: pass a dataclass or a msgspec.Struct class, or dict")
        require_columns(self.schema, tuple(wanted.schema.names), where)
        assert self.schema is not None
        if self._rows == wanted and self.schema.equals(wanted.schema):
            return cast("TypedStream[R]", self)
        here = pa.schema([self.schema.field(name) for name in wanted.schema.names])
        if (wide := widest(here, wanted.schema)) is None or not wide.equals(wanted.schema):
            wanted.check_columns(here, where)
        columns: dict[str, Any] = dict(themselves(wanted.schema.names))
        changed = [field.name for field in wanted.schema if field.type != here.field(field.name).type]
        columns |= {name: pc.field(name).cast(wanted.schema.field(name).type) for name in changed}
        made = self._selected(columns, where, None, {name: name for name in changed}, {MAIN: wanted})
        return cast("TypedStream[R]", made)

    def union(self, *others: "Stream", name: str | None = None) -> "Stream":
        """Merges this and the other streams, which have the same columns.

        Times and numbers become the widest type of all inputs; no value changes.
        """
        from barrier_runtime.operators.functions.batch_functions import UnionOperator

        if not others:
            raise InvalidJob("union() without other streams: pass at least one")
        for stream in others:
            if not isinstance(stream, Stream) or stream._plan is not self._plan:
                raise InvalidJob(f"union: {stream!r} is not a stream of flow {self._plan.name!r}: pass its streams")
        known = [stream.schema for stream in (self, *others) if stream.schema is not None]
        common = _common_columns(known, "union")
        inputs = tuple(stream._widened(common)._as_input() for stream in (self, *others))
        schema = common if len(known) == 1 + len(others) else None
        rows = self._same_rows() if all(stream._rows == self._rows for stream in others) else {}
        node = StepNode(name, "union", inputs, UnionOperator, schema, row_classes=rows)
        return self._added(node)[0]

    def followed_by(self, name: str, later: "Stream") -> "Stream":
        """Rows of this stream, and when all its inputs have ended, rows of `later`: history, then live rows.

        Both streams have the same columns, as in `union`. The sources of this stream must end. The sources of `later`
        find their first position when the job starts, and read nothing before every slot has read this stream's sources
        to their end. Until then event time follows this stream. A restored job continues before or after the switch, as
        the checkpoint was. Rows of a split keep their order.

        >>> history = flow.read_parquet("history", "s3://lake/orders", event_time="at")
        >>> live = flow.read_kafka("live", "broker:9092", "orders", start=MIDNIGHT, …).select(history.schema.names)
        >>> orders = history.followed_by("orders", live)
        """
        from barrier_runtime.operators.functions.batch_functions import UnionOperator

        where = f"followed_by {name!r}"
        if not isinstance(later, Stream) or later._plan is not self._plan:
            raise InvalidJob(f"{where}: {later!r} is not a stream of flow {self._plan.name!r}: pass the later stream")
        earlier, after = self._plan.sources_above(self._node), self._plan.sources_above(later._node)
        check_order(self._plan, earlier, after, where)
        schemas = [stream.schema for stream in (self, later) if stream.schema is not None]
        common = _common_columns(schemas, where)
        first, second = self._widened(common), later._widened(common)
        history = first._as_input()  # every slot learns of the ends, even if rows stay in their slot
        if history.partitioning == "forward":
            history = replace(history, partitioning="same")
        inputs = (history, second._as_input())
        schema = common if len(schemas) == 2 else None
        (stream, *_) = self._added(
            StepNode(
                name,
                "union",
                inputs,
                UnionOperator,
                schema,
                describe="one after the other",
                row_classes=self._same_rows() if later._rows == self._rows else {},
            )
        )
        for number in after:
            self._plan.read_after(number, name)
        return stream

    def _widened(self, schema: pa.Schema | None) -> "Stream":
        if schema is None or self.schema is None or self.schema.equals(schema):
            return self
        cast = [field.name for field in schema if field.type != self.schema.field(field.name).type]
        columns = {
            name: pc.field(name).cast(schema.field(name).type) if name in cast else ColumnName(name)
            for name in schema.names
        }
        return self._selected(columns, "union", None, same={name: name for name in cast})

    def rebalance(self) -> "Self":
        """Spreads rows evenly over the subtasks of the next step."""
        spread = Stream(self._plan, self._node, self.schema, rebalanced=True, tag=self._tag, rows=self._rows)
        return cast("Self", spread)

    def key_by(self, *columns: str, **computed: Any) -> "KeyedStream":
        """Sends rows with equal values in `columns` to the same subtask. Nulls are a value.

        `computed`: further key columns, new name to an expression as in `select`; the rows get these columns, too.

        >>> orders.key_by("customer")
        >>> readings.key_by(group="sensor % 16")
        """
        where = f"key_by({', '.join([*map(repr, columns), *computed])})"
        if not columns and not computed:
            raise InvalidJob("key_by() without columns: name at least one")
        if not all(isinstance(column, str) for column in columns):
            raise InvalidJob(f"{where}: give the names of columns, as in key_by('user', 'day'); {_NAMED_KEY}")
        if len(set(columns)) != len(columns) or computed.keys() & set(columns):
            raise InvalidJob(f"{where}: a column is named twice: name each once")
        if self.schema is not None:
            check_free(computed, self.schema.names, where)
            if any(column not in self.schema.names and not column.isidentifier() for column in columns):
                raise InvalidJob(f"{where}: the rows have {', '.join(self.schema.names)}; {_NAMED_KEY}")
        require_columns(self.schema, columns, where)
        rows, keys = self, (*columns, *computed)
        if computed:
            every = {**themselves(self._all_columns(where)), **computed}
            rows = self._selected(every, where, None, row_classes=self._same_rows())
        if rows.schema is not None:
            for column in keys:
                check_key_type(rows.schema.field(column).type, column, where)
        return KeyedStream(rows, keys)

    def window_all(
        self,
        name: str,
        window: WindowAssigner,
        *,
        event_time: str | None = None,
        allowed_lateness: Duration = _NO_DELAY,
        early: WindowTrigger | None = None,
        clock: Literal["event", "processing"] = "event",
    ) -> "WindowedStream[Stream]":
        """Groups all rows by window, without a key. Arguments as in `key_by(…).window(…)`.

        Results have no key columns; a function of `apply` gets None as key. One subtask gets all rows: if many keys can
        be aggregated first, put windows by key before.

        >>> orders.window_all("per minute", Tumbling(timedelta(minutes=1)), event_time="at").aggregate(n=count())
        """
        from barrier_runtime.operators.windows.whole.apply import ONE_KEY, OneKeyOperator

        if self.schema is None:
            raise InvalidJob(
                f"window {name!r}: window_all() has to know the columns of its rows: pass schema= to the step before it"
            )
        output = self.schema.append(pa.field(ONE_KEY, pa.int64()))
        keyed = self._step("one key", None, OneKeyOperator, output, "all rows").key_by(ONE_KEY)
        windows = keyed.window(
            name, window, event_time=event_time, allowed_lateness=allowed_lateness, early=early, clock=clock
        )
        windows._all_rows = True
        return windows

    def top(self, name: str, n: int, *, by: str, largest: bool = True) -> "Stream":
        """Emits, of each window's results, the `n` with the largest (or smallest) `by`; behind `aggregate`.

        Short for `window_all` of the same `Tumbling` or `Calendar` windows, then `top`.

        >>> per_shop.aggregate(sales=sum_("price")).top("best-shops", 3, by="sales")
        """
        within = self._plan.within(self._node)
        starts = [each.windows for each in within if (each.column, each.of) == (WINDOW_START, "start")]
        window = starts[0] if len(starts) == 1 and not self._tag else None
        if window is None or not window.covers(window):
            raise InvalidJob(
                f"top {name!r}: these rows are not results of Tumbling or Calendar windows: take .window_all({name!r}, "
                f"Tumbling(…)).top({n!r}, by={by!r}) with windows of your choice"
            )
        return self.window_all(name, window, event_time=WINDOW_START).top(n, by=by, largest=largest)

    def broadcast(self, switch: Literal["row", "barrier"] = "row") -> "BroadcastStream":
        """Makes an input of `connect` whose (few) rows go to every subtask, in the same order.

        `switch`: the handler runs when a row comes ("row"), or after the next checkpoint barrier ("barrier"), in all
        subtasks alike."""
        from barrier_runtime.operators.functions.connected import check_switch

        check_switch(switch, "broadcast")
        return BroadcastStream(self, switch)

    @overload
    def process(
        self, name: str, function: Any, *, side: None = None, on_error: OneStream = "fail", **more: "Unpack[RowProcess]"
    ) -> "Stream": ...

    @overload
    def process(
        self, name: str, function: Any, *, side: None = None, on_error: Literal["side"], **more: "Unpack[RowProcess]"
    ) -> WithErrors["Stream"]: ...

    @overload
    def process(
        self,
        name: str,
        function: Any,
        *,
        side: Mapping[str, SchemaLike],
        on_error: OnError | Retry = "fail",
        **more: "Unpack[RowProcess]",
    ) -> Outputs["Stream"]: ...

    def process(
        self,
        name: str,
        function: Any,
        *,
        schema: SchemaLike | None = None,
        side: Mapping[str, SchemaLike] | None = None,
        on_error: OnError | Retry = "fail",
    ) -> "Stream | WithErrors[Stream] | Outputs[Stream]":
        """Runs a row-wise function without keys and state.

        `function`: a class with `process(self, row, ctx)`, which yields rows or returns a row, a list or None, or a
        function of (row, ctx). The class may have `open(self, ctx)`, called per subtask before the first row, and
        `close(self)`. See `RowContext` for `ctx`; the other arguments are those of `KeyedStream.process`."""
        from barrier_runtime.operators.functions.row_functions import ProcessRowsOperator

        where = f"process {name!r}"
        check_row_function(function, where)
        given = given_rows(schema, function, "process", where)
        sides, side_rows = side_schemas(side, on_error, where), side_classes(side, where)
        make = partial(
            ProcessRowsOperator,
            function=function,
            schema=given.writes,
            side={tag: side_rows.get(tag, sides[tag]) for tag in side or {}},
            on_error=on_error,
            rows=self._rows,
        )
        describe = with_errors(function_name(function), on_error)
        steps = self._step_and_sides(
            "process", name, make, given.schema, describe, sides, rows={**given.main, **side_rows}
        )
        return cast("Stream | Outputs[Stream]", one_or_all(steps))

    def deduplicate(self, name: str, *columns: str, within: Duration | None) -> "Self":
        """Keeps the first row of each id (values of `columns`, null included) and drops later rows.

        An id is forgotten when the watermark has advanced by `within` since the id was seen; no row is late. With None
        no id is forgotten, and the state grows with every id. Bloom filters (3 to 12 bytes per id) save new ids a
        look-up. Counted: `lookups`, `lookups_saved`, `duplicates`.

        >>> orders.deduplicate("once", "order_id", within=timedelta(hours=1))
        """
        from barrier_runtime.operators.deduplication.operator import DeduplicateOperator, DuplicatesCombiner

        where = f"deduplicate {name!r}"
        within = None if within is None else as_duration(within, f"within of {where}")
        within_ms = milliseconds(within, f"within of {where}") if within is not None else None
        if within_ms == 0:
            raise InvalidJob(f"{where}: within is 0, so every id would be forgotten at once: use a longer time")
        ids = self.key_by(*columns)
        if within is not None:
            ids._keyed_input().need_watermarks(where, f"within={within} is measured by the watermark")
        make = partial(DeduplicateOperator, keys=columns, within_ms=within_ms, schema=self.schema)
        said = f"{', '.join(columns)} {'for ever' if within is None else f'within {within}'}; {DuplicatesCombiner.said}"
        seen = UpdatesOfStep(partial(first_update_passes, columns=columns))
        detail: Detail = "none" if within is None else "every"
        first = partial(DuplicatesCombiner, columns, within_ms, where)
        made = ids._stateful(
            name, "deduplicate", make, self.schema, said, detail=detail, updates=seen, combiner=first,
            row_classes=self._same_rows(),
        )  # fmt: skip
        return cast("Self", made)

    def _as_input(self) -> Input:
        return Input(self._node, "rebalance" if self._rebalanced else "forward", tag=self._tag)

    def _added(self, node: StepNode) -> "Outputs[Stream]":
        number = self._plan.add(node)
        rows = node.row_classes
        sides = [
            (tag, Stream(self._plan, number, schema, tag=tag, rows=rows.get(tag)))
            for tag, schema in node.side_outputs.items()
        ]
        return Outputs([(MAIN, Stream(self._plan, number, node.schema, rows=rows.get(MAIN))), *sides])


def _common_columns(known: Sequence[pa.Schema], where: str) -> pa.Schema | None:
    common = known[0] if known else pa.schema([])
    for schema in known[1:]:
        wider = widest(common, schema)
        if wider is None:
            pairs = zip(common, schema, strict=True) if common.names == schema.names else ()
            apart = [
                f": {one.name} is {one.type} and {two.type}, so .with_columns({one.name}='CAST({one.name} AS …)')"
                for one, two in pairs
                if widest(pa.schema([one]), pa.schema([two])) is None
            ]
            raise InvalidJob(
                f"{where}: one input has ({described(known[0])}), another ({described(schema)}): "
                f"select() the same columns and types in every input{''.join(apart[:1])}"
            )
        common = wider
    return common if known else None


class BroadcastStream:
    """A stream whose rows go to all subtasks of the next step, a step of `connect`."""

    def __init__(self, stream: Stream, switch: Literal["row", "barrier"]) -> None:
        self._stream = stream
        self._switch = switch

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, BEFORE_BROADCAST)


@plain_errors
class KeyedStream(JoiningStream[Stream], StatefulSteps[Stream]):
    """A stream partitioned by key columns; the next step may keep state per key."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream = stream
        self._keys = keys

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_step(self, name, BEFORE_KEY_BY)

    def __repr__(self) -> str:
        return f"<KeyedStream by {', '.join(self._keys)} of {self._stream!r}>"

    def sink(self, name: str, sink: AnySink) -> None:
        """As `Stream.sink`, but one subtask writes all rows of a key, in order.

        For tables of upserts, where two subtasks that write a key would conflict.

        >>> changes.key_by("id").sink("table", DeltaUpsertSink("s3://lake/orders", key=["id"]))
        """
        stream = self._stream
        stream._write(name, sink, Input(stream._node, "hash", self._keys, stream._tag))

    def _keyed_input(self) -> KeyedInput:
        stream = self._stream
        return KeyedInput(stream._plan, stream._node, stream._tag, self._keys, stream.schema, stream._rows)

    def _added(self, node: StepNode) -> Outputs[Stream]:
        return self._stream._added(node)


class TypedStream(Stream, Generic[R]):
    """A stream of instances of the dataclass or `msgspec.Struct` `R`, for annotations.

    Type checkers get it from `typed(R)`, functions that return instances, and `schema=`. At run time the stream is a
    `Stream`.

    >>> def large(orders: TypedStream[Order]) -> TypedStream[Order]:
    ...     return orders.filter(lambda order: order.amount > 100)
    """

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def map(
            self, function: Callable[[R], Row], *, on_error: OneStream = "fail", **more: Unpack[RowStep]
        ) -> Stream: ...

        @overload
        def map(
            self, function: Callable[[R], Q], *, on_error: OneStream = "fail", **more: Unpack[RowStep]
        ) -> "TypedStream[Q]": ...

        @overload
        def map(
            self, function: Callable[[R], AnyRow], *, on_error: Literal["side"], **more: Unpack[RowStep]
        ) -> WithErrors[Stream]: ...

        def map(self, function: Any, **more: Any) -> Any: ...

        @overload  # type: ignore[override]
        def flat_map(
            self, function: Callable[[R], Iterable[Row]], *, on_error: OneStream = "fail", **more: Unpack[RowStep]
        ) -> Stream: ...

        @overload
        def flat_map(
            self, function: Callable[[R], Iterable[Q]], *, on_error: OneStream = "fail", **more: Unpack[RowStep]
        ) -> "TypedStream[Q]": ...

        @overload
        def flat_map(
            self,
            function: Callable[[R], Iterable[AnyRow]],
            *,
            on_error: Literal["side"],
            **more: Unpack[RowStep],
        ) -> WithErrors[Stream]: ...

        def flat_map(self, function: Any, **more: Any) -> Any: ...

        @overload  # type: ignore[override]
        def filter(
            self,
            condition: str | pc.Expression | ColumnExpression | Callable[[R], Any],
            *,
            name: str | None = None,
            on_error: OneStream = "fail",
        ) -> "TypedStream[R]": ...

        @overload
        def filter(
            self, condition: Callable[[R], Any], *, name: str | None = None, on_error: Literal["side"]
        ) -> WithErrors[Stream]: ...

        def filter(self, condition: Any, **more: Any) -> Any: ...

        def inspect(  # type: ignore[override]
            self, function: Callable[[R], Any] = print, *, name: str | None = None
        ) -> "TypedStream[R]": ...

        @overload  # type: ignore[override]
        def split(
            self,
            name: str,
            by: str | pc.Expression | ColumnExpression | Callable[[R], str],
            *,
            into: Sequence[str],
            on_error: OneStream = "fail",
        ) -> "Outputs[TypedStream[R]]": ...

        @overload
        def split(
            self, name: str, by: Callable[[R], str], *, into: Sequence[str], on_error: Literal["side"]
        ) -> Outputs[Stream]: ...

        def split(self, name: str, by: Any, **more: Any) -> Any: ...

        @overload
        def union(self, *others: "TypedStream[R]", name: str | None = None) -> "TypedStream[R]": ...

        @overload
        def union(self, *others: Stream, name: str | None = None) -> Stream: ...

        def union(self, *others: Any, name: str | None = None) -> Any: ...

        def key_by(self, *columns: str, **computed: Any) -> "TypedKeyedStream[R]": ...

        @overload  # type: ignore[override]
        def process(  # type: ignore[overload-overlap]
            self,
            name: str,
            function: Callable[[R, Any], Any] | type[OfRow[R]] | OfRow[R],
            *,
            schema: type[Q],
            side: None = None,
            on_error: OneStream = "fail",
        ) -> "TypedStream[Q]": ...

        @overload
        def process(
            self,
            name: str,
            function: Callable[[R, Any], Any] | type[OfRow[R]] | OfRow[R],
            *,
            side: None = None,
            on_error: OneStream = "fail",
            **more: Unpack[RowProcess],
        ) -> Stream: ...

        @overload
        def process(
            self,
            name: str,
            function: Callable[[R, Any], Any] | type[OfRow[R]] | OfRow[R],
            *,
            side: Mapping[str, SchemaLike] | None = None,
            on_error: OnError | Retry = "fail",
            **more: Unpack[RowProcess],
        ) -> Outputs[Stream]: ...

        def process(self, name: str, function: Any, **more: Any) -> Any: ...


class TypedKeyedStream(KeyedStream, Generic[R]):
    """A `TypedStream[R]` partitioned by key columns. At run time a `KeyedStream`."""

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def process(  # type: ignore[overload-overlap]
            self,
            name: str,
            function: Callable[[Any, R, Any], Any] | type[OfKeyAndRow[R]] | OfKeyAndRow[R],
            *,
            schema: type[Q],
            side: None = None,
            on_error: OneStream = "fail",
            state: Mapping[str, KeyedState] | None = None,
            event_time: str | None = None,
        ) -> TypedStream[Q]: ...

        @overload
        def process(
            self,
            name: str,
            function: Callable[[Any, R, Any], Any] | type[OfKeyAndRow[R]] | OfKeyAndRow[R],
            *,
            side: None = None,
            on_error: OneStream = "fail",
            **more: Unpack[KeyedProcess],
        ) -> Stream: ...

        @overload
        def process(
            self,
            name: str,
            function: Callable[[Any, R, Any], Any] | type[OfKeyAndRow[R]] | OfKeyAndRow[R],
            *,
            side: Mapping[str, SchemaLike] | None = None,
            on_error: OnError | Retry = "fail",
            **more: Unpack[KeyedProcess],
        ) -> Outputs[Stream]: ...

        def process(self, name: str, function: Any, **more: Any) -> Any: ...
