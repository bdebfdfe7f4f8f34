"""Table of all connectors, for docs/connectors.md (`make tables`), snapshots and tests.

Installed packages add rows by entry points in `GROUP` (docs/connector-packages.md); names in snapshots never choose a
module to import.
"""

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from barrier_runtime.state.errors import InvalidJob


@dataclass(frozen=True)
class PublicClass:
    """Class `name` in the module `path` of `package`. `kind`: name in snapshots."""

    path: str
    name: str
    kind: str = ""
    package: str = "barrier_runtime.connectors"

    @property
    def module(self) -> str:
        return f"{self.package}.{self.path}" if self.path else self.package


@dataclass(frozen=True)
class ClientLibrary:
    """`extra`: of pyproject. `doorway`: the only file or folder that may import the library."""

    module: str
    extra: str
    doorway: str


@dataclass(frozen=True)
class Sources:
    """Row of the docs' table of sources. `methods`: of `Dataflow`, with the arguments of the classes."""

    classes: tuple[PublicClass, ...]
    methods: tuple[str, ...]
    positions: str
    notes: str


@dataclass(frozen=True)
class Sinks:
    """Row of the docs' table of targets. `also`: other classes that the row describes."""

    classes: tuple[PublicClass, ...]
    guarantee: str
    how: str
    also: str = ""


@dataclass(frozen=True)
class Connector:
    name: str
    sources: tuple[Sources, ...] = ()
    sinks: tuple[Sinks, ...] = ()
    library: ClientLibrary | None = None


CONNECTORS = (
    Connector(
        "files",
        sources=(
            Sources(
                (
                    PublicClass("files.source.parquet", "ParquetSource"),
                    PublicClass("files.source.csv", "CsvSource"),
                    PublicClass("files.source.jsonl", "JsonlSource"),
                    PublicClass("files.source.lines", "TextSource"),
                    PublicClass("files.source.binary", "BinarySource"),
                ),
                ("read_parquet", "read_csv", "read_jsonl", "read_text", "read_binary"),
                "stable",
                "see [guarantees](guarantees.md); `from_spark` reads the files that a query has written",
            ),
        ),
        sinks=(
            Sinks(
                (
                    PublicClass("files.sink.sink", "ParquetSink", "parquet"),
                    PublicClass("files.sink.sink", "JsonlSink", "jsonl"),
                    PublicClass("files.sink.sink", "CsvSink", "csv"),
                ),
                "exactly once",
                "hidden objects, then a name and a line in the commit log",
            ),
        ),
    ),
    Connector(
        "delta",
        library=ClientLibrary("deltalake", "delta", "library.py"),
        sources=(
            Sources(
                (PublicClass("delta.source", "DeltaSource"),),
                (),
                "version, file and row",
                "rows of the newest version, then rows that later versions [append or change](delta.md#the-source)",
            ),
        ),
        sinks=(
            Sinks(
                (PublicClass("delta.sink", "DeltaSink", "delta"),),
                "exactly once",
                "a table commit per checkpoint, with the format's own application transaction",
            ),
            Sinks(
                (PublicClass("delta.upsert", "DeltaUpsertSink", "delta_upsert"),),
                "exactly once, upserts and deletions by key",
                "rows wait in the job's storage; after the decision [a MERGE](delta.md#upserts) per checkpoint, with "
                "the format's own application transaction",
            ),
        ),
    ),
    Connector(
        "iceberg",
        library=ClientLibrary("pyiceberg", "iceberg", ""),
        sources=(
            Sources(
                (PublicClass("iceberg.source", "IcebergSource"),),
                (),
                "snapshot, file and row",
                "rows of the newest snapshot, then rows that later snapshots "
                "[append or change](iceberg.md#as-a-source)",
            ),
        ),
        sinks=(
            Sinks(
                (PublicClass("iceberg.sink", "IcebergSink", "iceberg"),),
                "exactly once",
                "a snapshot per checkpoint, with the checkpoint in its summary and in a property of the table",
            ),
        ),
    ),
    Connector(
        "postgres",
        library=ClientLibrary("psycopg", "postgres", "session.py"),
        sources=(
            Sources(
                (PublicClass("postgres.changes.source", "PostgresChangesSource"),),
                ("read_postgres_changes",),
                "positions in the snapshot, then in the log; the slot is confirmed when a checkpoint completes",
                "[changes of tables](changes.md): existing rows, then every change, by logical replication",
            ),
        ),
        sinks=(
            Sinks(
                (PublicClass("postgres.sink", "PostgresSink", "postgres"),),
                "exactly once, insert or upsert",
                "rows wait in the job's storage, checked by the server; after the decision a SQL transaction per "
                "checkpoint writes them and a [mark](postgres.md)",
            ),
        ),
    ),
    Connector(
        "mysql",
        library=ClientLibrary("pymysql", "mysql", "session.py"),
        sinks=(
            Sinks(
                (PublicClass("mysql.sink", "MySQLSink", "mysql"),),
                "exactly once, insert or upsert",
                "rows wait in the job's storage; after the decision a SQL transaction per checkpoint writes them and "
                "a [mark](mysql.md)",
            ),
        ),
    ),
    Connector(
        "sqlite",
        sinks=(
            Sinks(
                (PublicClass("sqlite.sink", "SqliteSink", "sqlite"),),
                "exactly once, insert or upsert",
                "as MySQL, into a file on a disk that all slots share: [SQLite](sqlite.md)",
            ),
        ),
    ),
    Connector(
        "kafka",
        library=ClientLibrary("confluent_kafka", "kafka", ""),
        sources=(
            Sources(
                (PublicClass("kafka.source.source", "KafkaSource"),),
                ("read_kafka",),
                "offsets in the checkpoint; offsets of the group are for monitoring only",
                "new partitions, JSON, Avro, Protobuf, dead letters; an offset that is not retained any more stops the "
                "job, and so does a topic that was deleted and created again: nothing is skipped",
            ),
        ),
        sinks=(
            Sinks(
                (PublicClass("kafka.sink.sink", "KafkaSink", "kafka"),),
                'exactly once, or `guarantee="at_least_once"`, or [`"at_most_once"`](guarantees.md#at-most-once)',
                "rows wait in the job's storage; after the decision a short transaction writes them and a marker. No "
                "transaction is open across a checkpoint, so a timeout cannot lose decided rows. At least once: "
                "rows are sent as they arrive",
            ),
        ),
    ),
    Connector(
        "kinesis",
        library=ClientLibrary("boto3", "kinesis", "client.py"),
        sources=(
            Sources(
                (PublicClass("kinesis.source", "KinesisSource"),),
                (),
                "sequence numbers in the checkpoint",
                "[streams of Amazon Kinesis](kinesis.md), resharded as they are; records that are not retained any "
                "more stop the job",
            ),
        ),
    ),
    Connector(
        "rabbitmq",
        library=ClientLibrary("pika", "rabbitmq", "broker.py"),
        sources=(
            Sources(
                (PublicClass("rabbitmq.source", "RabbitMQSource"),),
                ("read_rabbitmq",),
                "none: acknowledged when the covering checkpoint completes",
                "redeliveries are dropped by message id; with `deduplicate=None` at least once",
            ),
        ),
    ),
    Connector(
        "redis",
        library=ClientLibrary("redis", "redis", "sink.py"),
        sinks=(
            Sinks(
                (PublicClass("redis.sink", "RedisUpsertSink", "redis"),),
                "exactly once with `after_decision=True` or `deterministic=True`, else at least once",
                "repeated writes of the same values; [upserts](upserts.md) shows the results of a false declaration",
                also="your `UpsertSink`",
            ),
        ),
    ),
    Connector(
        "clickhouse",
        library=ClientLibrary("clickhouse_driver", "clickhouse", "session.py"),
        sinks=(
            Sinks(
                (PublicClass("clickhouse.sink", "ClickHouseSink", "clickhouse"),),
                "exactly once with `after_decision=True` or `deterministic=True`, else at least once",
                "rows with versions in a ReplacingMergeTree, by key: [ClickHouse](clickhouse.md)",
            ),
        ),
    ),
    Connector(
        "memory",
        sources=(
            Sources(
                (
                    PublicClass("memory.rate", "RateSource"),
                    PublicClass("memory.iterator", "IteratorSource"),
                    PublicClass("memory.poll", "PollSource"),
                ),
                ("rate", "from_iterator", "from_poll"),
                "stable",
                "an iterator, and a function for a cursor, must return the same rows again, or declare "
                "`replayable=False`",
            ),
        ),
        sinks=(
            Sinks(
                (PublicClass("memory.batch_function", "BatchFunctionSink"),),
                "exactly once, if the target keeps the checkpoint's number",
                "`stream.for_each_batch(fn)`: rows wait in the job's storage; after the decision `fn(dataframe, "
                "checkpoint)` runs in the driver's Spark session and is repeated with the same rows until it succeeds: "
                "for everything that Spark can write",
            ),
            Sinks(
                (PublicClass("memory.collect", "CollectSink"),),
                "exactly once",
                "a list in the program's own process: for tests and `run_local`",
            ),
            Sinks(
                (PublicClass("memory.callable", "CallableSink"),),
                "at least once",
                "a function of a batch; `print` works too",
            ),
        ),
    ),
)

