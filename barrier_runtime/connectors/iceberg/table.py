"""One Iceberg table through pyiceberg: what it remembers of us, and how a checkpoint is appended to it at most once.

Every commit of ours is one snapshot. Its summary names the application (job, sink, lineage) and the checkpoint, and the
same commit sets the table property `barrier-runtime.<application>` to the checkpoint: who expires old snapshots, with
their summaries, must not make us forget.

| what is seen of the application             | the checkpoint was | then                                        |
|---------------------------------------------|--------------------|---------------------------------------------|
| property, or a summary, >= the checkpoint   | appended           | nothing                                     |
| neither                                     | not appended       | append, on condition that the branch is at  |
|                                             |                    | the snapshot that was looked at             |
| the condition failed                        | unknown            | look again: a zombie, or another writer     |
| no answer                                   | unknown            | look again                                  |

The client library would meet a failed condition by appending to whatever is there then, without looking: that would
double rows that a zombie has just appended. It takes the number of its attempts from the table's properties, so the
copy in memory says none; the table's own is not touched.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
)
from pyiceberg.table import Table

from barrier_runtime.connectors.iceberg.columns import check_fits
from barrier_runtime.state.errors import InvalidJob, Unavailable

APPLICATION = "barrier-runtime.application"  # in a snapshot's summary
CHECKPOINT = "barrier-runtime.checkpoint"
_LIBRARY_RETRIES = "commit.retry.num-retries"
_NO_ANSWER = (OSError, ServerError, ServiceUnavailableError, TooManyRequestsError)


class IcebergTable:
    """`name`: "namespace.table". Blocking. Raises `InvalidJob` when catalog or table cannot be used as they are,
    `Unavailable` when the catalog does not answer."""

    def __init__(self, name: str, catalog: str, properties: Mapping[str, str], where: str) -> None:
        self._name = name
        self._where = where
        try:
            self._catalog = _opened(catalog, properties)
        except _NO_ANSWER as error:
            raise Unavailable(f"{where}: the Iceberg catalog {catalog!r} does not answer: {error}") from error
        except Exception as error:  # of the catalog's own client: many kinds
            raise InvalidJob(
                f"{where}: the Iceberg catalog {catalog!r} cannot be opened ({type(error).__name__}: {error}): give "
                "IcebergSink the catalog's properties, or set PYICEBERG_CATALOG__<NAME>__URI and the others"
            ) from error

    def columns(self) -> pa.Schema | None:
        """Of the table as it is; None: there is none yet. Raises `Unavailable` when the catalog does not answer."""
        table = self._loaded()
        return None if table is None else table.schema().as_arrow()

    def append(self, application: str, checkpoint: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Append the rows as one snapshot unless that was done. Raises `Unavailable` when it is to be tried again."""
        table = self._loaded() or self._created(schema)
        if has(table, application, checkpoint):
            return
        there = table.schema().as_arrow()
        check_fits(schema, there, self._where, self._name)
        table.metadata.properties[_LIBRARY_RETRIES] = "0"
        rows = pa.Table.from_batches(list(batches), schema=schema)
        summary = {APPLICATION: application, CHECKPOINT: str(checkpoint)}
        try:
            with table.transaction() as transaction:
                transaction.append(rows, snapshot_properties=summary)
                transaction.set_properties({_property(application): str(checkpoint)})
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise Unavailable(
                f"{self._where}: another writer has changed the table {self._name}, or the catalog has not answered "
                f"({error}): it is looked at again"
            ) from error

    def has(self, application: str, checkpoint: int) -> bool:
        """Was this checkpoint, or a later one, appended?"""
        table = self._loaded()
        return table is not None and has(table, application, checkpoint)

    def _loaded(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None
        except (OSError, RESTError) as error:
            raise Unavailable(f"{self._where}: the catalog does not tell of the table {self._name}: {error}") from error

    def _created(self, schema: pa.Schema) -> Table:
        """Of two that create it one wins, and both append."""
        with contextlib.suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(self._name.rpartition(".")[0])
        try:
            return self._catalog.create_table(self._name, schema)
        except TableAlreadyExistsError:
            return self._catalog.load_table(self._name)


def has(table: Table, application: str, checkpoint: int) -> bool:
    said = table.properties.get(_property(application))
    if said is not None and int(said) >= checkpoint:
        return True
    return any(_is_of(snapshot.summary, application, checkpoint) for snapshot in table.metadata.snapshots)


def _is_of(summary: Any, application: str, checkpoint: int) -> bool:
    if summary is None:
        return False
    said: Mapping[str, str] = summary.additional_properties
    return said.get(APPLICATION) == application and int(said.get(CHECKPOINT, "0")) >= checkpoint


def _property(application: str) -> str:
    return f"barrier-runtime.{application}"


def _opened(name: str, properties: Mapping[str, str]) -> Catalog:
    """An SQL catalog makes tables of its own when it is opened first; of two that do so at once, one fails."""
    with contextlib.suppress(Exception):
        return load_catalog(name, **properties)
    return load_catalog(name, **properties)
