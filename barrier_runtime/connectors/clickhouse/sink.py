"""Rows of a ClickHouse table, by idempotent upserts (`sink_bases/upsert`) into a ReplacingMergeTree.

Each row has a version: the number of the generation's fence, then a number that rises with each row. Of the rows of a
sorting key, ClickHouse keeps the row with the highest version (at a merge, or in a query with FINAL).

Fence n of a sink is an empty table whose name ends in n: ClickHouse creates a table of a name only once. The defaults
of the columns hold log and fencing token of the generation.

| fences of this sink                       | a generation with (log, token)                            |
|-------------------------------------------|-----------------------------------------------------------|
| none, or the newest is of an older token  | creates the next; if another was quicker, looks again     |
| the newest has this log and token         | uses this fence, as other subtasks do                     |
| of this log, with a newer token           | is fenced                                                 |
| of this log and token, and a newer fence  | waits: another job has these names, or the job has its    |
|   of another log                          | log back                                                  |

A generation that has claimed a fence drops older fences of the same log.
"""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.clickhouse.session import ClickHouseSession, TableExists, address
from barrier_runtime.connectors.job_log import log_id
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.sql.columns import negative_zeros
from barrier_runtime.connectors.sink_bases.upsert import UpsertSink
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import key_columns, no_column
from barrier_runtime.state.errors import Fenced, InvalidJob, Unavailable
from barrier_runtime.state.versioned import sha256_hex

_TRIES = 100


@dataclass(frozen=True)
class WriterFence:
    number: int
    log: str
    token: int


class Fences:
    def __init__(self, session: ClickHouseSession, job: str, sink: str, where: str) -> None:
        self._session = session
        self._prefix = f"barrier_runtime_fence_{sha256_hex(f'{job}/{sink}'.encode())[:16]}_"
        self._where = where

    def claim(self, log: str, token: int) -> int:
        """Number of the claimed fence. Raises `Fenced` and `Unavailable`."""
        for _ in range(_TRIES):
            fences = self._all()
            newest = max(fences, key=lambda fence: fence.number, default=None)
            ours = [fence for fence in fences if fence.log == log]
            if any(fence.token > token for fence in ours):
                raise Fenced(f"{self._where}: a newer generation writes to ClickHouse now; generation {token} stops")
            if newest is not None and (newest.log, newest.token) == (log, token):
                return newest.number
            if any(fence.token == token for fence in ours):
                raise Unavailable(
                    f"{self._where}: the fence in ClickHouse is held by this job with other checkpoints: it is taken "
                    "again at the next start; does another job have these names?"
                )
            number = newest.number + 1 if newest is not None else 1
            try:
                self._session.query(
                    f"CREATE TABLE {self._prefix}{number} "
                    "(log String DEFAULT %(log)s, token String DEFAULT %(token)s) ENGINE = TinyLog",
                    {"log": log, "token": str(token)},
                )
            except TableExists:
                continue
            for fence in ours:
                self._session.query(f"DROP TABLE IF EXISTS {self._prefix}{fence.number}")
            return number
        raise Unavailable(f"{self._where}: others claimed {_TRIES} fences in ClickHouse meanwhile: it is tried again")

    def _all(self) -> list[WriterFence]:
        rows = self._session.query(
            "SELECT table, name, default_expression FROM system.columns "
            "WHERE database = currentDatabase() AND startsWith(table, %(prefix)s)",
            {"prefix": self._prefix},
        )
        found: dict[str, dict[str, str]] = {}
        for table, name, default in rows:
            found.setdefault(table, {})[name] = default.strip("'")
        return [
            WriterFence(int(table.removeprefix(self._prefix)), held["log"], int(held["token"]))
            for table, held in found.items()
        ]


_ROW_BITS = 40  # of a version: a generation may write 10^12 rows per subtask


