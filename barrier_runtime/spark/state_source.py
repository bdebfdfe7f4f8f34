"""State of a checkpoint or savepoint as a Spark DataFrame: a Python data source of PySpark.

    spark.dataSource.register(BarrierStateSource)
    spark.read.format("barrier-state").option("path", url).option("job", "orders").option("state", "alarms.last").load()

There is a partition per subtask of the job that wrote the state. With .option("pushdown", "true") Spark pushes down
conditions that a key column equals a value, and a whole key selects the files of a single subtask. Spark (4.1 and
later) then requires spark.sql.python.filterPushdown.enabled, which a source cannot see.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.spark.session import check_release
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state_tables.finding import pinned_again, pinned_checkpoint
from barrier_runtime.state_tables.stored_state import StoredState, open_checkpoint
from barrier_runtime.state_tables.wanted_keys import key_types

check_release('format("barrier-state")', (4, 0))  # older releases of PySpark have no sources in Python

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition  # noqa: E402

_OPTIONS = ("path", "job", "checkpoint", "state", "pushdown")


class BarrierStateSource(DataSource):  # type: ignore[misc]
    """Data source of stored state. Raises `InvalidJob` for missing state.

    Options: `path` (a savepoint, or with `job` the folder of checkpoints), `checkpoint` (a number; default: the
    newest when the DataFrame is made) and `state`, as operator.state."""

    @classmethod
    def name(cls) -> str:
        return "barrier-state"

    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(_Wanted(self.options).schema())

    def reader(self, schema: Any) -> DataSourceReader:
        pushes = str(self.options.get("pushdown", "false")).lower() == "true"
        return (_PushingReader if pushes else _Reader)(_Wanted(self.options))


class _Wanted:
    """All partitions read the same checkpoint, even if the log was compacted since."""

    def __init__(self, options: Any) -> None:
        given = dict(options)
        self.path, self.job = given.get("path", ""), given.get("job", "")
        self.operator, _, self.state = given.get("state", "").rpartition(".")
        if not self.path or not self.operator:
            raise InvalidJob(
                'barrier-state needs .option("path", …) and .option("state", "operator.state"); it knows '
                + ", ".join(_OPTIONS)
            )
        number = given.get("checkpoint")
        if number is not None and not str(number).isdigit():
            raise InvalidJob(f'.option("checkpoint", {number!r}): give the number of a checkpoint of .option("job", …)')
        self._decided = None
        if self.job:
            # the pin lasts until its expiry: a source never learns that Spark has finished
            checkpoint = None if number is None else int(number)
            self._decided = pinned_checkpoint(self.path, self.job, checkpoint)[0].decided

    def opened(self) -> StoredState:
        if self._decided is None:
            return open_checkpoint(self.path)
        found, pin = pinned_again(self.path, self.job, self._decided)
        return StoredState(found.store, found.manifest, found.what, pin)

    def schema(self) -> pa.Schema:
        with self.opened() as stored:
            return _for_spark(stored.table(self.operator, self.state).schema)


class _Part(InputPartition):  # type: ignore[misc]
    def __init__(self, number: int) -> None:
        self.number = number


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, wanted: _Wanted) -> None:
        self._wanted = wanted
        self._where: dict[str, Any] = {}
        with wanted.opened() as stored:
            info = next(
                each for each in stored.tables() if (each.operator, each.state) == (wanted.operator, wanted.state)
            )
            self._keys = list(key_types(info.key))
            self._parts = stored.parts(wanted.operator, wanted.state)
            self._schema = _for_spark(stored.table(wanted.operator, wanted.state).schema)

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(number) for number in range(self._parts)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        with wanted.opened() as stored:
            for batch in stored.table(wanted.operator, wanted.state, self._where, part=partition.number):
                if batch.num_rows:
                    yield batch.cast(self._schema)


class _PushingReader(_Reader):
    """Spark 4.0 does not push: no filter reaches this reader."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        from pyspark.sql.datasource import EqualTo

        for each in filters:
            name = each.attribute[0] if isinstance(each, EqualTo) and len(each.attribute) == 1 else None
            if name in self._keys and self._where.setdefault(name, each.value) == each.value:
                continue
            yield each  # also a second value of the same column, which matches no row


def _for_spark(schema: pa.Schema) -> pa.Schema:
    """Spark has one binary type, one text type, and no unsigned numbers."""
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_unsigned_integer(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    return kind
