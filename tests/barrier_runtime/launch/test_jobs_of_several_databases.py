"""Jobs whose subtasks have several databases throughout the test: rescaled, killed, saved, forked, read and replayed
while the databases merge, with every kind of state and timers in them.
"""

import collections
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import TTL, Dataflow, ListState, MapState, ProcessContext, ValueState
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.maintenance.fsck_store import check_store, report_of
from barrier_runtime.replay import replay, verify
from barrier_runtime.state.backend import backend_snapshots, restore
from barrier_runtime.state.kv.key_ranges import RANGES_FILE
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state_tables import open_checkpoint
from barrier_runtime.state_tables.differences import diff
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.barrier_runtime.replay.two_checkpoints import ROWS, checkpoints_in, flow_of, rows_at
from tests.barrier_runtime.running_job import RunningJob, Target
from tests.newest_checkpoint import newest_manifest

KEYS = 12
WEEK_MS = 7 * 24 * 3_600_000


@pytest.fixture(autouse=True)
def _slow_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases of any size are opened instead of copied, and one entry moves each 20 ms."""
    monkeypatch.setattr(restore.BACKENDS["rocksdb"], "copied_bytes", 0)
    monkeypatch.setattr(backend_snapshots, "_AT_ONCE", 1)
    monkeypatch.setattr(backend_snapshots, "_MOST_AT_ONCE", 1)
    monkeypatch.setattr(backend_snapshots, "_PAUSE_S", 0.02)


class Everything:
    """Numbers the rows of a key, and the timers negatively; all states must agree."""

    seen = ValueState(int, default=0)
    due = ValueState(int, default=0)
    fired = ValueState(int, default=0)
    tenths = ListState(int)
    lasting = ValueState(int, default=0, ttl=TTL(datetime.timedelta(weeks=1)))
    brief = MapState(int, int, ttl=TTL(datetime.timedelta(milliseconds=200)))

    crash = False

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        if Everything.crash:
            Everything.crash = False
            raise OSError("a crash that was asked for")
        assert self.lasting.value == self.seen.value
        assert list(self.tenths) == list(range(10, self.seen.value + 1, 10))
        assert all(at_ms > ctx.timestamp - 200 for at_ms in self.brief)
        self.seen.value += 1
        self.lasting.value = self.seen.value
        self.brief[ctx.timestamp] = self.seen.value
        if self.seen.value % 10 == 0:
            self.tenths.append(self.seen.value)
        if not self.due.value:
            self.due.value = ctx.timestamp + 300
            ctx.timers.register(self.due.value)
            ctx.timers.register(self.due.value + WEEK_MS)
        yield {"key": key, "n": self.seen.value}

    def on_timer(self, key: int, timestamp_ms: int, ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        assert timestamp_ms == self.due.value
        self.due.value = 0
        self.fired.value += 1
        yield {"key": key, "n": -self.fired.value}


def everything_flow(target: Target, name: str = "job") -> Dataflow:
    """Few rows per second, so that a busy machine keeps up: barriers wait behind queued rows."""
    flow = Dataflow(name)
    rows = flow.rate("numbers", 80, keys=KEYS, splits=5, event_time="intended_at")
    kept = rows.key_by("key").process("kept", Everything, schema={"key": int, "n": int}, event_time="intended_at")
    kept.sink("out", target)
    return flow


def check_each_once(*targets: Target) -> None:
    numbers = collections.Counter((row["key"], row["n"]) for target in targets for row in target.rows())
    assert set(numbers.values()) == {1}
    for key in range(KEYS):
        seen, fired = max(n for of, n in numbers if of == key), -min(n for of, n in numbers if of == key)
        assert {n for of, n in numbers if of == key} == {*range(1, seen + 1), *range(-fired, 0)}
        assert fired > 0


def is_composite(manifest: Manifest) -> bool:
    files = (ref.name for each in manifest.operators if each.keyed is not None for ref in each.keyed.files)
    return RANGES_FILE in files


def damage(folder: Path) -> list[Any]:
    store = open_store(str(folder))
    return [each.damage for each in report_of(store, check_store(store, None, 0, 0)).jobs if each.damage]


@pytest.mark.slow
async def test_a_job_is_rescaled_killed_saved_and_forked_while_its_databases_become_one(tmp_path: Path) -> None:
    target, forked = Target(), Target()
    folder, savepoint = tmp_path / "job", tmp_path / "savepoint"
    options: dict[str, Any] = {"state_backend": "rocksdb", "max_parallelism": 16}
    job = RunningJob(everything_flow(target), folder, parallelism=4, **options)
    store = open_store(str(folder))
    await job.more_in(target, 80)
    for parallelism in (2, 3):
        assert (await job.rescale(parallelism)).state == "done"
        await job.more_in(target, 40)
        assert is_composite(newest_manifest(store, "job"))
    Everything.crash = True
    assert (await job.task).outcome == "failed"
    job = RunningJob(everything_flow(target), folder, parallelism=1, **options)
    await job.more_in(target, 40)
    await job.savepoint(str(savepoint))
    await job.more_in(target, 40)
    await job.stop()
    check_each_once(target)
    assert is_composite(newest_manifest(store, "job"))
    assert not damage(folder)
    with open_checkpoint(str(savepoint)) as stored:
        assert is_composite(stored.manifest)
        seen = {row["key"]: row["value"] for row in stored.table("kept", "seen").read_all().to_pylist()}
        assert set(seen) == set(range(KEYS))
        for key in range(0, KEYS, 4):
            (row,) = stored.table("kept", "seen", where={"key": key}).read_all().to_pylist()
            assert row["value"] == seen[key]
            tenths = stored.table("kept", "tenths", where={"key": key}).read_all().to_pylist()
            assert [each["value"] for each in tenths] == list(range(10, seen[key] + 1, 10))
    fork = RunningJob(
        everything_flow(forked, "fork"), tmp_path / "fork", restore=str(savepoint), parallelism=2, **options
    )
    await fork.more_in(forked, 60)
    await fork.stop()
    first = {key: min(row["n"] for row in forked.rows() if row["key"] == key and row["n"] > 0) for key in range(KEYS)}
    assert first == {key: value + 1 for key, value in seen.items()}
    assert not damage(tmp_path / "fork")


@pytest.mark.slow
async def test_checkpoints_of_several_databases_are_replayed_verified_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_snapshots, "_PAUSE_S", 3_600)  # however long a checkpoint takes
    folder, come, target = str(tmp_path), [600], Target()
    flow = flow_of(sink=target, may_come=lambda at: at < come[-1])
    job = RunningJob(flow, folder, parallelism=3, state_backend="rocksdb", retained=1_000)
    await job.until(lambda status: status.checkpoints.completed >= 2)
    assert (await job.rescale(1)).state == "done"
    before_it = job.runner.status().checkpoints.completed
    await job.until(lambda status: status.checkpoints.completed > before_it)
    come.append(1_000)
    await job.rows_in(target, 1_000)
    come.append(len(ROWS))
    await job.task
    composite = [
        (number, rows_at(folder, flow.name, number))
        for number in checkpoints_in(folder, flow.name)
        if is_composite(find_checkpoint(folder, flow.name, number).manifest)
    ]
    (before, first), *_, (until, last) = [(number, rows) for number, rows in composite if rows]
    assert 0 < first <= 600 < 1_000 <= last
    for user in ("ann", "bob", "cid"):
        done = replay(flow, "totals", user, after=before, until=until, checkpoints=folder)
        assert [each.row for each in done.rows] == [row for row in ROWS[first:last] if row["user"] == user]
        assert done.rows[0].before["total"] == sum(row["n"] for row in ROWS[:first] if row["user"] == user)
        assert not done.error
    found = verify(flow, after=before, until=until, checkpoints=folder)
    assert found.same, found.differences
    totals = [
        {user: sum(row["n"] for row in ROWS[:count] if row["user"] == user) for user in ("ann", "bob", "cid")}
        for count in (first, last)
    ]
    with open_checkpoint(folder, flow.name, before) as old, open_checkpoint(folder, flow.name, until) as new:
        changed = {each.key["user"]: (each.before, each.after) for each in diff(old, new, "totals", "total")}
    assert changed == {user: (totals[0][user], totals[1][user]) for user in totals[0]}
