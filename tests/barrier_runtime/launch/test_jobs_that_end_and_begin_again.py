"""A job run like a cron task: repeatedly to the end of the input, with more input each time."""

import json
from pathlib import Path

import pytest

from barrier_runtime import CollectSink, Dataflow, JsonlSink
from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.coordinator.log.manifest import manifest_data
from barrier_runtime.coordinator.log.records import Complete, Finish, decode_record
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.runtime.sinks.pending_transactions import read_pending
from barrier_runtime.state.store.open import open_existing_store, open_store


def flow(folder: Path) -> Dataflow:
    flow = Dataflow("cron")
    flow.read_jsonl("in", str(folder / "in")).sink("out", JsonlSink(str(folder / "out")))
    return flow


def run(folder: Path, number: int, parallelism: int = 1) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{number}.jsonl").write_text(f'{{"n":{number}}}\n')
    flow(folder).run_local(checkpoints=str(folder / "ck"), parallelism=parallelism)


def shown(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("part-*.jsonl"))


def numbers(folder: Path) -> list[int]:
    return sorted(json.loads(line)["n"] for path in shown(folder) for line in path.read_text().splitlines())


def listed(folder: Path) -> int:
    """Transactions that `barrier-runtime transactions cron list` shows."""
    return sum(len(sink.entries) for sink in read_pending(open_existing_store(str(folder / "ck")), "cron").sinks)


def records(folder: Path) -> list[tuple[str, object]]:
    store = open_existing_store(str(folder / "ck"))
    return [(info.key, decode_record(info.key, store.get(info.key))) for info in store.list("cron/log/")]


def newest_manifest(folder: Path) -> bytes:
    decided = [record for _, record in records(folder) if isinstance(record, Complete)]
    data = manifest_data(decided[-1], open_existing_store(str(folder / "ck")).get)
    assert data is not None
    return data


def forget_that_it_finished(folder: Path) -> None:
    """Removes the last record, as if the process had died between the last global commit and the end of the log."""
    key, record = records(folder)[-1]
    assert isinstance(record, Finish)
    (folder / "ck" / key).unlink()


@pytest.mark.slow
def test_ten_runs_forget_shown_files_of_earlier_runs_and_tolerate_rotated_files(tmp_path: Path) -> None:
    """T4, T7: a finished job has made all rows visible, so no later start looks for its files."""
    sizes = []
    for number in range(10):
        run(tmp_path, number)
        assert numbers(tmp_path) == [number]
        assert listed(tmp_path) == 0
        shown(tmp_path)[0].unlink()
        sizes.append(len(newest_manifest(tmp_path)))
    assert sizes[-1] - sizes[1] < 3_000, sizes  # the source remembers finished files
    log = read_commit_log(open_store(str(tmp_path / "out")), "cron", "out")
    assert [len(record.files) for record in log] == [1] * 10


@pytest.mark.slow
def test_another_parallelism_finds_nothing_to_settle_either(tmp_path: Path) -> None:
    """T4"""
    for number, parallelism in enumerate((2, 3, 1)):
        run(tmp_path, number, parallelism)
        assert listed(tmp_path) == 0
        for path in shown(tmp_path):
            path.unlink()


@pytest.mark.slow
def test_death_after_the_last_global_commit_costs_a_check_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """T3, T4: no record says that all rows are visible, so the next run looks; a file may have disappeared."""
    for number in range(4):
        run(tmp_path, number)
        forget_that_it_finished(tmp_path)
        assert listed(tmp_path) == number + 1
        if number % 2:
            shown(tmp_path)[0].unlink()
    run(tmp_path, 4)
    assert listed(tmp_path) == 0
    log = read_commit_log(open_store(str(tmp_path / "out")), "cron", "out")
    assert [len(record.files) for record in log] == [1] * 5


def test_a_decided_file_that_nobody_has_seen_still_stops_the_start(tmp_path: Path) -> None:
    """T4: neither the folder nor the commit log contains the file."""
    run(tmp_path, 0)
    forget_that_it_finished(tmp_path)
    shown(tmp_path)[0].unlink()
    out = open_store(str(tmp_path / "out"))
    out.delete([info.key for info in out.list("_commits/")])
    with pytest.raises(JobFailed, match="a decided file of 1 row is gone"):
        run(tmp_path, 1)


@pytest.mark.slow
def test_rows_collected_by_two_runs_of_one_program_are_each_collected_once(tmp_path: Path) -> None:
    """T4: a failed job has no record that all rows were visible, so the next start commits the transactions again."""
    log, rows = tmp_path / "ck" / "collected" / "log", 4_000

    def run_with(sink: CollectSink, fails: bool) -> None:
        def until_three_checkpoints(row: dict[str, int]) -> dict[str, int]:
            if fails and row["value"] % 50 == 0 and len(list(log.iterdir())) > 3:
                raise ValueError("enough")
            return {"value": row["value"]}

        flow = Dataflow("collected")
        numbers = flow.rate("numbers", 2_000 if fails else 1_000_000, rows, splits=1)
        numbers.map(until_three_checkpoints, schema={"value": "int64"}).sink("out", sink)
        flow.run_local(checkpoints=str(tmp_path / "ck"), checkpoint_interval=0.05, restart="none")

    earlier, later, last = CollectSink(), CollectSink(), CollectSink()
    with pytest.raises(JobFailed, match="enough"):
        run_with(earlier, fails=True)
    run_with(later, fails=False)
    run_with(last, fails=False)
    collected = [row["value"] for sink in (earlier, later) for row in sink.rows()]
    assert earlier.rows()
    assert sorted(collected) == list(range(rows))
    assert last.rows() == []