SINKS = {each.kind: each for row in CONNECTORS for sinks in row.sinks for each in sinks.classes if each.kind}


GROUP = "barrier_runtime.connectors"


def all_connectors() -> tuple[Connector, ...]:
    """Connectors of this package, then the installed connectors, sorted by name.

    Raises `InvalidJob` for an entry point that cannot be loaded or is not a `Connector`.
    """
    return (*CONNECTORS, *(_loaded(each) for each in sorted(entry_points(group=GROUP), key=lambda each: each.name)))


def sinks_by_kind() -> dict[str, PublicClass]:
    """Sink classes that can be built from a snapshot. Raises `InvalidJob` for a kind in two packages."""
    found = dict(SINKS)
    for connector in all_connectors()[len(CONNECTORS) :]:
        for sink in (each for sinks in connector.sinks for each in sinks.classes if each.kind):
            if sink.kind in found:
                names = " and ".join(f"{each.module}.{each.name}" for each in (found[sink.kind], sink))
                raise InvalidJob(
                    f"the sinks {names} have the same kind {sink.kind!r}: uninstall the package of one, or give its "
                    "sink another kind"
                )
            found[sink.kind] = sink
    return found


def _loaded(entry: EntryPoint) -> Connector:
    package = entry.dist.name if entry.dist is not None else entry.value
    try:
        connector = entry.load()
    except Exception as error:
        raise InvalidJob(
            f"the connector {entry.name!r} of the package {package} cannot be loaded: {error}: update or uninstall the "
            "package"
        ) from error
    if not isinstance(connector, Connector):
        raise InvalidJob(
            f"the entry point {entry.name!r} of the package {package} is {connector!r}: it has to name a Connector of "
            "barrier_runtime.connectors.registry (docs/connector-packages.md)"
        )
    return connector
