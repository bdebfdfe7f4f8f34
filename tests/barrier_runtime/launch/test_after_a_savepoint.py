"""Jobs restored from a savepoint: their first checkpoints, and a fork that writes to the job's targets."""

import collections
import contextlib
import functools
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.json import read_json

from barrier_runtime import Dataflow, DeltaSink, JsonlSink
from barrier_runtime.bootstrap import write_savepoint
from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.maintenance.fsck_store import check_store, report_of
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state_tables import open_checkpoint
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.barrier_runtime.running_job import RunningJob, Target, check_each_once, numbers_flow, without_gaps

MANY = 20_000  # keys without rows


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["no_claim", "claim"])
async def test_the_first_checkpoints_behind_a_savepoint_need_nothing_of_it_and_restore(
    tmp_path: Path, mode: str
) -> None:
    """1.7 (FLINK-39964): the first checkpoint names files of the job's own copy, the second those of the first;
    both restore after the savepoint is gone, in every restore mode.
    """
    url, folder = str(tmp_path / "savepoint"), tmp_path / "jobs"
    known = pa.table({"key": range(MANY), "value": [0] * MANY})
    write_savepoint(url, flow=numbers_flow(Target(), "next"), states={("own", "seen"): known}, parallelism=2)
    before = Target()
    job = RunningJob(
        numbers_flow(before, "next"), folder, restore=url, restore_mode=mode, retained=1_000, parallelism=2
    )
    assert (tmp_path / "savepoint" / "savepoint.json").exists() is (mode == "no_claim")
    shutil.rmtree(url)
    await job.until(lambda status: status.checkpoints.completed >= 3)
    await job.stop()
    imported, first, second = _manifests(folder)[:3]
    copied = _objects(imported)
    for taken in (_objects(first), _objects(second)):
        shared = sum(size for key, size in taken.items() if key in copied)
        assert shared > 0.9 * sum(copied.values()), "what has not changed is not uploaded again"

    for number in (first.checkpoint, second.checkpoint):
        shutil.copytree(folder, tmp_path / f"from-{number}")
        after = Target()
        successor = RunningJob(
            numbers_flow(after, "next"),
            tmp_path / f"from-{number}",
            restore=str(number),
            allow_replay=True,
            parallelism=2,
        )
        await successor.rows_in(after, 400)
        await successor.stop()
        numbers: dict[int, list[int]] = collections.defaultdict(list)
        for row in after.rows():
            assert row["n"] == row["own"], "aggregate and function count the same rows"
            numbers[row["key"]].append(row["n"])
        assert all(without_gaps(sorted(of_key)) for of_key in numbers.values())
        with open_checkpoint(str(tmp_path / f"from-{number}"), "next") as stored:
            assert stored.count("own", "seen") == MANY


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [2, 3, 4])
async def test_a_restart_uploads_what_is_new_and_files_stay_while_anything_names_them(
    tmp_path: Path, parallelism: int
) -> None:
    """A job with `retain` 1 is restarted repeatedly: the large state is written once, fsck finds no object
    missing and reports no needed object as left over, and each successor has the whole state.
    """
    url, folder = str(tmp_path / "savepoint"), tmp_path / "jobs"
    known = pa.table({"key": range(MANY), "value": [0] * MANY})
    write_savepoint(url, flow=numbers_flow(Target(), "next"), states={("own", "seen"): known}, parallelism=2)
    target = Target()
    of_base: list[set[str]] = []
    for number in range(3):
        job = RunningJob(
            numbers_flow(target, "next"),
            folder,
            restore=url if number == 0 else "latest",
            retained=1,
            parallelism=2 if number == 0 else parallelism,
        )
        before = job.runner.status().checkpoints.completed
        await job.until(lambda status, before=before: status.checkpoints.completed >= before + 4)
        await job.more_in(target, 400)
        await job.stop()
        newest = find_checkpoint(str(folder), "next", None).manifest
        sizes = _objects(newest)
        of_base.append({key for key, size in sizes.items() if size > 10_000})
        if number == 1 and parallelism != 3:
            assert of_base[0] & of_base[1], "files of the run before are named"
        store = open_store(str(folder))
        (report,) = report_of(store, check_store(store, None, 0, 2**60)).jobs
        assert (report.damage, report.unreadable) == ((), "")
        with open_checkpoint(str(folder), "next") as stored:
            assert stored.count("own", "seen") == MANY
    check_each_once(target)


def _manifests(folder: Path) -> list[Manifest]:
    """Of all checkpoints, oldest first."""
    newest = find_checkpoint(str(folder), "next", None).manifest.checkpoint
    found = []
    for number in range(1, newest + 1):
        try:
            found.append(find_checkpoint(str(folder), "next", number).manifest)
        except InvalidJob:  # given up
            continue
    return found


def _objects(manifest: Manifest) -> dict[str, int]:
    """Returns the files of the state with many keys: object and offset -> size."""
    refs = [ref for each in manifest.operators if each.operator == "own" for ref in each.files]
    return {f"{ref.key}+{ref.offset}": ref.size for ref in refs if ref.key is not None}


@pytest.mark.slow
async def test_a_fork_that_writes_where_the_job_writes_touches_nothing_of_it(tmp_path: Path) -> None:
    """1.8: transactions contain the job's name. Both jobs write to one folder and one table, both restart at the same
    time, which recovers and cleans up, and each row of both is there once.
    """
    folder, table = str(tmp_path / "out"), str(tmp_path / "table")
    (tmp_path / "out").mkdir()

    def flow(name: str) -> Dataflow:
        flow = Dataflow(name)
        rows = flow.rate("numbers", 2_000, splits=2).select(["value"])
        rows.sink("files", JsonlSink(folder))
        rows.sink("delta", DeltaSink(table))
        return flow

    @functools.cache
    def values_in(url: str) -> list[int]:
        return list(read_json(url.removeprefix("file://"))["value"].to_pylist())

    def visible(name: str) -> list[int]:
        with contextlib.suppress(InvalidJob):  # nothing yet
            return [value for url in committed_files(folder, name, "files") for value in values_in(url)]
        return []

    def running(name: str, restore: str = "latest") -> RunningJob:
        return RunningJob(flow(name), tmp_path / "jobs", restore=restore, parallelism=2, checkpoint_interval=0.05)

    job = running("job")
    await job.until(lambda status: len(visible("job")) >= 400)
    await job.savepoint(str(tmp_path / "savepoint"))
    fork = running("fork", str(tmp_path / "savepoint"))
    await fork.until(lambda status: len(visible("fork")) >= 400)
    for name, each in (("job", job), ("fork", fork)):
        await each.stop()
        more = len(visible(name)) + 400
        again = running(name)
        await again.until(lambda status, name=name, more=more: len(visible(name)) >= more)
        await again.stop()
    of_job, of_fork = sorted(visible("job")), sorted(visible("fork"))
    for split in range(2):
        its = [value for value in of_job if value % 2 == split]
        assert its == list(range(split, 2 * len(its), 2)), "no row was lost or doubled"
        forked = [value for value in of_fork if value % 2 == split]
        assert forked == list(range(forked[0], forked[0] + 2 * len(forked), 2))
        assert its[0] < forked[0] < its[-1], "it begins where the savepoint is"
    both = DeltaTable(table).to_pyarrow_table()["value"].to_pylist()
    assert collections.Counter(both) == collections.Counter([*of_job, *of_fork])
