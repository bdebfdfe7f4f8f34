"""A whole job whose checkpoints and files are in Azure Blob (on Azurite)."""

import pytest

from barrier_runtime import Dataflow, JsonlSink, compact_files, count
from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.connectors.files.sink.commit_record import live_files
from barrier_runtime.state.store.open import open_store
from tests import cloud_emulators
from tests.cloud_emulators import Emulator


@pytest.mark.slow
def test_a_job_keeps_its_checkpoints_and_files_there(azure_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", cloud_emulators.AZURITE_KEY)
    checkpoints, target = (cloud_emulators.azure_container(azure_emulator) for _ in range(2))

    def run() -> None:
        flow = Dataflow("azure")
        rows = flow.rate("numbers", 1_000, 600, keys=7)
        rows.key_by("key").aggregate("counts", n=count()).sink("out", JsonlSink(target, partition_by="key"))
        flow.run_local(parallelism=2, checkpoints=checkpoints, checkpoint_interval=0.1)

    run()
    run()  # nothing is left to read: it goes on from the last checkpoint, and writes nothing again
    store = open_store(target)

    def rows_seen() -> int:
        files = live_files(read_commit_log(store, "azure", "out"))
        return sum(len(store.get(file.name).splitlines()) for file in files)

    assert rows_seen() == 600
    for _ in range(3):
        compact_files(target, keep_s=0)
        assert rows_seen() == 600
    assert len(live_files(read_commit_log(store, "azure", "out"))) == 7
