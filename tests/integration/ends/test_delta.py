"""A Delta table on S3, under kills of everything, S3 included."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from barrier_runtime.state.store.open import open_store
from examples.servers import S3Server
from tests.integration.ends import delta_numbers
from tests.integration.ends.audit import Numbers
from tests.integration.ends.delta_numbers import HTTP, TableRows
from tests.integration.ends.harness import run_under_kills


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