@kinds_checked
class ClickHouseSink(UpsertSink):
    """Writes rows to ClickHouse at `url`: clickhouse://host:port/database, with the native port (9000).

    User and password come from CLICKHOUSE_USER and CLICKHOUSE_PASSWORD in every slot.

    - `table` exists, with engine ReplacingMergeTree(version), the columns of `key` as sorting key (ORDER BY), and the
      rows' columns, each of a type that holds every value; other columns get defaults.
    - `version`: column for versions, UInt64, written only by the sink.
    - `deterministic` or `after_decision`: see `UpsertSink`.

    Queries with FINAL see each key once. All slots write to the same server or replica.
    """

    kind: ClassVar[str] = "clickhouse"
    write_bytes: ClassVar[int] = 4 << 20  # few large inserts are fastest
    pause_s = 0.2  # each insert makes a part, and merges keep up with some parts per second

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: str | Sequence[str],
        version: str = "_version",
        deterministic: bool = False,
        after_decision: bool = False,
    ) -> None:
        super().__init__(deterministic=deterministic, after_decision=after_decision)
        address(url)
        self.url = url
        self.table = table
        self.key = key_columns(key, "ClickHouseSink: key")
        self.version = version
        if not self.key:
            raise InvalidJob("ClickHouseSink: key= names no column: name at least one")
        for what, name in (("table", table), ("version", version), *(("key", each) for each in self.key)):
            if not isinstance(name, str) or not name.replace("_", "a").isalnum():
                raise InvalidJob(f"ClickHouseSink: {what}={name!r}: use letters, digits and underscores")

    def __repr__(self) -> str:
        return f"ClickHouseSink({self.url!r}, {self.table}, key={','.join(self.key)}, {self.guarantee})"

    def settings(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "table": self.table,
            "key": list(self.key),
            "version": self.version,
            "deterministic": self.deterministic,
            "after_decision": self.after_decision,
        }

    def target(self) -> str:
        return f"table {self.table}"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._session = ClickHouseSession(self.url, self._where)
        self._columns = self._table_columns()
        fence = Fences(self._session, context.job, context.sink, self._where).claim(log_id(context), context.token)
        self._version = fence << _ROW_BITS

    def check_schema(self, schema: pa.Schema) -> None:
        if not self._columns:
            raise InvalidJob(f"{self._where}: ClickHouse has no table {self.table!r}: {self._statement(schema)}")
        for field in schema:
            column = self._columns.get(field.name)
            if column is None:
                raise InvalidJob(
                    f"{self._where}: table {self.table!r} has no column {field.name!r}: it has "
                    f"{', '.join(self._columns)}; select() what it has, or ALTER TABLE {self.table} ADD COLUMN "
                    f"`{field.name}` {column_for(field.type) or 'of a type for it'}"
                )
            if field.name == self.version:
                raise InvalidJob(f"{self._where}: column {field.name!r} is for versions: rename it with select()")
            if not takes(column, field.type):
                fitting = column_for(field.type)
                raise InvalidJob(
                    f"{self._where}: column {field.name!r} is {field.type}, and table {self.table!r} has {column} "
                    "there, which does not hold every value: cast it with select()"
                    + (f", or make the column {fitting}" if fitting else "")
                )
        for name in self.key:
            if name not in schema.names:
                raise no_column(name, schema.names, self._where, ", which key= names,")

    def upsert(self, rows: pa.RecordBatch) -> None:
        for name in rows.schema.names:
            if rows.column(name).null_count and not nullable(self._columns[name]):
                raise InvalidJob(
                    f"{self._where}: column {name!r} has nulls, and table {self.table!r} has {self._columns[name]} "
                    f'there: make it Nullable, or filter with "{name} is not null"'
                )
            wrong = unkept(self._columns[name], rows.column(name), is_key=name in self.key)
            if wrong:
                raise InvalidJob(f"{self._where}: column {name!r} of table {self.table!r}: {wrong}")
        names = ", ".join(f"`{name}`" for name in (*rows.schema.names, self.version))
        first = self._version + 1
        self._version += rows.num_rows
        columns = [_values(column) for column in rows.columns]
        columns.append(list(range(first, first + rows.num_rows)))
        if (first >> _ROW_BITS) != (self._version >> _ROW_BITS):
            raise Unavailable(f"{self._where}: a generation has written {1 << _ROW_BITS} rows: the next one goes on")
        self._session.insert(f"INSERT INTO `{self.table}` ({names}) VALUES", columns)

    def close(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.close()

    def _table_columns(self) -> dict[str, str]:
        """Types by name; empty for a missing table.

        Raises `InvalidJob` if rows of a key would not replace each other.
        """
        found = self._session.query(
            "SELECT engine, engine_full, sorting_key FROM system.tables "
            "WHERE database = currentDatabase() AND name = %(table)s",
            {"table": self.table},
        )
        if not found:
            return {}
        ((engine, full, sorting),) = found
        sorted_by = [name.strip().strip("`") for name in sorting.split(",")]
        versioned = f"({self.version})" in full.replace("`", "") or f", {self.version})" in full.replace("`", "")
        if not engine.endswith("ReplacingMergeTree") or not versioned or sorted(sorted_by) != sorted(self.key):
            raise InvalidJob(
                f"{self._where}: table {self.table!r} is {full.split(' SETTINGS')[0]}: rows of one key replace each "
                f"other with ENGINE = ReplacingMergeTree({self.version}) ORDER BY ({', '.join(self.key)}): make it so, "
                "or correct key= or version="
            )
        rows = self._session.query(
            "SELECT name, type FROM system.columns WHERE database = currentDatabase() AND table = %(table)s",
            {"table": self.table},
        )
        return dict(rows)

    def _statement(self, schema: pa.Schema) -> str:
        columns = [
            f"`{field.name}` {_declared(field, field.name in self.key)}" for field in schema if column_for(field.type)
        ]
        return (
            f"CREATE TABLE {self.table} ({', '.join(columns)}, {self.version} UInt64) ENGINE = "
            f"ReplacingMergeTree({self.version}) ORDER BY ({', '.join(self.key)})"
        )


def _declared(field: pa.Field, key: bool) -> str:
    kind = column_for(field.type)
    return kind if key or kind.startswith("Array") or not field.nullable else f"Nullable({kind})"


def _values(column: pa.Array) -> list[Any]:
    """Times without a zone are UTC."""
    kind = _for_client(column.type)
    values: list[Any] = (column if kind == column.type else column.cast(kind)).to_pylist()
    return values


def _for_client(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_for_client(kind.value_type))
    if pa.types.is_boolean(kind):
        return pa.uint8()
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) else kind


