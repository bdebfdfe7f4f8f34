"""A Delta table as a source: the rows of its newest version, then what every later version appends."""

import datetime
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import pyarrow as pa

from barrier_runtime.connectors.delta.history import DeltaHistory
from barrier_runtime.connectors.source import Split
from barrier_runtime.connectors.source_bases.table_reader import TableReader, period_of
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.urls import shown, without_credentials


@dataclass(frozen=True)
class DeltaSource:
    """`url`: the table's folder, a local one, `file://…` or `s3://bucket/prefix`. `every`: how often to look for new
    versions, for ever; None: the stream ends with the rows of the newest.

    Only rows that are appended can be followed: a version that changes or deletes rows ends the job; compactions are
    passed over. Log and files of a version must stay until it is read. The rows of one data file must fit in the memory
    of a slot. Columns are those of the table when the program starts.

    >>> flow.source("orders", DeltaSource("s3://lake/orders", every=timedelta(seconds=10)))  # doctest: +SKIP
    """

    url: str
    _: KW_ONLY
    every: datetime.timedelta | None = None

    def named(self, name: str) -> "DeltaRows":
        """Looks at the table. Raises `InvalidJob` when it is not there, `Unavailable` when nobody answers."""
        where = f"source {name!r}"
        url = without_credentials(str(self.url), f"the location of {where}")
        if "://" in url and not url.startswith(("file://", "s3://", "s3a://")):
            raise InvalidJob(f"{where}: cannot read {shown(url)}: use a folder, file:// or s3://")
        period_s = period_of(self.every, where)
        return DeltaRows(url, DeltaHistory(url, open_existing_store(url), where).schema(), period_s, where)


class DeltaRows:
    exactly_once = True

    def __init__(self, url: str, schema: pa.Schema, period_s: float | None, where: str) -> None:
        self._url = url
        self.schema = schema
        self._period_s = period_s
        self._where = where

    def __repr__(self) -> str:
        return f"Delta table {shown(self._url)}" + ("" if self._period_s is None else ", and what is appended to it")

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("versions")]

    def reader(self, split: Split) -> TableReader:
        def history() -> DeltaHistory:
            return DeltaHistory(self._url, open_existing_store(self._url), self._where)

        return TableReader(history, self.schema, self._period_s, self._where)
