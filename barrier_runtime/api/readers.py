"""Beginnings of a flow: `source` for every source, and a method per source class."""

import datetime
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property, partial
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

import pyarrow as pa

from barrier_runtime.api import sources
from barrier_runtime.api.arguments import source_of
from barrier_runtime.api.sources import SettingsOfSource, SourceOptions
from barrier_runtime.api.steps import Outputs, WithDeadLetters
from barrier_runtime.api.stream import Stream, TypedStream
from barrier_runtime.connectors.source import (
    DeadLetters,
    DeadLetterSource,
    RedeliveringSource,
    Source,
    SourceDescription,
    SourceOf,
    SourceSettings,
)
from barrier_runtime.data.event_time import check_event_time_type
from barrier_runtime.data.row_class import RowClass, row_class
from barrier_runtime.data.schemas import Duration, milliseconds, require_columns
from barrier_runtime.graph.logical import Plan, SourceNode, StepNode
from barrier_runtime.launch.outcome import plain_errors, plainly
from barrier_runtime.operators.token_bucket import check_rate
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from barrier_runtime.connectors.kafka.brokers import KafkaBrokers
    from barrier_runtime.connectors.memory.iterator import MakeIterator
    from barrier_runtime.connectors.memory.poll import Fetch
    from barrier_runtime.data.row_class import Instance
    from barrier_runtime.data.schemas import SchemaOf

    Q = TypeVar("Q", bound=Instance)

P = ParamSpec("P")
_NO_DELAY = datetime.timedelta()


class Reads(Protocol[P]):
    """A method of `Dataflow` that adds a source, for type checkers."""

    @overload
    def __call__(
        self, name: str, /, *arguments: Any, schema: "type[Q]", **options: "Unpack[SourceOptions]"
    ) -> "TypedStream[Q]": ...

    @overload
    def __call__(self, name: str, /, *arguments: P.args, **options: P.kwargs) -> Stream: ...

    @overload  # TypedDict and pydantic
    def __call__(
        self, name: str, /, *arguments: Any, schema: type[Any], **options: "Unpack[SourceOptions]"
    ) -> Stream: ...


class SourceMethod(Generic[P]):
    """Method with the arguments of a source class, which is imported on first access."""

    def __init__(
        self,
        described_by: Callable[[], Callable[P, SourceDescription]],
        read: "Callable[[Readers, str, Any], Any] | None" = None,
    ) -> None:
        """`read`: replaces `Readers.source` for sources that may return several streams."""
        self._described_by = described_by
        self._read = read
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @cached_property
    def _function(self) -> Callable[..., Any]:
        described, streams_of = self._described_by(), self._read or Readers.source

        def read(self: "Readers", name: str, *arguments: Any, **keywords: Any) -> Any:
            return streams_of(self, name, described(*arguments, **keywords))

        read.__name__, read.__qualname__ = self._name, f"Dataflow.{self._name}"
        read.__doc__ = f"The rows of a `{described.__name__}`.\n\n{inspect.getdoc(described)}"
        ours = list(inspect.signature(read).parameters.values())[:2]
        times = [field.name for field in fields(SourceSettings)]
        theirs = sorted(inspect.signature(described).parameters.values(), key=lambda each: each.name in times)
        read.__signature__ = inspect.Signature([*ours, *theirs])  # type: ignore[attr-defined]
        return plainly(read)

    @overload
    def __get__(self, flow: None, owner: type) -> "Callable[Concatenate[Readers, str, P], Stream]": ...

    @overload
    def __get__(self, flow: "Readers", owner: type) -> Reads[P]: ...

    def __get__(self, flow: "Readers | None", owner: type) -> Any:
        return self._function if flow is None else MethodType(self._function, flow)


def _settings_of(name: str, source: Source | SourceDescription, given: SourceSettings) -> SourceSettings:
    own = source if isinstance(source, SourceSettings) else SourceSettings()
    said: dict[str, Any] = {}
    for field in fields(SourceSettings):
        beside, inside = getattr(given, field.name), getattr(own, field.name)
        if inside not in (field.default, beside) and beside != field.default:
            raise InvalidJob(
                f"source {name!r}: {field.name} is {beside!r} beside the source and {inside!r} in it: leave one out"
            )
        said[field.name] = inside if beside == field.default else beside
    return SourceSettings(**said)


def _class_of(name: str, source: Source | SourceDescription) -> RowClass | None:
    """Class of the rows. With `debezium=`, which changes the columns, rows are dicts."""
    rows = row_class(getattr(source, "schema", None), f"source {name!r}")
    return None if getattr(source, "debezium", None) is not None else rows


def with_dead_letters(rows: Stream, letters: DeadLetters) -> WithDeadLetters[Stream]:
    from barrier_runtime.operators.outputs.side_outputs import DEAD_LETTERS, DeadLetterOperator

    schema = rows.schema
    assert schema is not None
    dead_letters = [schema.field(column).with_name(name) for name, column in letters.dead_letter.items()]
    node = StepNode(
        None,
        "dead letters",
        (rows._as_input(),),
        partial(DeadLetterOperator, error=letters.error, good=letters.good, dead_letter=letters.dead_letter),
        pa.schema([schema.field(column) for column in letters.good]),
        side_outputs={DEAD_LETTERS: pa.schema(dead_letters)},
        row_classes=rows._same_rows(),
    )
    return cast("WithDeadLetters[Stream]", rows._added(node))


