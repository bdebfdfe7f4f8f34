"""`file_order=`: files read one after another, so that rows of a key come in the files' order."""

import asyncio
import json
import logging
import os
import random
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from operator_harness import World
from source_harness import drained, names, opened, rows_of, snapshot_of, spec_of

from barrier_runtime import CollectSink, Dataflow, InvalidJob, JsonlSink, JsonlSource, SqliteSink, last
from barrier_runtime.connectors.files.source import remote
from barrier_runtime.connectors.files.source import source as file_sources
from barrier_runtime.connectors.read_range import ReadRange
from barrier_runtime.connectors.source import Source
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions, job_spec
from barrier_runtime.runtime.sources.assignment import never_has_rows
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from tests.integration.harness import visible_files

SCHEMA = {"file": str, "n": int}
SECOND_NS = 1_000_000_000


def appear(folder: Path, name: str, rows: int = 3, modified_s: int | None = None) -> None:
    lines = "".join(json.dumps({"file": name, "n": n}) + "\n" for n in range(rows))
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f"_{target.name}")
    staged.write_text(lines)
    if modified_s is not None:
        os.utime(staged, (modified_s, modified_s))
    staged.rename(target)


def source_of(folder: Any, file_order: Any = "name", **options: Any) -> Source:
    return JsonlSource(str(folder), schema=SCHEMA, file_order=file_order, **options).named("src")


def each_of(source: Source, parallelism: int, restored: Sequence[OperatorSnapshot] = ()) -> list[SourceDriver]:
    """Drivers of all subtasks, which have all snapshots."""
    spec = spec_of(source, parallelism)
    worlds = [World(subtask=subtask, parallelism=parallelism) for subtask in range(parallelism)]
    return [opened(spec, world, tuple(restored)) for world in worlds]


def snapshots_of(drivers: list[SourceDriver]) -> list[OperatorSnapshot]:
    parallelism = len(drivers)
    taken = [
        snapshot_of(driver, World(subtask=subtask, parallelism=parallelism)) for subtask, driver in enumerate(drivers)
    ]
    for driver in drivers:
        driver.close()
    return taken


def read(drivers: list[SourceDriver], enough: int, at_once: int = 2) -> list[str]:
    """Files of the rows, in the order of reading, until `enough` rows have come."""
    found: list[str] = []
    deadline = time.monotonic() + 120
    while len(found) < enough:
        assert time.monotonic() < deadline, found
        for driver in drivers:
            batch = driver.poll(time.time_ns(), max(1, min(at_once, enough - len(found))))
            if batch is not None:
                found += [row["file"] for row in rows_of([batch])]
    return found


def whole(*files: str, rows: int = 3) -> list[str]:
    return [file for file in files for _ in range(rows)]


# ---------------------------------------------------------------- a fixed list of files


def test_files_are_read_one_after_another_by_one_subtask(tmp_path: Path) -> None:
    for name in ("b.jsonl", "c.jsonl", "a/z.jsonl"):
        appear(tmp_path, name)
    drivers = each_of(source_of(tmp_path), 2)
    assert drivers[1].finished
    assert [never_has_rows(source_of(tmp_path), spec_of(source_of(tmp_path)).splits, n) for n in (0, 1)] == [
        False,
        True,
    ]
    assert read(drivers, 9) == whole("a/z.jsonl", "b.jsonl", "c.jsonl")
    assert drivers[0].finished


def test_files_are_read_by_time_of_change_then_by_name(tmp_path: Path) -> None:
    for name, second in (("b", 2), ("c", 1), ("a", 2)):
        appear(tmp_path, f"{name}.jsonl", modified_s=second)
    for options in ({}, {"watch": 0.01}):
        (driver,) = each_of(source_of(tmp_path, "modified", **options), 1)
        assert read([driver], 9) == whole("c.jsonl", "a.jsonl", "b.jsonl")
        driver.close()


def test_paths_of_a_deep_pattern_are_in_the_order_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/c.jsonl", "c.jsonl"):
        appear(tmp_path, name)
    (driver,) = each_of(source_of(tmp_path / "**" / "*.jsonl"), 1)
    assert read([driver], 9) == whole("a/c.jsonl", "b.jsonl", "c.jsonl")


