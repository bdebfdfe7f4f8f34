"""Counted numbers into a Delta table; its reader."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from barrier_runtime import Dataflow, DeltaSink, count
from barrier_runtime.state.store.open import open_store
from tests.integration.ends.audit import Seen

NAME, SINK = "delta-numbers", "out"
HTTP = {"AWS_ALLOW_HTTP": "true", "max_retries": "1"}


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], keys=settings["keys"], rows=settings["rows"])
    numbers.key_by("key").aggregate("count", n=count()).sink(SINK, DeltaSink(settings["url"]))
    return flow


class TableRows:
    """Reads the files of the table's newest version, each once, when it is new."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._read: set[str] = set()
        self.version = -1

    def look(self) -> Seen:
        if not DeltaTable.is_deltatable(self._url, storage_options=HTTP):
            return Seen([], [], whole=False)
        table, store = DeltaTable(self._url, storage_options=HTTP), open_store(self._url)
        assert table.version() >= self.version
        names = {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}
        assert names >= self._read, "a file left the table"
        rows = [pq.read_table(io.BytesIO(store.get(name)), columns=["value", "n"]) for name in names - self._read]
        self._read, self.version = names, table.version()
        together = pa.concat_tables(rows) if rows else pa.table({"value": [], "n": []})
        return Seen(together.column("value").to_pylist(), together.column("n").to_pylist(), whole=False)
