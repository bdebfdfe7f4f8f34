"""Jobs with large state over real sockets: every decided checkpoint can be deployed, at any parallelism, in any
outage.
"""

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tcp_job import TcpJob

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.connectors.source import Discovery, Polled, Split
from barrier_runtime.coordinator.checkpoints import commits
from barrier_runtime.coordinator.checkpoints.retention import Retention
from barrier_runtime.coordinator.job.phases import retaining
from barrier_runtime.coordinator.job.phases import waiting as phase_waiting
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import decode_manifest, manifest_data, own_files
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import Finish
from barrier_runtime.coordinator.wire import codec
from barrier_runtime.operators.aggregation.functions import count
from barrier_runtime.runtime import checkpointing
from barrier_runtime.state.snapshots.plan import Thresholds
from barrier_runtime.state.snapshots.transfer import with_values
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none

SCHEMA = pa.schema([("n", pa.int64())])


class Numbers:
    """Emits a row every 10 ms from split "live-<subtask>"; all other splits end at once, with a row each."""

    schema = SCHEMA
    exactly_once = True

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def splits(self, parallelism: int) -> list[Split]:
        live = [f"live-{index}" for index in range(parallelism)]
        return [Split(each) for each in (*live, *self.ids)]

    def reader(self, split: Split) -> "NumbersReader":
        return NumbersReader(split.id.startswith("live-"))


class Discovered(Numbers):
    def owner(self, split_id: str, parallelism: int) -> int:
        number = int(split_id.split("-")[1])
        return number % parallelism

    def discovery(self, known: Collection[str]) -> Discovery | None:
        return None


class NumbersReader:
    def __init__(self, live: bool) -> None:
        self.live = live
        self.count = 0
        self.due = time.time_ns()

    @property
    def finished(self) -> bool:
        return not self.live and self.count == 1

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.count += 1
        self.due = now_ns + 10_000_000
        return Polled(pa.record_batch({"n": pa.array([self.count], pa.int64())}), now_ns)

    def next_due_ns(self) -> int | None:
        return self.due

    def position(self) -> bytes:
        return str(self.count).encode()

    def seek(self, position: bytes) -> None:
        self.count = int(position)

    def close(self) -> None:
        pass


class Waiting(Numbers):
    """Files of which none has been started."""

    def splits(self, parallelism: int) -> list[Split]:
        return [Split(each) for each in self.ids]

    def reader(self, split: Split) -> "WaitingReader":
        return WaitingReader(False)


class WaitingReader(NumbersReader):
    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        return None

    def next_due_ns(self) -> int | None:
        return time.time_ns() + 3_600_000_000_000


def to_nowhere(source: Any) -> Dataflow:
    flow = Dataflow("large")
    flow.source("src", source).sink("out", CollectSink())
    return flow


def manifest_bytes(job: TcpJob) -> bytes:
    view = read_log(job.store, job.paths)
    data = manifest_data(complete_of(view.completes[0]), job.store.get)
    assert data is not None
    return data


@pytest.mark.slow
async def test_a_job_with_17_megabytes_of_finished_splits_goes_on_after_a_failure(tmp_path: Path) -> None:
    """R4: a decided checkpoint can be deployed, of any size."""
    ids = [f"done-{number}-{'x' * 850_000}" for number in range(20)]
    options = {"parallelism": 2, "checkpoint_interval": 0.2, "checkpoints": str(tmp_path)}
    async with TcpJob(to_nowhere(Discovered(ids)), tmp_path, **options) as job:
        await job.until(lambda: job.completed >= 3)
        job.break_slot(1)
        await job.until(lambda: job.generations == 2 and job.status.phase == "running")
        before = job.completed
        await job.until(lambda: job.completed > before)
        data = manifest_bytes(job)
        manifest = decode_manifest("m", data)
        values = with_values(job.store, manifest.operators, 1)
        assert len(data) < 100_000
        assert sum(len(value) for each in values for value in each.values.values()) < 100_000, "ids are not stored"


class Held(Numbers):
    """Two splits with a row every 10 ms, and `ids`: splits with a row and a position of 850,000 bytes that never
    end.
    """

    def splits(self, parallelism: int) -> list[Split]:
        return [Split(each) for each in ("live-0", "live-1", *self.ids)]

    def reader(self, split: Split) -> "HeldReader":
        return HeldReader(*split.id.split("-"))


class HeldReader(NumbersReader):
    """Rows are numbered from 1,000,000 times the split's number."""

    def __init__(self, kind: str, number: str) -> None:
        super().__init__(kind == "live")
        self.base = int(number) * 1_000_000
        self.held = hashlib.sha512(number.encode()).hexdigest() * 6_641  # 850,048 characters

    @property
    def finished(self) -> bool:
        return False

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if not self.live and self.count:
            self.due = now_ns + 3_600_000_000_000
            return None
        polled = super().poll(max_rows, now_ns)
        return polled and Polled(pa.record_batch({"n": pa.array([self.base + self.count], pa.int64())}), now_ns)

    def position(self) -> bytes:
        return b"%d" % self.count if self.live else msgspec.json.encode([self.count, self.held])

    def seek(self, position: bytes) -> None:
        if self.live:
            super().seek(position)
            return
        self.count, held = msgspec.json.decode(position)
        assert held == self.held, "a position came back as another one"


