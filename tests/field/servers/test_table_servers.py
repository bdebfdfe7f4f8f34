"""Files and tables of the real world on real servers."""

from barrier_runtime.state.store.open import open_store
from examples.servers import HdfsServer
from tests.barrier_runtime.connectors.files.test_odd_keys import check


# Source: our own trial
def test_hdfs_files_are_read_under_their_own_names(hdfs: HdfsServer) -> None:
    url = hdfs.new_url()
    store = open_store(url)
    check(lambda key: f"{url}/{key}", store.put)
