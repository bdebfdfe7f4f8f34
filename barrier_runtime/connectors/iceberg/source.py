"""An Iceberg table as a source: the rows of its newest snapshot, then what every later snapshot appends."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrier_runtime.connectors.iceberg.library import need_pyiceberg
from barrier_runtime.connectors.source import Split
from barrier_runtime.connectors.source_bases.table_reader import TableReader, period_of
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.connectors.iceberg.history import IcebergHistory


@dataclass(frozen=True)
class IcebergSource:
    """`table`: "namespace.table", in a catalog as `IcebergSink` takes it. `every`: how often to look for new snapshots,
    for ever; None: the stream ends with the rows of the newest.

    Only rows that are appended can be followed: a snapshot that overwrites or deletes rows ends the job; compactions
    are passed over. Snapshots must not expire before they are read. The rows of one data file must fit in the memory of
    a slot. Columns are those of the table when the program starts.

    >>> flow.source("orders", IcebergSource("shop.orders", every=timedelta(seconds=10)))  # doctest: +SKIP
    """

    table: str
    _: KW_ONLY
    catalog: str = "default"
    properties: Mapping[str, str] | None = None
    every: datetime.timedelta | None = None

    def named(self, name: str) -> "IcebergRows":
        """Looks at the table. Raises `InvalidJob` when it is not there, `Unavailable` when nobody answers."""
        where = f"source {name!r}"
        period_s = period_of(self.every, where)
        if "." not in self.table.strip("."):
            raise InvalidJob(f"{where}: table {self.table!r} has no namespace: write 'namespace.table'")
        schema = _history(self, where).schema()
        return IcebergRows(self, schema, period_s, where)


class IcebergRows:
    exactly_once = True

    def __init__(self, given: IcebergSource, schema: pa.Schema, period_s: float | None, where: str) -> None:
        self._given = given
        self.schema = schema
        self._period_s = period_s
        self._where = where

    def __repr__(self) -> str:
        return f"Iceberg table {self._given.table}" + ("" if self._period_s is None else ", and what is appended to it")

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("snapshots")]

    def reader(self, split: Split) -> "TableReader":
        return TableReader(lambda: _history(self._given, self._where), self.schema, self._period_s, self._where)


def _history(given: IcebergSource, where: str) -> "IcebergHistory":
    need_pyiceberg(where, "IcebergSource")
    from barrier_runtime.connectors.iceberg.history import IcebergHistory

    return IcebergHistory(given.table, given.catalog, dict(given.properties or {}), where)
