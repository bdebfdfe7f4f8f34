"""A Delta table and files by multipart upload, both on S3, under kills of everything, S3 included."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.s3 import S3Store
from examples.servers import S3Server
from tests.integration.ends import s3_numbers
from tests.integration.ends.audit import Numbers
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.delta_rows import HTTP, TableRows
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.several import EachTarget, Looks

KEYS = 50


@pytest.mark.long(75)
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_a_table_gets_one_commit_per_checkpoint_and_no_upload_is_left(s3: S3Server, tmp_path: Path) -> None:
    """T10, T12, R3: slots, coordinators, the whole program and S3 itself; every version of the table that is read, and
    every look at the commit log of the files, is checked."""
    table_url, files_url = f"{s3.url}/table", f"{s3.url}/files"

    def open_reader() -> Looks:
        files = CommittedRows(files_url, s3_numbers.NAME, s3_numbers.FILES)
        return Looks({"table": TableRows(table_url).look, "files": files.look})

    report = run_under_kills(
        Path(s3_numbers.__file__),
        {"rate": 1_000, "keys": KEYS, "table": table_url, "files": files_url},
        folder=tmp_path,
        open_reader=lambda: open_reader().look,
        make_audit=lambda: EachTarget(
            {"table": Numbers(KEYS, together=True, ordered=False), "files": Numbers(KEYS, together=True)}
        ),
        server=s3,
        kills=8,
        seed=66,
        outage_s=8,
        options={"checkpoint_interval": 1.0},  # the S3 server of the tests takes 5 to 20 ms for a request
    )
    assert report.clean, str(report)
    assert report.kills >= 8
    table, store = DeltaTable(table_url, storage_options=HTTP), open_store(table_url)
    known = {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}
    assert {info.key for info in store.list("") if not info.key.startswith("_delta_log/")} == known
    adds = pa.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist()
    assert sum(adds) == report.rows

    store = open_store(files_url)
    assert isinstance(store, S3Store)
    assert list(store.multipart().list("")) == []
    assert list(store.list("_staging/")) == []
    named = {name.rsplit("/", 1)[-1] for name in committed_files(files_url)}
    assert {info.key for info in store.list("part-")} == named, "nothing visible that the log does not name"
