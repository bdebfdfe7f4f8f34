"""Files and tables of the real world on real servers."""

import pytest

from barrier_runtime import CollectSink, Dataflow, DeltaSink, DeltaSource
from barrier_runtime.state.store.open import open_store
from examples.servers import HdfsServer, S3Server
from tests.barrier_runtime.connectors.files.test_odd_keys import check


# Source: our own trial
def test_hdfs_files_are_read_under_their_own_names(hdfs: HdfsServer) -> None:
    url = hdfs.new_url()
    store = open_store(url)
    check(lambda key: f"{url}/{key}", store.put)


# Source: our own trial
@pytest.mark.parametrize("prefix", ["plain", "a b", "a#b", "ü+", "50%"])
def test_a_delta_table_on_s3_is_where_its_url_says(s3: S3Server, prefix: str) -> None:
    url = f"{s3.url}/odd/{prefix}"
    flow, out = Dataflow("odd"), CollectSink()
    flow.from_iterator("in", lambda index, count: iter([{"n": 1}]), schema={"n": int}, splits=1).sink(
        "out", DeltaSink(url)
    )
    flow.run_local(parallelism=1)
    assert open_store(url).url.endswith(f"/{prefix}")
    assert any(info.key.endswith(".parquet") for info in open_store(url).list("part-"))
    again = Dataflow("again")
    again.source("in", DeltaSource(url)).sink("out", out)
    again.run_local(parallelism=1)
    assert out.rows() == [{"n": 1}]