# Columns of ClickHouse that hold Arrow types without loss. Pure.
#
# | Arrow                       | ClickHouse                                            |
# |-----------------------------|-------------------------------------------------------|
# | integers                    | Int8 … Int64, UInt8 … UInt64 that hold all values     |
# | float, double               | Float64; float also Float32                           |
# | string, binary              | String                                                |
# | bool                        | UInt8, Bool                                           |
# | date32                      | Date, Date32                                          |
# | timestamp[s]                | DateTime, DateTime64                                  |
# | timestamp[ms], [us]         | DateTime64 of at least as many digits                 |
# | decimal(p, s)               | Decimal(p', s), p' at least p                         |
# | list                        | Array of a type for the values                        |
#
# Refused values: dates and times beyond the column's range, which the server would wrap; nulls in an array whose
# elements are not `Nullable`; in key columns -0.0, which is the key 0.0.

_BITS = {"Int8": (8, True), "Int16": (16, True), "Int32": (32, True), "Int64": (64, True)}
_BITS |= {"UInt8": (8, False), "UInt16": (16, False), "UInt32": (32, False), "UInt64": (64, False)}
_DIGITS = {"s": 0, "ms": 3, "us": 6}
_WRAPPED = re.compile(r"(Nullable|LowCardinality)\((.*)\)")
_DATETIME64 = re.compile(r"DateTime64\((\d)[,)]")
_DECIMAL = re.compile(r"Decimal\((\d+), ?(\d+)\)")
_MOST_DIGITS = 76
_ARRAY = re.compile(r"Array\((.*)\)")
_YEAR_1900, _YEAR_2299 = datetime.datetime(1900, 1, 1), datetime.datetime(2299, 12, 31, 23, 59, 59)
_RANGES = {
    "Date": (datetime.datetime(1970, 1, 1), datetime.datetime(2149, 6, 6)),
    "Date32": (_YEAR_1900, datetime.datetime(2299, 12, 31)),
    "DateTime": (datetime.datetime(1970, 1, 1), datetime.datetime(2106, 2, 7, 6, 28, 15)),
    "DateTime64": (_YEAR_1900, _YEAR_2299),
}


