"""Checkpoints on S3 that a reader has pinned stay while the job drops others, and go when the reader has closed."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from barrier_runtime.coordinator.pins import pins_of
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state_tables import open_checkpoint
from barrier_runtime.state_tables.stored_state import StoredState
from examples.servers import S3Server
from tests.barrier_runtime.state_tables.test_pinned_reads import flow
from tests.waiting import until


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_pin_on_s3_holds_what_is_read_and_lets_it_go_afterwards(s3: S3Server) -> None:
    url, over = f"{s3.url}/jobs", list[bool]()
    store, paths = open_store(url), Paths("kept")

    def opened() -> StoredState | None:
        try:
            return open_checkpoint(url, "kept")
        except InvalidJob:
            return None  # no checkpoint is complete yet

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(flow(over).run_local, checkpoints=url, parallelism=1, checkpoint_interval=0.2, retained=1)
        try:
            stored = opened()
            while stored is None:
                time.sleep(0.05)
                stored = opened()
            with stored:
                assert len(pins_of(store, paths)) == 1
                manifest = paths.manifest(stored.checkpoint, stored.manifest.token)

                def newest() -> int:
                    with open_checkpoint(url, "kept", pin=False) as found:
                        return found.checkpoint

                until(lambda: newest() >= stored.checkpoint + 4)
                assert manifest in {info.key for info in store.list("kept/checkpoints/")}
                assert stored.table("last", "last").read_all().num_rows > 0
            until(lambda: manifest not in {info.key for info in store.list("kept/checkpoints/")})
            assert pins_of(store, paths) == []
        finally:
            over.append(True)
            job.result()