def _with_dead_letters(flow: "Readers", name: str, source: Any) -> Stream | WithDeadLetters[Stream]:
    return (
        flow.source_with_dead_letters(name, source)
        if source.bad_records == "dead_letter"
        else flow.source(name, source)
    )


def _stream_per_table(flow: "Readers", name: str, source: Any) -> Stream | Outputs[Stream]:
    made = source.named(name)
    stream = flow._one_stream(name, made, _settings_of(name, source, SourceSettings()))
    if isinstance(source.tables, str):
        return stream
    if len(made.tables) == 1:
        return Outputs([(source.tables[0], stream)])
    from barrier_runtime.connectors.postgres.changes.rows import table_rows

    return Outputs(
        [
            (given, stream.map_batches(partial(table_rows, table=table.name), schema=columns))
            for given, table, columns in zip(source.tables, made.tables, made.layout.fields, strict=True)
        ]
    )


@plain_errors
class Readers:
    plan: Plan

    @overload
    def source(self, name: str, source: "SourceOf[Q]", **settings: "Unpack[SettingsOfSource]") -> "TypedStream[Q]": ...

    @overload
    def source(
        self, name: str, source: Source | SourceDescription, **settings: "Unpack[SettingsOfSource]"
    ) -> Stream: ...

    def source(
        self,
        name: str,
        source: Source | SourceDescription,
        *,
        event_time: str | None = None,
        max_out_of_orderness: Duration = _NO_DELAY,
        idle_timeout: Duration | None = None,
        max_rows_per_second: float | None = None,
    ) -> Stream:
        """Adds a source: a source class such as `KafkaSource(…)`, or any `Source`.

        With `event_time` (a timestamp, date or int64-milliseconds column) watermarks are made per split: the greatest
        time seen minus `max_out_of_orderness`. The watermark does not wait for a split that is silent for
        `idle_timeout`. `max_rows_per_second` limits all subtasks together. Our source classes also take these four
        arguments.

        >>> flow.source("orders", ParquetSource("data/orders"), event_time="at")
        """
        settings = SourceSettings(
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
            max_rows_per_second=max_rows_per_second,
        )
        rows = _class_of(name, source)
        return self._one_stream(name, source_of(name, source), _settings_of(name, source, settings), rows)

    def source_with_dead_letters(
        self,
        name: str,
        source: Source | SourceDescription,
        *,
        event_time: str | None = None,
        max_out_of_orderness: Duration = _NO_DELAY,
        idle_timeout: Duration | None = None,
        max_rows_per_second: float | None = None,
    ) -> WithDeadLetters[Stream]:
        """Adds a source whose bad records are dead letters (`KafkaSource(…, bad_records="dead_letter")`).

        Returns two streams: good rows, and bad records with key, value, metadata and `error`. Event time as in
        `source`."""
        settings = SourceSettings(
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
            max_rows_per_second=max_rows_per_second,
        )
        rows = _class_of(name, source)
        return self._two_streams(name, source_of(name, source), _settings_of(name, source, settings), rows)

    def _one_stream(self, name: str, made: Source, settings: SourceSettings, rows: RowClass | None = None) -> Stream:
        where = f"source {name!r}"
        if isinstance(made, DeadLetterSource) and made.dead_letters is not None:
            raise InvalidJob(
                f"{where}: its dead letters are a stream of their own: use source_with_dead_letters(…), which returns "
                'both streams, or bad_records="fail"'
            )
        repeats = made.deduplicate_by if isinstance(made, RedeliveringSource) else None
        if repeats is not None and repeats.within is not None and settings.event_time is None:
            raise InvalidJob(
                f"{where}: deduplicate={repeats.within} is measured by the watermark, and there is none without "
                'event_time: pass event_time= (such as "timestamp", if publishers set it), or deduplicate="forever"'
            )
        stream = self._rows_of(name, made, settings, rows)
        return (
            stream
            if repeats is None
            else stream.deduplicate(f"{name}-deduplicate", repeats.column, within=repeats.within)
        )

    def _two_streams(
        self, name: str, made: Source, settings: SourceSettings, rows: RowClass | None
    ) -> WithDeadLetters[Stream]:
        letters = made.dead_letters if isinstance(made, DeadLetterSource) else None
        if letters is None:
            raise InvalidJob(
                f'source {name!r}: it has no dead letters: use source(…), or KafkaSource with bad_records="dead_letter"'
            )
        return with_dead_letters(self._rows_of(name, made, settings, rows), letters)

    def _rows_of(self, name: str, source: Source, settings: SourceSettings, rows: RowClass | None = None) -> Stream:
        where = f"source {name!r}"
        schema = source.schema
        if settings.event_time is not None:
            require_columns(schema, (settings.event_time,), where)
            check_event_time_type(schema.field(settings.event_time).type, settings.event_time, where)
        elif settings.max_out_of_orderness:
            raise InvalidJob(
                f"{where}: max_out_of_orderness is about event time, and event_time= does not say which column that "
                "is: add it, or give the bound to with_watermarks(column, …)"
            )
        idle_timeout = settings.idle_timeout
        node = SourceNode(
            name,
            source,
            settings.event_time,
            milliseconds(settings.max_out_of_orderness, f"max_out_of_orderness of {where}"),
            milliseconds(idle_timeout, f"idle_timeout of {where}") if idle_timeout is not None else None,
            check_rate(settings.max_rows_per_second, f"{where}: max_rows_per_second"),
        )
        return Stream(self.plan, self.plan.add(node), schema, rows=rows)

    read_parquet = SourceMethod(lambda: sources.ParquetSource)
    """Rows of a `ParquetSource`, whose text describes the arguments; likewise for the methods below."""
    read_csv = SourceMethod(lambda: sources.CsvSource)
    read_jsonl = SourceMethod(lambda: sources.JsonlSource)
    read_text = SourceMethod(lambda: sources.TextSource)
    read_binary = SourceMethod(lambda: sources.BinarySource)
    read_rabbitmq = SourceMethod(lambda: sources.RabbitMQSource)
    rate = SourceMethod(lambda: sources.RateSource)

    if TYPE_CHECKING:

        @overload
        def read_kafka(
            self,
            name: str,
            bootstrap_servers: str | KafkaBrokers,
            topics: str | Sequence[str] | None = None,
            *,
            bad_records: Literal["dead_letter"],
            **options: Any,
        ) -> WithDeadLetters[Stream]: ...

        @overload
        def read_kafka(
            self,
            name: str,
            bootstrap_servers: str | KafkaBrokers,
            topics: str | Sequence[str] | None = None,
            *,
            schema: type[Q],
            debezium: None = None,
            bad_records: Literal["fail"] = "fail",
            **options: Any,
        ) -> TypedStream[Q]: ...

        @overload
        def read_kafka(
            self,
            name: str,
            bootstrap_servers: str | KafkaBrokers,
            topics: str | Sequence[str] | None = None,
            *,
            bad_records: Literal["fail"] = "fail",
            **options: Any,
        ) -> Stream: ...

        def read_kafka(self, name: str, bootstrap_servers: str | KafkaBrokers, *more: Any, **options: Any) -> Any: ...

        @overload
        def from_iterator(
            self, name: str, make_iterator: MakeIterator, *, schema: type[Q], **options: Unpack[SourceOptions]
        ) -> TypedStream[Q]: ...

        @overload
        def from_iterator(
            self, name: str, make_iterator: MakeIterator, *, schema: SchemaOf[Any], **options: Unpack[SourceOptions]
        ) -> Stream: ...

        def from_iterator(self, name: str, make_iterator: MakeIterator, **options: Any) -> Any: ...

        @overload
        def from_poll(
            self, name: str, fetch: Fetch, *, every: Duration, schema: type[Q], **options: Unpack[SourceOptions]
        ) -> TypedStream[Q]: ...

        @overload
        def from_poll(
            self, name: str, fetch: Fetch, *, every: Duration, schema: SchemaOf[Any], **options: Unpack[SourceOptions]
        ) -> Stream: ...

        def from_poll(self, name: str, fetch: Fetch, **options: Any) -> Any: ...

        @overload
        def read_postgres_changes(self, name: str, url: str, tables: str, **options: Any) -> Stream: ...

        @overload
        def read_postgres_changes(
            self, name: str, url: str, tables: Sequence[str], **options: Any
        ) -> Outputs[Stream]: ...

        def read_postgres_changes(self, name: str, url: str, tables: Any, **options: Any) -> Any: ...
    else:
        from_iterator = SourceMethod(lambda: sources.IteratorSource)
        from_poll = SourceMethod(lambda: sources.PollSource)
        read_kafka = SourceMethod(lambda: sources.KafkaSource, _with_dead_letters)
        """With `bad_records="dead_letter"` two streams, as `source_with_dead_letters`."""
        read_postgres_changes = SourceMethod(lambda: sources.PostgresChangesSource, _stream_per_table)
        """A list of tables is read through one slot, with a stream per table; only `changed_at` can be event time."""

    def from_spark(
        self,
        name: str,
        dataframe: Any,
        *,
        staging: str | None = None,
        event_time: str | None = None,
        max_out_of_orderness: Duration = _NO_DELAY,
        idle_timeout: Duration | None = None,
        max_rows_per_second: float | None = None,
    ) -> Stream:
        """Reads a Spark DataFrame, with a split per partition.

        Run the job with the DataFrame's session as `spark=`. When the job starts, the query runs once and writes the
        rows to the checkpoints' storage (or to the URL `staging`), so that restarts read the same rows; only
        `restore="none"` runs the query again. The rows are deleted when the job has finished. Timestamps are in UTC.
        The other arguments are those of `source`."""
        from barrier_runtime.spark.frame_source import StagedFrame

        return self.source(
            name,
            StagedFrame(name, dataframe, staging),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
            max_rows_per_second=max_rows_per_second,
        )