@pytest.mark.parametrize("options", [{}, {"watch": 0.01}])
def test_the_order_continues_over_restores_at_any_parallelism(tmp_path: Path, options: dict[str, Any]) -> None:
    files = [f"{n:02}.jsonl" for n in range(8)]
    for name in files:
        appear(tmp_path, name)
    found: list[str] = []
    restored: list[OperatorSnapshot] = []
    for parallelism, rows in ((2, 7), (3, 5), (1, 6), (2, 6)):  # in the middle, and at the end of a file
        drivers = each_of(source_of(tmp_path, **options), parallelism, restored)
        found += read(drivers, rows)
        restored = snapshots_of(drivers)
    assert found == whole(*files)


def test_a_job_that_read_files_side_by_side_completes_begun_files_first(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"):
        appear(tmp_path, name, 4)
    before = each_of(source_of(tmp_path, None), 2)
    for driver in before:
        driver.poll(0, 1)  # a and b
    before[1].poll(0, 1)  # d
    drivers = each_of(source_of(tmp_path), 2, snapshots_of(before))
    assert read(drivers, 13) == [*["a.jsonl"] * 3, *["b.jsonl"] * 3, *["d.jsonl"] * 3, *["c.jsonl"] * 4]


def test_event_time_goes_on_over_files_as_in_a_single_file(tmp_path: Path) -> None:
    for name, times in (("a", (5, 9)), ("b", (3, 4)), ("c", (20,))):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"file": "{name}", "n": {n}}}\n' for n in times))
    driver = opened(spec_of(source_of(tmp_path), event_time="n"), World())
    reached = []
    while not driver.finished:
        if driver.poll(0, 1) is not None:
            reached.append(driver.watermark())
    assert reached == [4, 8, 8, 8, 19]
    assert driver.records == 5


def test_the_pace_is_that_of_the_file_that_is_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        appear(tmp_path, f"{name}.jsonl", 10)
    driver = opened(spec_of(source_of(tmp_path, pace=5.0)), World())
    driver.poll(0)
    batch = driver.poll(SECOND_NS)
    assert batch is not None
    assert batch.count == 5


def test_files_of_a_store_are_fetched_ahead_and_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(remote, "_store", lambda bucket: store)
    files = [f"{n:03}.jsonl" for n in range(100)]  # more than are prepared at once
    for name in files:
        store.put(f"in/{name}", f'{{"file": "{name}", "n": 1}}\n'.encode() * 3)
    driver = opened(spec_of(source_of("s3://data/in")), World())
    assert [row["file"] for row in rows_of(drained(driver, 2))] == whole(*files)
    driver.close()


