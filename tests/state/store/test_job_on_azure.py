"""A whole job whose checkpoints and files are in Azure Blob (on Azurite)."""

import json
import time
from typing import Any

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


@pytest.mark.slow
def test_a_job_outlives_stops_of_the_server(azure_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints and its files are there. Twice while rows come: requests are cut off and refused."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", cloud_emulators.AZURITE_KEY)
    checkpoints, target = (cloud_emulators.azure_container(azure_emulator) for _ in range(2))
    store, rows = open_store(target), 2_000
    flow = Dataflow("azure-away")
    flow.rate("numbers", 500, rows).select(["value"]).sink("out", JsonlSink(target))

    def seen() -> list[int]:
        files = live_files(read_commit_log(store, "azure-away", "out"))
        return sorted(json.loads(line)["value"] for file in files for line in store.get(file.name).splitlines())

    def until(condition: Any) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    options: dict[str, Any] = {"restart": "fixed_delay", "restart_attempts": 100, "restart_delay": 0.2}
    with flow.start_local(parallelism=2, checkpoints=checkpoints, checkpoint_interval=0.1, **options) as job:
        for least in (200, 800):
            until(lambda least=least: len(seen()) >= least)
            azure_emulator.stop()
            try:
                time.sleep(0.5)  # a request or more fails
            finally:
                azure_emulator.start()
        job.wait(300)
    assert seen() == list(range(rows))
