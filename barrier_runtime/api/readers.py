"""How a flow begins: `source` for every source, and a method with the arguments of each of ours beside it."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, overload

from barrier_runtime.api.arguments import source_of
from barrier_runtime.api.stream import Stream
from barrier_runtime.connectors.files.source.binary import BinarySource
from barrier_runtime.connectors.files.source.csv import CsvSource
from barrier_runtime.connectors.files.source.files import OnChange
from barrier_runtime.connectors.files.source.jsonl import JsonlSource
from barrier_runtime.connectors.files.source.listing import ANY_NAME
from barrier_runtime.connectors.files.source.parquet import ParquetSource
from barrier_runtime.connectors.files.source.plain_text import TextSource
from barrier_runtime.connectors.kafka.source.debezium import Absent, Debezium
from barrier_runtime.connectors.kafka.source.debezium_values import UNAVAILABLE
from barrier_runtime.connectors.kafka.source.decoders import FormatName
from barrier_runtime.connectors.kafka.source.source import Config as KafkaConfig
from barrier_runtime.connectors.kafka.source.source import KafkaSource, Start
from barrier_runtime.connectors.memory.iterator import IteratorSource
from barrier_runtime.connectors.memory.poll import Fetch, PollSource
from barrier_runtime.connectors.memory.rate import RateSource
from barrier_runtime.connectors.postgres.changes.rows import Form, table_rows
from barrier_runtime.connectors.postgres.changes.source import PostgresChangesSource
from barrier_runtime.connectors.rabbitmq.source import RabbitMQSource
from barrier_runtime.connectors.source import DeadLetterSource, RedeliveringSource, Source, SourceDescription
from barrier_runtime.data.event_time import check_event_time_type
from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import SchemaLike, milliseconds, require_columns
from barrier_runtime.graph.logical import Plan, SourceNode
from barrier_runtime.launch.plain_errors import plain_errors
from barrier_runtime.state.errors import InvalidJob

Paths: TypeAlias = str | Sequence[str]
_NO_DELAY = datetime.timedelta()


@plain_errors
class Readers:
    """Base of `Dataflow`: adds sources to its `plan`."""

    plan: Plan

    def source(
        self,
        name: str,
        source: Source | SourceDescription,
        *,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`KafkaSource(…)`, `ParquetSource(…)` or another of ours, or any `Source`. With `event_time` (a timestamp,
        date or int64-milliseconds column) watermarks are made per split: the greatest time seen minus
        `max_out_of_orderness`. A split silent for `idle_timeout` is not waited for.

        >>> flow.source("orders", ParquetSource("data/orders"), event_time="at")
        """
        where = f"source {name!r}"
        made = source_of(name, source)
        if isinstance(made, DeadLetterSource) and made.dead_letters is not None:
            raise InvalidJob(
                f"{where}: its dead letters are a stream of their own: use source_with_dead_letters(…), which returns "
                'both streams, or bad_records="fail"'
            )
        repeats = made.deduplicate_by if isinstance(made, RedeliveringSource) else None
        if repeats is not None and repeats.within is not None and event_time is None:
            raise InvalidJob(
                f"{where}: deduplicate={repeats.within} is measured by the watermark, and there is none without "
                'event_time: pass event_time= (such as "timestamp", if publishers set it), or deduplicate="forever"'
            )
        stream = self._rows_of(name, made, event_time, max_out_of_orderness, idle_timeout)
        return (
            stream
            if repeats is None
            else stream.deduplicate(f"{name}-deduplicate", repeats.column, within=repeats.within)
        )

    def source_with_dead_letters(
        self,
        name: str,
        source: Source | SourceDescription,
        *,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> tuple[Stream, Stream]:
        """Two streams of a source whose bad records are dead letters (`KafkaSource(…, bad_records="dead_letter")`):
        good rows, and the others with key, value, metadata and `error`. Event time as in `source`."""
        made = source_of(name, source)
        dead_letters = made.dead_letters if isinstance(made, DeadLetterSource) else None
        if dead_letters is None:
            raise InvalidJob(
                f'source {name!r}: it has no dead letters: use source(…), or KafkaSource with bad_records="dead_letter"'
            )
        stream = self._rows_of(name, made, event_time, max_out_of_orderness, idle_timeout)
        return stream._with_dead_letters(dead_letters.error, dead_letters.good, dead_letters.dead_letter)

    def _rows_of(
        self,
        name: str,
        source: Source,
        event_time: str | None,
        max_out_of_orderness: datetime.timedelta,
        idle_timeout: datetime.timedelta | None,
    ) -> Stream:
        where = f"source {name!r}"
        schema = source.schema
        if event_time is not None:
            require_columns(schema, (event_time,), where)
            check_event_time_type(schema.field(event_time).type, event_time, where)
        elif max_out_of_orderness:
            raise InvalidJob(
                f"{where}: max_out_of_orderness is about event time, and event_time= does not say which column that "
                "is: add it, or give the bound to with_watermarks(column, …)"
            )
        node = SourceNode(
            name,
            source,
            event_time,
            milliseconds(max_out_of_orderness, f"max_out_of_orderness of {where}"),
            milliseconds(idle_timeout, f"idle_timeout of {where}") if idle_timeout is not None else None,
        )
        return Stream(self.plan, self.plan.add(node), schema)

    def read_parquet(
        self,
        name: str,
        paths: Paths,
        *,
        schema: SchemaLike | None = None,
        pace: float | None = None,
        watch: datetime.timedelta | None = None,
        on_change: OnChange = "fail",
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with a `ParquetSource`, which says what the arguments mean."""
        return self.source(
            name,
            ParquetSource(paths, schema=schema, pace=pace, watch=watch, on_change=on_change),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def read_csv(
        self,
        name: str,
        paths: Paths,
        *,
        schema: SchemaLike | None = None,
        delimiter: str = ",",
        encoding: str = "utf-8",
        decimal_point: str = ".",
        pace: float | None = None,
        watch: datetime.timedelta | None = None,
        on_change: OnChange = "fail",
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with a `CsvSource`, which says what the arguments mean."""
        return self.source(
            name,
            CsvSource(
                paths,
                schema=schema,
                pace=pace,
                watch=watch,
                on_change=on_change,
                delimiter=delimiter,
                encoding=encoding,
                decimal_point=decimal_point,
            ),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def read_jsonl(
        self,
        name: str,
        paths: Paths,
        *,
        schema: SchemaLike | None = None,
        pace: float | None = None,
        watch: datetime.timedelta | None = None,
        on_change: OnChange = "fail",
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with a `JsonlSource`, which says what the arguments mean."""
        return self.source(
            name,
            JsonlSource(paths, schema=schema, pace=pace, watch=watch, on_change=on_change),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def read_text(
        self,
        name: str,
        paths: Paths,
        *,
        schema: SchemaLike | None = None,
        pace: float | None = None,
        watch: datetime.timedelta | None = None,
        on_change: OnChange = "fail",
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with a `TextSource`, which says what the arguments mean."""
        return self.source(
            name,
            TextSource(paths, schema=schema, pace=pace, watch=watch, on_change=on_change),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def read_binary(
        self,
        name: str,
        paths: Paths,
        *,
        schema: SchemaLike | None = None,
        pace: float | None = None,
        watch: datetime.timedelta | None = None,
        on_change: OnChange = "fail",
        suffixes: tuple[str, ...] = ANY_NAME,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with a `BinarySource`, which says what the arguments mean."""
        return self.source(
            name,
            BinarySource(paths, schema=schema, pace=pace, watch=watch, on_change=on_change, suffixes=suffixes),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def from_iterator(
        self,
        name: str,
        make_iterator: Callable[[int, int], Iterable[Row]],
        *,
        schema: SchemaLike,
        replayable: bool = True,
        splits: int | None = None,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with an `IteratorSource`, which says what the arguments mean."""
        return self.source(
            name,
            IteratorSource(make_iterator, schema=schema, replayable=replayable, splits=splits),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def from_poll(
        self,
        name: str,
        fetch: Fetch,
        *,
        every: datetime.timedelta,
        schema: SchemaLike,
        replayable: bool = True,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with a `PollSource`, which says what the arguments mean."""
        return self.source(
            name,
            PollSource(fetch, every=every, schema=schema, replayable=replayable),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    @overload
    def read_kafka(
        self,
        name: str,
        bootstrap_servers: str,
        topics: str | Sequence[str] | None = None,
        *,
        bad_records: Literal["dead_letter"],
        **options: Any,
    ) -> tuple[Stream, Stream]: ...

    @overload
    def read_kafka(
        self,
        name: str,
        bootstrap_servers: str,
        topics: str | Sequence[str] | None = None,
        *,
        bad_records: Literal["fail"] = "fail",
        **options: Any,
    ) -> Stream: ...

    def read_kafka(  # type: ignore[misc]  # the options of both are spelled out here
        self,
        name: str,
        bootstrap_servers: str,
        topics: str | Sequence[str] | None = None,
        *,
        group: str,
        pattern: str | None = None,
        start: Start = "earliest",
        until: Literal["latest"] | None = None,
        key: FormatName | None = "bytes",
        value: FormatName = "bytes",
        schema: SchemaLike | None = None,
        key_schema: SchemaLike | None = None,
        metadata: Sequence[str] | Mapping[str, str] = ("topic", "partition", "offset", "timestamp"),
        bad_records: Literal["fail", "dead_letter"] = "fail",
        discover: datetime.timedelta | None = datetime.timedelta(minutes=1),
        debezium: Debezium | None = None,
        absent: Absent = "fail",
        unavailable_value_placeholder: str = UNAVAILABLE,
        config: KafkaConfig | None = None,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream | tuple[Stream, Stream]:
        """`source` with a `KafkaSource`, which says what the arguments mean. With `bad_records="dead_letter"` it is
        `source_with_dead_letters`, and two streams are returned.

        >>> orders, bad = flow.read_kafka("orders", "broker:9092", "orders", group="billing", value="json",
        ...                               schema={"shop": str, "amount": float}, bad_records="dead_letter")
        """
        read = self.source_with_dead_letters if bad_records == "dead_letter" else self.source
        return read(
            name,
            KafkaSource(
                bootstrap_servers,
                topics,
                group=group,
                pattern=pattern,
                start=start,
                until=until,
                key=key,
                value=value,
                schema=schema,
                key_schema=key_schema,
                metadata=metadata,
                bad_records=bad_records,
                discover=discover,
                debezium=debezium,
                absent=absent,
                unavailable_value_placeholder=unavailable_value_placeholder,
                config=config,
            ),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def read_rabbitmq(
        self,
        name: str,
        url: str,
        queue: str,
        *,
        deduplicate: datetime.timedelta | Literal["forever"] | None,
        message_id: str = "message_id",
        value: Literal["bytes", "json"] = "bytes",
        schema: SchemaLike | None = None,
        metadata: Sequence[str] = ("message_id", "timestamp", "routing_key", "redelivered", "headers"),
        prefetch: int = 10_000,
        bad_records: Literal["fail", "reject"] = "fail",
        until_idle: datetime.timedelta | None = None,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """`source` with a `RabbitMQSource`, which says what the arguments mean."""
        return self.source(
            name,
            RabbitMQSource(
                url,
                queue,
                deduplicate=deduplicate,
                message_id=message_id,
                value=value,
                schema=schema,
                metadata=metadata,
                prefetch=prefetch,
                bad_records=bad_records,
                until_idle=until_idle,
            ),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    @overload
    def read_postgres_changes(self, name: str, url: str, tables: str, **options: Any) -> Stream: ...

    @overload
    def read_postgres_changes(
        self, name: str, url: str, tables: Sequence[str], **options: Any
    ) -> tuple[Stream, ...]: ...

    def read_postgres_changes(  # type: ignore[misc]  # the options of both are spelled out here
        self,
        name: str,
        url: str,
        tables: str | Sequence[str],
        *,
        form: Form = "changes",
        snapshot: bool = True,
        slot: str | None = None,
        publication: str | None = None,
        as_text: Sequence[str] = (),
        unchanged: Literal["fail", "null"] = "fail",
        until: Literal["current"] | None = None,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream | tuple[Stream, ...]:
        """`source` with a `PostgresChangesSource`, which says what the arguments mean. A list of tables is read through
        one slot, and gives a stream per table; their event time can only be `changed_at`.

        >>> orders, customers = flow.read_postgres_changes("shop", "postgresql://app@db/shop", ["orders", "customers"])
        """
        listed = (tables,) if isinstance(tables, str) else tuple(tables)
        source = PostgresChangesSource(
            url,
            listed,
            form=form,
            snapshot=snapshot,
            slot=slot,
            publication=publication,
            as_text=as_text,
            unchanged=unchanged,
            until=until,
        ).named(name)
        stream = self.source(
            name,
            source,
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )
        if isinstance(tables, str):
            return stream
        if len(listed) == 1:
            return (stream,)
        return tuple(
            stream.map_batches(partial(table_rows, table=table.name), schema=fields)
            for table, fields in zip(source.tables, source.layout.fields, strict=True)
        )

    def from_spark(
        self,
        name: str,
        dataframe: Any,
        *,
        staging: str | None = None,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
        idle_timeout: datetime.timedelta | None = None,
    ) -> Stream:
        """The rows of a Spark DataFrame, one split per partition; run the job with `spark=` its session.

        When the job starts its query runs once, and the rows are written to the storage of the checkpoints (or to the
        URL `staging`), so that restarts read the same rows; only `restore="none"` runs it again. They are deleted when
        the job has finished. Timestamps are in UTC.
        """
        from barrier_runtime.spark.frame_source import StagedFrame

        return self.source(
            name,
            StagedFrame(name, dataframe, staging),
            event_time=event_time,
            max_out_of_orderness=max_out_of_orderness,
            idle_timeout=idle_timeout,
        )

    def rate(
        self,
        name: str,
        rows_per_second: float,
        rows: int | None = None,
        *,
        keys: int | None = None,
        splits: int | None = None,
        event_time: str | None = None,
        max_out_of_orderness: datetime.timedelta = _NO_DELAY,
    ) -> Stream:
        """`source` with a `RateSource`, which says what the arguments mean."""
        source = RateSource(rows_per_second, rows, keys=keys, splits=splits)
        return self.source(name, source, event_time=event_time, max_out_of_orderness=max_out_of_orderness)