def test_a_replay_reads_files_beyond_a_late_file_that_it_reads_in_part(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        appear(tmp_path, name)
    limits = ReadRange({}, {"a.jsonl": 2}, names("b.jsonl"), 1)
    driver = opened(spec_of(source_of(tmp_path), range=limits), World())
    assert read([driver], 5) == ["a.jsonl"] * 2 + ["b.jsonl"] * 3
    assert limits.reached
    driver.close()


# ---------------------------------------------------------------- a watched folder


def test_files_that_appear_are_read_in_order_and_a_late_file_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, rows in (("b.jsonl", 3), ("d.jsonl", 20_000), ("e.jsonl", 3)):
        appear(tmp_path, name, rows)
    world = World(parallelism=2)
    driver = opened(spec_of(source_of(tmp_path, watch=0.01)), world)
    with caplog.at_level(logging.WARNING):
        assert read([driver], 4) == [*whole("b.jsonl"), "d.jsonl"]
        assert caplog.text == ""
        appear(tmp_path, "f.jsonl")
        appear(tmp_path, "c.jsonl")
        appear(tmp_path, "a.jsonl")
        reading = 1
        while world.metrics.counts.get("splits_discovered", 0) < 3:
            reading += len(read([driver], 1))
            time.sleep(0.001)  # for the thread that lists
        rest = read([driver], 20_000 - reading + 12, at_once=1_000)
    assert rest == [*["d.jsonl"] * (20_000 - reading), *whole("a.jsonl", "c.jsonl", "e.jsonl", "f.jsonl")]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "split 'a.jsonl' is read after split 'd.jsonl', whose place by file_order= is later" in said
    assert world.metrics.counts["files_out_of_order"] == 2
    driver.close()


def test_a_file_that_a_listing_lacks_is_listed_before_a_later_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is not listed at a single moment: "a" appears first and is missed, "b" is found."""
    source = source_of(tmp_path, watch=60)
    assert isinstance(source, file_sources.WatchedFiles)
    appear(tmp_path, "b.jsonl")
    find = file_sources.find_arrivals

    def find_less(*arguments: Any) -> Any:
        found = find(*arguments)
        for name in ("a.jsonl", "c.jsonl"):
            appear(tmp_path, name)
        return found

    monkeypatch.setattr(file_sources, "find_arrivals", find_less)
    arrivals = file_sources._Arrivals(source._inner, names())
    assert [split.id for split in arrivals.list()] == ["a.jsonl", "b.jsonl"]


async def run_for_a_while(flow: Dataflow, url: str, parallelism: int, until: Callable[[], bool]) -> None:
    options = JobOptions.from_keywords(
        {"parallelism": parallelism, "checkpoints": url, "checkpoint_interval": 0.03, "mode": "exactly_once"}
    )
    graph = compile_plan(flow.plan, parallelism)
    spec = job_spec(graph, options)
    store = open_store(url)
    runner = make_runner(spec, store)
    running = asyncio.create_task(run_graph(graph, spec, store, options, runner))
    deadline = time.monotonic() + 120
    while not until():
        assert time.monotonic() < deadline, runner.status()
        assert not running.done(), await running
        await asyncio.sleep(0.01)
    runner.stop("now")
    await running


@pytest.mark.slow
def test_rows_of_a_watched_folder_are_in_order_over_restarts_and_rescalings(tmp_path: Path) -> None:
    """R2: files appear all the while; runs are broken off and go on as 2 → 3 → 1 → 2 subtasks."""
    chance = random.Random(11)
    folder, out, url = tmp_path / "in", tmp_path / "out", f"memory://{uuid.uuid4().hex}"
    folder.mkdir()
    written: dict[str, int] = {}

    def visible() -> list[str]:
        """Names of the sink's files begin with the checkpoint."""
        files = sorted(visible_files(out), key=lambda path: path.name)
        return [json.loads(line)["file"] for path in files for line in path.read_text().splitlines()]

    for parallelism in (2, 3, 1, 2):
        target = len(written) + 15

        def until(target: int = target) -> bool:
            if len(written) < target:
                name = f"{len(written):04}.jsonl"
                written[name] = chance.randint(1, 200)
                appear(folder, name, written[name])
            share = 1.0 if target == 60 else 0.8
            return len(written) == target and len(visible()) >= sum(written.values()) * share

        flow = Dataflow("watching")
        rows = flow.read_jsonl("src", str(folder), schema=SCHEMA, watch=0.01, file_order="name")
        rows.sink("out", JsonlSink(str(out)))
        asyncio.run(run_for_a_while(flow, url, parallelism, until))
    assert visible() == [name for name, rows in written.items() for _ in range(rows)]


# ---------------------------------------------------------------- a whole job


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_newest_row_of_a_key_wins_in_an_upsert_sink(tmp_path: Path, parallelism: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(12):
        rows = [{"id": id, "amount": n} for id in range(200)]
        (folder / f"{n:02}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with sqlite3.connect(tmp_path / "db") as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, amount INTEGER)")
    flow, latest = Dataflow("changes"), CollectSink()
    changes = flow.read_jsonl("changes", str(folder), schema={"id": int, "amount": int}, file_order="name")
    changes.sink("table", SqliteSink(str(tmp_path / "db"), "t", mode="upsert", key=["id"]))
    changes.key_by("id").aggregate("last", emit="latest", newest=last("amount")).sink("latest", latest)
    flow.run_local(parallelism=parallelism)
    with sqlite3.connect(tmp_path / "db") as database:
        assert set(database.execute("SELECT amount FROM t")) == {(11,)}
        assert database.execute("SELECT count(*) FROM t").fetchone() == (200,)
    assert {row["id"]: row["newest"] for row in latest.rows()} == dict.fromkeys(range(200), 11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file_order": "size"}, "file_order='size': use 'name' or 'modified'"),
        ({"file_order": True}, "file_order=True: use 'name' or 'modified'"),
        ({"file_order": "name", "on_change": "append"}, "file_order= and on_change='append' together"),
    ],
)
def test_other_orders_and_growing_files_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    appear(tmp_path, "a.jsonl")
    with pytest.raises(InvalidJob, match=message):
        Dataflow("f").read_jsonl("src", str(tmp_path), schema=SCHEMA, **options)


def test_explain_tells_the_order_of_files(tmp_path: Path) -> None:
    appear(tmp_path, "a.jsonl")
    assert "one after another by time of change" in repr(source_of(tmp_path, "modified"))
    assert "one after another" not in repr(source_of(tmp_path, None))
