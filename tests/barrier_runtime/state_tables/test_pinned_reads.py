"""Reading the state of a running job that drops checkpoints: objects in use by a reader are kept."""

import contextlib
import fnmatch
import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, ProcessContext, ValueState
from barrier_runtime.coordinator.pins import pins_of
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state_tables import StoredState, open_checkpoint
from barrier_runtime.tools.state import show
from tests.waiting import until

READS = 100


class Last:
    last = ValueState(int)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> None:
        self.last.value = row["n"]


def flow(over: list[bool]) -> Dataflow:
    def rows(index: int, of: int) -> Iterator[dict[str, Any]]:
        n = 0
        while not over:
            for _ in range(20):
                n += 1
                yield {"user": f"u{n % 500}", "n": n}
            time.sleep(0.02)  # the cost of the test grows with the rows

    flow = Dataflow("kept")
    read = flow.from_iterator("rows", rows, schema={"user": str, "n": int}, splits=1)
    read.key_by("user").process("last", Last, schema={"user": str}).sink("out", CollectSink())
    return flow


def last_values(read: int) -> dict[str, int]:
    return {f"u{n % 500}": n for n in range(max(1, read - 499), read + 1)}


@pytest.mark.slow
def test_a_hundred_reads_beside_a_job_that_keeps_one_checkpoint_all_succeed(tmp_path: Path) -> None:
    over: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(flow(over).run_local, checkpoints=tmp_path, parallelism=2, checkpoint_interval=0.1)
        try:
            seen = set()

            def drops() -> bool:
                with contextlib.suppress(InvalidJob), open_checkpoint(str(tmp_path), "kept") as stored:
                    seen.add(stored.checkpoint)
                return len(seen) >= 3

            until(drops, "the job completes and drops checkpoints")
            for _ in range(READS):
                with open_checkpoint(str(tmp_path), "kept") as stored:
                    rows = stored.table("last", "last").read_all().to_pylist()
                    (split,) = stored.positions().to_pylist()
                    assert {row["user"]: row["value"] for row in rows} == last_values(split["rows"])
                    assert stored.age_s < 60
            shown, of = show(str(tmp_path), "kept", None, "last.last", ("user=u7",), 20)
            assert [json.loads(line)["user"] for line in shown.splitlines()] == ["u7"]
            assert re.fullmatch(r"checkpoint \d+ of job kept, \d+\.\d s old", of)
        finally:
            over.append(True)
            job.result()
    assert pins_of(open_store(str(tmp_path)), Paths("kept")) == []


def with_rows(url: str) -> StoredState | None:
    """Opens the newest checkpoint, if a checkpoint exists and the state has rows."""
    try:
        stored = open_checkpoint(url, "kept")
    except InvalidJob:
        return None
    if stored.table("last", "last").read_all().num_rows:
        return stored
    stored.close()
    return None


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_pinned_checkpoint_stays_until_it_is_closed(tmp_path: Path) -> None:
    over: list[bool] = []

    def manifests() -> int:
        found = 0
        for folder in (tmp_path / "kept" / "checkpoints").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the job has just deleted the folder
                found += len(fnmatch.filter(os.listdir(folder), "manifest*.json"))
        return found

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(flow(over).run_local, checkpoints=tmp_path, parallelism=1, checkpoint_interval=0.05)
        try:
            stored = until(lambda: with_rows(str(tmp_path)), "a checkpoint has rows")
            first = stored.checkpoint
            until(lambda: manifests() >= 6, "the pin keeps later checkpoints, too")
            assert stored.checkpoint == first
            assert stored.table("last", "last").read_all().num_rows > 0
            with open_checkpoint(str(tmp_path), "kept", first) as again:
                assert again.checkpoint == first, "dropped, and pinned"
            stored.close()
            until(lambda: manifests() <= 4, "the others are deleted")
        finally:
            over.append(True)
            job.result()