@pytest.mark.slow
@pytest.mark.parametrize(("stored_apart", "parallelism"), [(True, 1), (True, 3), (False, 3)])
async def test_17_megabytes_of_positions_survive_a_failure_and_a_rescaling_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_apart: bool, parallelism: int
) -> None:
    """R4: as objects that the manifest names, and inside acks of 8.5 MB each and a manifest of 17 MB."""
    if not stored_apart:
        monkeypatch.setattr(checkpointing, "store_values", lambda values, *_: (dict(values), {}))
    ids = [f"held-{number}" for number in range(2, 22)]
    options = {"checkpoint_interval": 0.2, "checkpoints": str(tmp_path)}

    def flow() -> Dataflow:
        flow = Dataflow("large")
        flow.source("src", Held(ids)).sink("out", JsonlSink(str(tmp_path / "out")))
        return flow

    async with TcpJob(flow(), tmp_path, parallelism=2, **options) as job:
        await job.until(lambda: job.completed >= 2 and job.status.records > len(ids) + 20)
        size = len(manifest_bytes(job))
        assert size < 100_000 if stored_apart else size > 17_000_000
        job.break_slot(1)
        await job.until(lambda: job.generations == 2 and job.status.phase == "running")
        before = job.completed
        await job.until(lambda: job.completed > before)
    async with TcpJob(flow(), tmp_path, parallelism=parallelism, **options) as job:
        await job.until(lambda: job.completed > job.status.restored_checkpoint + 1)
    files = committed_files(str(tmp_path / "out"))
    texts = [Path(file.removeprefix("file://")).read_text() for file in files]
    rows = [json.loads(line)["n"] for text in texts for line in text.splitlines()]
    held = sorted(n for n in rows if n >= 2_000_000)
    assert held == [number * 1_000_000 + 1 for number in range(2, 22)]
    for split in (0, 1):
        live = sorted(n - split * 1_000_000 for n in rows if n // 1_000_000 == split)
        assert live == list(range(1, len(live) + 1))
        assert len(live) > 5


@pytest.mark.slow
async def test_job_over_a_table_of_10000_files_checkpoints_and_continues_after_a_failure(tmp_path: Path) -> None:
    """R4: their names alone have two megabytes."""
    ids = [
        f"year=2024/month={n % 12:02d}/part-{n:05d}-{os.urandom(80).hex()}-c000.snappy.parquet" for n in range(10_000)
    ]
    options = {"parallelism": 1, "checkpoint_interval": 0.5, "checkpoints": str(tmp_path)}
    async with TcpJob(to_nowhere(Waiting(ids)), tmp_path, **options) as job:
        await job.until(lambda: job.completed >= 1)
        job.break_slot(0)
        await job.until(lambda: job.generations == 2 and job.status.phase == "running")
        before = job.completed
        await job.until(lambda: job.completed > before)


class Large(TwoPhaseCommitSink):
    """Committables of a megabyte, shown by a global committer; the target may be down."""

    global_committer = True

    def __init__(self, size: int) -> None:
        self.size = size
        self.down = True
        self.shown: set[bytes] = set()
        self.decided: set[bytes] = set()

    def __deepcopy__(self, memo: object) -> "Large":
        return self

    def begin_transaction(self) -> list[int]:
        return []

    def write(self, transaction: list[int], rows: pa.RecordBatch) -> None:
        transaction.append(rows.num_rows)

    def pre_commit(self, transaction: list[int], checkpoint: int) -> bytes | None:
        return os.urandom(self.size // 2).hex().encode() if transaction else None

    def commit(self, committable: bytes) -> None:
        self.decided.add(committable)

    def commit_globally(self, checkpoint: int, committables: Any) -> None:
        if self.down:
            raise OSError("the target is down")
        self.shown.update(committables)


@pytest.mark.slow
@pytest.mark.parametrize("nothing_carried", [False, True])
async def test_unreachable_target_stops_checkpoints_before_pending_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_carried: bool
) -> None:
    """R4: also when nothing is carried in messages; then a hundredth of the size does."""
    sink, allowed = Large(4_000_000), "33,554,432"
    if nothing_carried:
        monkeypatch.setattr(phase_waiting, "MAX_CARRIED_BYTES", 1)
        monkeypatch.setattr(commits, "MAX_CARRIED_BYTES", 1)
        monkeypatch.setattr(commits, "MAX_PENDING_BYTES", 335_544)
        sink, allowed = Large(40_000), "335,544"
    flow = Dataflow("large")
    flow.source("src", Numbers([])).sink("out", sink)
    options = {"parallelism": 2, "checkpoint_interval": 0.1, "checkpoints": str(tmp_path)}
    async with TcpJob(flow, tmp_path, **options) as job:
        await job.until(lambda: "no checkpoint is taken" in job.status.condition_reason)
        assert job.status.condition == "WAITING_SINK"
        assert f"{allowed} are allowed" in job.status.condition_reason
        stopped_at = job.completed
        assert 4 <= stopped_at <= 7
        job.break_slot(1)
        await job.until(lambda: job.generations == 2 and job.status.phase == "running")
        sink.down = False
        await job.until(lambda: job.completed > stopped_at + 2)
        reached = job.completed
        await job.until(lambda: job.status.commits.through["out/global"] >= reached)
        assert len(sink.shown) >= 2 * (reached - 1)
        await job.until(lambda: job.status.condition == "RUNNING")


def counting(out: Path) -> Dataflow:
    flow = Dataflow("large")
    rows = flow.source("src", Numbers([f"s-{number}" for number in range(40)]))
    rows.key_by("n").aggregate("counts", count=count()).sink("out", JsonlSink(str(out)))
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [2, 3])
async def test_slots_that_read_the_manifest_themselves_restore_at_any_parallelism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    """R4"""
    monkeypatch.setattr(phase_waiting, "MAX_CARRIED_BYTES", 1)
    options = {"checkpoint_interval": 0.1, "checkpoints": str(tmp_path)}
    async with TcpJob(counting(tmp_path / "out"), tmp_path, parallelism=2, **options) as job:
        await job.until(lambda: job.completed >= 2 and job.status.records >= 80)
        records, reached = job.status.records, job.completed
        await job.until(lambda: job.completed >= reached + 2)
    async with TcpJob(counting(tmp_path / "out"), tmp_path, parallelism=parallelism, **options) as job:
        await job.until(lambda: job.status.records > 0)
        assert job.status.records >= records
        await job.until(lambda: job.completed > job.status.restored_checkpoint)


