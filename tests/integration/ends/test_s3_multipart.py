"""Files on S3 by multipart upload, under kills of everything, S3 included."""

from pathlib import Path

import pytest

from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.s3 import S3Store
from examples.servers import S3Server
from tests.integration.ends import multipart_numbers
from tests.integration.ends.audit import Numbers
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.harness import run_under_kills


@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_a_job_goes_through_its_kills_and_leaves_no_upload(s3: S3Server, tmp_path: Path) -> None:
    """T10, R3: slots, coordinators, the whole program and S3 itself; every look at the commit log is checked."""
    url = f"{s3.url}/numbers"
    report = run_under_kills(
        Path(multipart_numbers.__file__),
        {"rate": 2_000, "keys": 50, "url": url},
        folder=tmp_path,
        open_reader=lambda: CommittedRows(url, multipart_numbers.NAME, multipart_numbers.SINK).look,
        make_audit=lambda: Numbers(50, together=True),
        server=s3,
        kills=8,
        seed=33,
        outage_s=8,
        options={"checkpoint_interval": 1.0},  # the S3 server of the tests takes 5 to 20 ms for a request
    )
    assert report.clean, str(report)
    assert report.kills >= 8
    store = open_store(url)
    assert isinstance(store, S3Store)
    assert list(store.multipart().list("")) == []
    assert list(store.list("_staging/")) == []
    named = {name.rsplit("/", 1)[-1] for name in committed_files(url)}
    assert {info.key for info in store.list("part-")} == named, "nothing visible that the log does not name"
