"""The reader of the kill tests that write a Delta table."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from barrier_runtime.state.store.open import open_store
from tests.integration.ends.audit import Seen

HTTP = {"AWS_ALLOW_HTTP": "true", "max_retries": "1"}


class TableRows:
    """Reads the files of the table's newest version; each file once, when the file is new."""

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