def takes(column: str, kind: pa.DataType) -> bool:
    """True if the column holds every value of Arrow's `kind`, ignoring nulls."""
    column = plain(column)
    is_ = pa.types
    if is_.is_integer(kind):
        bits, signed = _BITS.get(column, (0, False))
        if is_.is_signed_integer(kind):
            return bool(signed and bits >= kind.bit_width)
        return bool(bits >= kind.bit_width + signed)
    if is_.is_boolean(kind):
        return column in ("UInt8", "Bool")
    if is_.is_floating(kind):
        return column == "Float64" or (column == "Float32" and not is_.is_float64(kind))
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_binary(kind) or is_.is_large_binary(kind):
        return column == "String"
    if is_.is_date32(kind):
        return column in ("Date", "Date32")
    if is_.is_timestamp(kind):
        found = _DATETIME64.match(column)
        digits = int(found[1]) if found else 0
        return column.startswith("DateTime") and digits >= _DIGITS.get(kind.unit, 10)
    if is_.is_decimal(kind):
        found = _DECIMAL.fullmatch(column)
        return found is not None and int(found[1]) >= kind.precision and int(found[2]) == kind.scale
    if is_.is_list(kind) or is_.is_large_list(kind):
        found = _ARRAY.fullmatch(column)
        return found is not None and takes(found[1], kind.value_type)
    return False


def unkept(column: str, values: pa.Array, *, is_key: bool) -> str:
    found = _ARRAY.fullmatch(plain(column))
    if found is not None:
        values = values.flatten()
        if values.null_count and not nullable(found[1]):
            return f"an array has a null: make it Array(Nullable({found[1]})), or fill nulls"
        return unkept(found[1], values, is_key=is_key)
    first_last = _RANGES.get(plain(column).partition("(")[0])
    if first_last is not None and len(values) > values.null_count:
        moments = values.cast(pa.timestamp("s")) if pa.types.is_date(values.type) else values
        if pa.types.is_timestamp(moments.type) and moments.type.tz is not None:
            moments = moments.cast(pa.timestamp(moments.type.unit, "UTC")).cast(pa.timestamp(moments.type.unit))
        first, last = (pa.scalar(each, moments.type) for each in first_last)
        bounds = pc.min_max(moments)
        if pc.less(bounds["min"], first).as_py() or pc.greater(bounds["max"], last).as_py():
            return f"a value is before {first_last[0]} or after {first_last[1]}, which {plain(column)} would wrap"
    if is_key and pa.types.is_floating(values.type) and pc.any(negative_zeros(values)).as_py():
        return "a key is -0.0, which is the key 0.0 to the server: add 0.0 to the column in a select()"
    return ""


def plain(column: str) -> str:
    while found := _WRAPPED.fullmatch(column):
        column = found[2]
    return column


def nullable(column: str) -> bool:
    return "Nullable(" in column.removeprefix("LowCardinality(")[:9]


def column_for(kind: pa.DataType) -> str:
    """Type of a column in a new table; "" if no type holds `kind`."""
    is_ = pa.types
    if is_.is_list(kind) or is_.is_large_list(kind):
        inner = column_for(kind.value_type)
        return f"Array({inner})" if inner else ""
    if is_.is_decimal(kind):
        fits = 0 <= kind.scale <= kind.precision <= _MOST_DIGITS
        return f"Decimal({kind.precision}, {kind.scale})" if fits else ""
    if is_.is_timestamp(kind):
        if kind.unit not in _DIGITS:
            return ""
        return "DateTime" if kind.unit == "s" else f"DateTime64({_DIGITS[kind.unit]})"
    names = [*_BITS, "Float64", "String", "Date"]
    return next((name for name in names if takes(name, kind)), "")
