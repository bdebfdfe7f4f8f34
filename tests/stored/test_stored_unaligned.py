"""A checkpoint of an earlier release with rows in flight: replay, verify, comparison with a later checkpoint, fsck. The
job that continues from the checkpoint is stopped with a savepoint, from which another job begins.
"""

import runpy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stored_rows import SCHEMA
from test_stored_files import FIXED, HERE, Job, all_there, check_each_once

from barrier_runtime import Dataflow, JsonlSink, Tumbling, count, max_, mean, min_, sum_
from barrier_runtime.coordinator.maintenance.fsck_store import check_store, report_of
from barrier_runtime.replay import replay, verify
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state_tables import open_checkpoint
from barrier_runtime.state_tables.differences import diff
from tests.barrier_runtime.running_job import RunningJob
from tests.newest_checkpoint import newest_manifest

pytestmark = pytest.mark.slow
ARCHIVE = HERE / "f69d69f-unaligned.tar.xz"
KEY = 3


class InProcess(Job):
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(ARCHIVE, folder)
        self.checkpoints = str(folder / "checkpoints")
        self._environment = monkeypatch
        monkeypatch.setenv("BARRIER_STORED", str(folder))

    def flow(self, name: str = "stored") -> Dataflow:
        self._environment.setenv("BARRIER_STORED_NAME", name)
        return runpy.run_path(str(HERE / "program.py"))["flow"]  # type: ignore[no-any-return]

    def windows_alone(self) -> Dataflow:
        """The part of the flow whose result does not depend on how files are interleaved."""
        flow = Dataflow("stored")
        fixed = flow.read_jsonl(
            "fixed",
            str(self.folder / "fixed"),
            schema=SCHEMA,
            event_time="at",
            max_out_of_orderness=timedelta(seconds=3),
        )
        windows = fixed.key_by("k").window("windows", Tumbling(timedelta(seconds=7)), event_time="at")
        totals = windows.aggregate(n=count(), total=sum_("n"), low=min_("x"), high=max_("x"), mid=mean("n"))
        totals.sink("windows-out", JsonlSink(str(self.folder / "out" / "windows")))
        return flow

    def damage(self) -> list[Any]:
        store = open_store(self.checkpoints)
        jobs = report_of(store, check_store(store, None, 0, 0)).jobs
        assert jobs
        return [each.damage for each in jobs if each.damage]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess(tmp_path, monkeypatch)


@pytest.mark.parametrize("operator", ["quiet", "running"])
def test_rows_of_a_key_are_replayed_from_it_those_in_flight_first(job: InProcess, operator: str) -> None:
    with open_checkpoint(job.checkpoints, "stored") as stored:
        in_flight = [each["n"] for each in stored.table(operator, "in_flight_0").read_all().to_pylist()]
        read = {each["split"]: each["rows"] for each in stored.positions().to_pylist()}
    done = replay(job.flow(), operator, KEY, after=1, checkpoints=job.checkpoints)
    own = {row["n"]: at for at, row in enumerate(FIXED) if row["k"] == KEY}
    before = [n for n, at in own.items() if at % 80 < read[f"part-{at // 80:05d}.jsonl"] and n not in in_flight]
    came = [each for each in done.rows if each.row is not None]
    assert sorted([*before, *(each.row["n"] for each in came if each.row)]) == sorted(own)
    of_key = [n for n in in_flight if n in own]
    assert {each.row["n"] for each in came[: len(of_key)] if each.row} == set(of_key)
    for number, each in enumerate(came, len(before)):
        counts = [
            found["seen"] if operator == "quiet" else found["running"]["rows"] for found in (each.before, each.after)
        ]
        assert counts == [number, number + 1]
    assert not job.damage()


async def test_the_job_that_goes_on_from_it_is_a_savepoint_and_differs_by_what_came(
    job: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARRIER_STORED_PACE", "100")  # some rows are left to the next job
    running = RunningJob(job.flow(), job.checkpoints, parallelism=2, retained=1_000, unaligned=True)
    await running.until(lambda status: status.checkpoints.completed >= 1)
    await running.stop(str(job.folder / "savepoint"))
    assert not job.damage()
    taken = newest_manifest(open_store(job.checkpoints), "stored").checkpoint
    with open_checkpoint(job.checkpoints, "stored", 1) as old, open_checkpoint(job.checkpoints, "stored", taken) as new:
        timers = [(each.change, each.key["k"], each.beside) for each in diff(old, new, "quiet", "@timers")]
        back = [(each.change, each.key["k"], each.beside) for each in diff(new, old, "quiet", "@timers")]
        had = {(each["key_1"], each["key_2"]) for each in old.table("quiet", "@timers").read_all().to_pylist()}
        table = new.table("quiet", "@timers").read_all().to_pylist()
        has = {(each["k"], round(each["at"].timestamp() * 1000)) for each in table}
    assert had != has
    assert sorted(timers) == sorted([("deleted", *it) for it in had - has] + [("inserted", *it) for it in has - had])
    assert sorted(back) == sorted([("inserted", *it) for it in had - has] + [("deleted", *it) for it in has - had])
    monkeypatch.setenv("BARRIER_STORED_PACE", "20000")
    for later in (job.folder / "later").iterdir():
        later.rename(job.folder / "watched" / later.name)
    saved = str(job.folder / "savepoint")
    next_one = RunningJob(job.flow("next"), job.checkpoints, parallelism=3, restore=saved, unaligned=True)
    await next_one.until(lambda status: all_there(job))
    await next_one.stop()
    check_each_once(job)
    assert not job.damage()


async def test_what_came_of_it_is_verified(job: InProcess) -> None:
    running = RunningJob(job.flow(), job.checkpoints, parallelism=2, retained=1_000)
    await running.until(lambda status: len(job.visible("windows")) >= 70)
    await running.stop()
    until = newest_manifest(open_store(job.checkpoints), "stored").checkpoint
    found = verify(job.windows_alone(), after=1, until=until, checkpoints=job.checkpoints)
    assert found.same, found.differences
    assert found.read_back == ("windows-out",)