async def test_too_large_ack_declines_its_checkpoint_with_operator_size_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: the error is no internal error, and no checkpoint is decided that could not be restored."""
    monkeypatch.setattr(codec, "MAX_ACK_BYTES", 1_000)
    ids = [f"done-{number}" for number in range(40)]
    options = {"checkpoint_interval": 0.1, "checkpoints": str(tmp_path), "restart": "none"}
    async with TcpJob(to_nowhere(Numbers(ids)), tmp_path, parallelism=1, **options) as job:
        status = await job.outcome()
        assert status.outcome == "failed"
        assert status.error is not None
        failed = re.match(r".*?checkpoint (\d+) failed", status.error)
        assert failed is not None
        for part in ("more than 1,000", "by operator 'src'", "raise the parallelism"):
            assert part in status.error
        view = read_log(job.store, job.paths)
        assert [c for c in map(complete_of, view.completes) if c.checkpoint >= int(failed[1])] == []  # of fewer splits
        assert isinstance(view.head and view.head.record, Finish)


class LateStore:
    """Store whose uploads of snapshot files wait while `on_time` is not set."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.on_time = threading.Event()
        self.on_time.set()

    def __getattr__(self, name: str) -> Any:
        if name == "_store":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self._store, name)

    def put(self, key: str, data: bytes) -> None:
        if "/data/" in key:
            self.on_time.wait()
        self._store.put(key, data)


@pytest.mark.slow
@pytest.mark.usefixtures("manifests_are_objects")
async def test_uploads_of_checkpoints_that_expired_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1, S9: also while the generation that uploaded them runs for weeks."""
    monkeypatch.setattr(retaining, "SWEEP_EVERY_MS", 0)
    monkeypatch.setattr(Retention.sweep, "__defaults__", (None, 0))  # objects are old at once
    monkeypatch.setattr(Thresholds.__init__, "__defaults__", (0, 1 << 20, 4_096))  # small values are uploaded, too
    options = {
        "parallelism": 2,
        "checkpoint_interval": 0.05,
        "checkpoint_timeout": 2.0,
        "tolerable_failures": 1_000,
        "checkpoints": str(tmp_path),
    }
    stores: list[LateStore] = []

    def wrap(store: ObjectStore) -> Any:
        stores.append(LateStore(store))
        return stores[0]

    async with TcpJob(counting(tmp_path / "out"), tmp_path, wrap=wrap, **options) as job:
        await job.until(lambda: job.completed >= 2)
        before = job.status.checkpoints.failed
        stores[0].on_time.clear()
        await job.until(lambda: job.status.checkpoints.failed >= before + 3)
        stores[0].on_time.set()
        uploaded = job.completed
        await job.until(lambda: job.completed >= uploaded + 3)

        def settled() -> bool:
            named = set()
            for info in list(job.store.list(job.paths.checkpoints_prefix)):
                data = get_or_none(job.store, info.key)
                named |= set() if data is None else own_files(decode_manifest(info.key, data), job.paths.data_prefix)
            there = {info.key for info in job.store.list(job.paths.data_prefix)}
            return len(there - named) <= 2  # files of the running checkpoint

        await job.until(settled)
        assert job.generations == 1
