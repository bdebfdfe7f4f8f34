"""Source of an Iceberg table: the newest snapshot, then appends or changes of later snapshots."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from barrier_runtime.connectors.iceberg.library import need_pyiceberg
from barrier_runtime.connectors.source import SourceSettings
from barrier_runtime.connectors.source_bases.table_reader import TableRows, period_of
from barrier_runtime.connectors.source_bases.upserts import checked_key
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Duration
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.connectors.iceberg.history import IcebergHistory


@kinds_checked
@dataclass(frozen=True)
class IcebergSource(SourceSettings):
    """Rows of the Iceberg table `table`, "namespace.table", in a catalog as for `IcebergSink`.

    `every`: interval between looks for new snapshots; None: the stream ends with the newest snapshot.

    Without `key` a snapshot that overwrites or deletes rows ends the job. With `key`, the columns that identify rows,
    the stream has upserts of all rows of the files that a snapshot rewrote: the table's columns, `deleted`, and
    `changed_at`, the time of the commit. An update of the key is a delete and a new row.

    Snapshots must not expire before they are read. The rows of a data file, and the keys of the files that a snapshot
    changes, must fit in the memory of a slot. Columns are those of the table when the program starts.

    >>> flow.source("orders", IcebergSource("shop.orders", every=timedelta(seconds=10)))  # doctest: +SKIP
    """

    table: str
    _: KW_ONLY
    catalog: str = "default"
    properties: Mapping[str, str] | None = field(default=None, repr=False)  # may hold secrets
    every: Duration | None = None
    key: str | Sequence[str] = ()

    def named(self, name: str) -> TableRows:
        """Reads the table. Raises `InvalidJob` if it is missing, `Unavailable` if the catalog does not answer."""
        where = f"source {name!r}"
        period_s = period_of(self.every, where)
        if "." not in self.table.strip("."):
            raise InvalidJob(f"{where}: table {self.table!r} has no namespace: write 'namespace.table'")
        key = checked_key(self.key, where)
        history = partial(_history, self, key, where)
        then = "what is changed in it" if key else "what is appended to it"
        place = f"iceberg:{self.catalog}/{self.table}"
        table = f"Iceberg table {self.table}"
        return TableRows(
            table, "snapshots", history, history().schema(), period_s, where, then, positions_in=table, place=place
        )


def _history(given: IcebergSource, key: tuple[str, ...], where: str) -> "IcebergHistory":
    need_pyiceberg(where, "IcebergSource")
    from barrier_runtime.connectors.iceberg.history import IcebergChanges, IcebergHistory

    table = given.table, given.catalog, dict(given.properties or {})
    return IcebergChanges(*table, key, where) if key else IcebergHistory(*table, where)
