"""The reader of the kill tests that write files: through the sink's commit log, whole checkpoints only."""

import io
import json
from typing import Any

import pyarrow.parquet as pq

from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.state.store.open import open_store
from tests.integration.ends.audit import Seen


class CommittedRows:
    """Reads each new record of the commit log below `url`, and the files that the record names, once."""

    def __init__(self, url: str, job: str, sink: str) -> None:
        self._url = url
        self._writer = (job, sink)
        self._read = 0  # records

    def look(self) -> Seen:
        rows = self.rows()
        return Seen([row["value"] for row in rows], [row["n"] for row in rows], whole=False)

    def rows(self) -> list[dict[str, Any]]:
        """The rows that have become visible since the last look."""
        store = open_store(self._url)
        new = read_commit_log(store, *self._writer, after=self._read)
        names = [file.name for record in new for file in record.files]
        rows = [row for name in names for row in _rows_of(name, store.get(name))]
        self._read += len(new)
        return rows


def _rows_of(name: str, data: bytes) -> list[dict[str, Any]]:
    if name.endswith(".parquet"):
        return list(pq.read_table(io.BytesIO(data)).to_pylist())
    return [json.loads(line) for line in data.splitlines()]
