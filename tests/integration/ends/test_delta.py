"""A Delta table on S3, under kills of everything, S3 included."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from barrier_runtime.state.store.open import open_store
from examples.servers import S3Server
from tests.integration.ends import delta_numbers
from tests.integration.ends.audit import Numbers, Seen
from tests.integration.ends.harness import run_under_kills

HTTP = {"AWS_ALLOW_HTTP": "true", "max_retries": "1"}


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


@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_a_job_goes_through_its_kills_with_one_table_commit_per_checkpoint(s3: S3Server, tmp_path: Path) -> None:
    """T10, T12, R3: slots, coordinators, the whole program and S3 itself; every version that is read is checked."""
    url = f"{s3.url}/table"
    report = run_under_kills(
        Path(delta_numbers.__file__),
        {"rate": 2_000, "keys": 50, "url": url},
        folder=tmp_path,
        open_reader=lambda: TableRows(url).look,
        make_audit=lambda: Numbers(50, together=True, ordered=False),
        server=s3,
        kills=8,
        seed=5,
        outage_s=8,
        options={"checkpoint_interval": 1.0},  # the S3 server of the tests takes 5 to 20 ms for a request
    )
    assert report.clean, str(report)
    assert report.kills >= 8
    table, store = DeltaTable(url, storage_options=HTTP), open_store(url)
    known = {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}
    assert {info.key for info in store.list("") if not info.key.startswith("_delta_log/")} == known
    adds = pa.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist()
    assert sum(adds) == report.rows
