"""Source of a Delta table: the newest version, then appends or changes of later versions."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial

from barrier_runtime.connectors.delta.history import DeltaChanges, DeltaHistory
from barrier_runtime.connectors.delta.library import checked_url
from barrier_runtime.connectors.source import SourceSettings
from barrier_runtime.connectors.source_bases.table_reader import TableRows, period_of
from barrier_runtime.connectors.source_bases.upserts import checked_key
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Duration
from barrier_runtime.state.store.open import open_existing_store, within
from barrier_runtime.state.store.urls import last_part, shown


@kinds_checked
@dataclass(frozen=True)
class DeltaSource(SourceSettings):
    """Rows of the Delta table at `url`: a local folder, `file://…` or `s3://bucket/prefix`.

    `every`: interval between looks for new versions; None: the stream ends with the newest version.

    Without `key` a version that changes or deletes rows ends the job. With `key`, the columns that identify rows, the
    stream has upserts: the table's columns, `deleted`, and `changed_at`, the time of the commit. A table with a change
    data feed gives the changed rows, another table all rows of rewritten files. An update of the key is a delete and a
    new row.

    Log and files of a version must exist until the version is read. The rows of a data file, and the keys that a
    version changes, must fit in the memory of a slot. Columns are those of the table when the program starts.

    >>> flow.source("orders", DeltaSource("s3://lake/orders", every=timedelta(seconds=10)))  # doctest: +SKIP
    """

    url: str
    _: KW_ONLY
    every: Duration | None = None
    key: str | Sequence[str] = ()

    def named(self, name: str) -> TableRows:
        """Reads the table. Raises `InvalidJob` if it is missing, `Unavailable` without an answer of the store."""
        where = f"source {name!r}"
        url = checked_url(self.url, f"the location of {where}", f"{where}: cannot read")
        key = checked_key(self.key, where)
        period_s, history = period_of(self.every, where), partial(_history, url, key, where)
        then = "what is changed in it" if key else "what is appended to it"
        said, named = f"Delta table {shown(url)}", f"Delta table {last_part(url)}"
        place = f"delta:{within(url, '')}"
        return TableRows(said, "versions", history, history().schema(), period_s, where, then, named, place)


def _history(url: str, key: tuple[str, ...], where: str) -> DeltaHistory:
    store = open_existing_store(url)
    return DeltaChanges(url, store, key, where) if key else DeltaHistory(url, store, where)
