"""Watched folders: one subtask reads each new file once, and an incomplete file is an error."""

import asyncio
import gzip
import json
import os
import random
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operator_harness import World
from source_harness import names, opened, rows_of, snapshot_of, spec_of

from barrier_runtime import Dataflow, JsonlSink
from barrier_runtime.connectors.files.source import source as watched_files
from barrier_runtime.connectors.files.source.listing import find_arrivals
from barrier_runtime.connectors.source import Source
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions, job_spec
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.open import open_store
from tests.integration.harness import visible_files

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema([("file", pa.string()), ("n", pa.int64())])
SOON = timedelta(milliseconds=10)


def appear(folder: Path, name: str, rows: int) -> None:
    """Creates a file as writers should: under another name first, then renamed."""
    lines = "".join(json.dumps({"file": name, "n": n}) + "\n" for n in range(rows)).encode()
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f"_{target.name}")
    staged.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    staged.rename(target)


def source_of(folder: "Path | str", watch: timedelta = SOON, **options: Any) -> Source:
    flow = Dataflow("watching")
    flow.read_jsonl("src", str(folder), schema=SCHEMA, watch=watch, **options).sink("out", JsonlSink("unused"))
    chain = compile_plan(flow.plan, 1).chains[0]
    assert chain.source is not None
    return chain.source.source


def read_until(driver: SourceDriver, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 120
    while not enough(rows):
        assert time.monotonic() < deadline, f"{len(rows)} rows came"
        batch = driver.poll(time.time_ns())
        if batch is not None:
            rows += rows_of([batch])
        else:
            time.sleep(0.001)
    return rows


def some(count: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda rows: len(rows) >= count


def test_files_that_are_there_are_read_and_then_those_that_appear(tmp_path: Path) -> None:
    appear(tmp_path, "a.jsonl", 3)
    driver = opened(spec_of(source_of(tmp_path)), World())
    assert [row["file"] for row in read_until(driver, some(3))] == ["a.jsonl"] * 3
    assert not driver.finished
    assert driver.idle
    appear(tmp_path, "deeper/b.jsonl.gz", 2)
    assert [row["file"] for row in read_until(driver, some(2))] == ["deeper/b.jsonl.gz"] * 2
    driver.close()


def test_hidden_names_and_other_endings_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("_half.jsonl", ".half.jsonl", "_staging/x.jsonl", "notes.txt", "a.jsonl.tmp", "a.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    for paths in (str(tmp_path), str(tmp_path / "*.jsonl")):
        assert [file.id for file in find_arrivals(paths, (".jsonl",), "src")] == ["a.jsonl"]


def test_older_files_come_first_then_names_decide(tmp_path: Path) -> None:
    for name, second in (("b", 2), ("c", 1), ("a", 2)):
        appear(tmp_path, f"{name}.jsonl", 1)
        os.utime(tmp_path / f"{name}.jsonl", (second, second))
    assert [file.id for file in find_arrivals(str(tmp_path), (".jsonl",), "src")] == ["c.jsonl", "a.jsonl", "b.jsonl"]


def test_the_folder_may_be_empty_when_the_schema_is_given(tmp_path: Path) -> None:
    assert spec_of(source_of(tmp_path)).splits == ()
    with pytest.raises(InvalidJob, match="no file to guess types from yet: pass schema="):
        Dataflow("watching").read_jsonl("src", str(tmp_path), watch=SOON)


def test_a_missing_folder_is_an_error_at_the_start_and_waited_for_later(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    with pytest.raises(InvalidJob, match="there is no file or folder"):
        source_of(folder)
    folder.mkdir()
    world = World()
    driver = opened(spec_of(source_of(folder)), world)
    folder.rmdir()
    deadline = time.monotonic() + 120
    while not world.metrics.counts.get("discovery_failures"):
        assert time.monotonic() < deadline
        driver.poll(0)
    appear(folder, "a.jsonl", 1)
    assert len(read_until(driver, some(1))) == 1
    driver.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pace": 5.0}, "pace= goes with a fixed list of files, not with watch="),
        ({"watch": timedelta()}, "at least a millisecond"),
        ({"watch": "1.0"}, "pass a datetime.timedelta, or a number of seconds"),
    ],
)
def test_what_does_not_go_with_watching_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        source_of(tmp_path, **options)


def test_a_file_that_grows_after_it_was_read_is_named(tmp_path: Path) -> None:
    appear(tmp_path, "a.jsonl", 3)
    driver = opened(spec_of(source_of(tmp_path)), World())
    read_until(driver, some(3))
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"file": "a", "n": 3}\n')
    with pytest.raises(InvalidJob, match=r"a\.jsonl had \d+ bytes when it was first seen and has \d+ now"):
        read_until(driver, some(1))
    driver.close()


def test_a_file_that_changed_between_two_runs_is_named(tmp_path: Path) -> None:
    appear(tmp_path, "a.jsonl", 30)
    world = World()
    driver = opened(spec_of(source_of(tmp_path)), world)
    driver.poll(0, 5)
    snapshot = snapshot_of(driver, world)
    driver.close()
    appear(tmp_path, "a.jsonl", 31)
    with pytest.raises(InvalidJob, match=r"a\.jsonl: it had \d+ bytes at the checkpoint and has \d+ now"):
        opened(spec_of(source_of(tmp_path)), world, (snapshot,))


def test_a_file_that_grew_after_an_earlier_run_had_read_it_is_named(tmp_path: Path) -> None:
    appear(tmp_path, "a.jsonl", 3)
    world = World()
    driver = opened(spec_of(source_of(tmp_path)), world)
    read_until(driver, some(3))
    snapshot = snapshot_of(driver, world)
    driver.close()
    appear(tmp_path, "a.jsonl", 4)
    driver = opened(spec_of(source_of(tmp_path)), world, (snapshot,))
    with pytest.raises(InvalidJob, match=r"a\.jsonl had \d+ bytes when it was first seen and has \d+ now"):
        read_until(driver, some(1))
    driver.close()


def test_a_file_that_was_removed_before_it_was_read_to_its_end_is_named(tmp_path: Path) -> None:
    world = World()
    driver = opened(spec_of(source_of(tmp_path)), world)
    appear(tmp_path, "a.jsonl", 30)
    deadline = time.monotonic() + 120
    while driver.poll(0, 5) is None:
        assert time.monotonic() < deadline
    snapshot = snapshot_of(driver, world)
    driver.close()
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InvalidJob, match=r"a\.jsonl is not there any more: bring it back"):
        opened(spec_of(source_of(tmp_path)), world, (snapshot,))


def test_file_read_to_its_end_may_be_removed_and_is_not_read_on_its_return(tmp_path: Path) -> None:
    appear(tmp_path, "a.jsonl", 3)
    world = World()
    driver = opened(spec_of(source_of(tmp_path)), world)
    read_until(driver, some(3))
    snapshot = snapshot_of(driver, world)
    driver.close()
    (tmp_path / "a.jsonl").unlink()
    driver = opened(spec_of(source_of(tmp_path)), world, (snapshot,))
    appear(tmp_path, "a.jsonl", 3)
    appear(tmp_path, "b.jsonl", 1)
    assert [row["file"] for row in read_until(driver, some(1))] == ["b.jsonl"]
    assert driver.records == 4
    driver.close()


def test_parquet_and_csv_files_are_watched_too(tmp_path: Path) -> None:
    flow = Dataflow("watching")
    columns = {"n": "int64"}
    flow.read_parquet("p", str(tmp_path), schema=columns, watch=SOON).sink("out-p", JsonlSink("unused"))
    flow.read_csv("c", str(tmp_path), schema=columns, watch=SOON).sink("out-c", JsonlSink("unused"))
    chains = compile_plan(flow.plan, 1).chains
    pq.write_table(pa.table({"n": [7]}), tmp_path / "_a")
    (tmp_path / "_a").rename(tmp_path / "a.parquet")
    (tmp_path / "_b").write_text("n\n8\n")
    (tmp_path / "_b").rename(tmp_path / "b.csv")
    for chain, value in zip(chains, (7, 8), strict=True):
        assert chain.source is not None
        driver = opened(spec_of(chain.source.source), World())
        assert read_until(driver, some(1)) == [{"n": value}]
        driver.close()


@pytest.mark.slow
def test_a_bucket_is_watched(s3_url: Callable[[str], str], s3_endpoint: str) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=s3_endpoint)
    url = s3_url("in")
    bucket = url.split("/")[2]
    driver = opened(spec_of(source_of(url, watch=timedelta(milliseconds=50))), World())
    for name, rows in (("a.jsonl", 2), ("b/c.jsonl", 1), ("_d.jsonl", 9)):
        body = "".join(json.dumps({"file": name, "n": n}) + "\n" for n in range(rows))
        client.put_object(Bucket=bucket, Key=f"in/{name}", Body=body.encode())
    rows = read_until(driver, some(3))
    assert sorted((row["file"], row["n"]) for row in rows) == [("a.jsonl", 0), ("a.jsonl", 1), ("b/c.jsonl", 0)]
    driver.close()


@pytest.mark.slow
def test_a_bucket_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with pytest.raises(Unavailable, match="cannot be listed"):
        find_arrivals("s3://nowhere/in?endpoint=http://127.0.0.1:9", (".jsonl",), "src")


# ---------------------------------------------------------------- a whole job


def visible(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in visible_files(out) for line in path.read_text().splitlines()]


async def run_for_a_while(folder: Path, out: Path, url: str, parallelism: int, until: Callable[[], bool]) -> None:
    """Runs the job until `until` holds, and then stops the job without a last checkpoint."""
    flow = Dataflow("watching")
    flow.read_jsonl("src", str(folder), schema=SCHEMA, watch=SOON).sink("out", JsonlSink(str(out)))
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
def test_every_row_of_every_file_is_visible_once_over_restarts_and_rescalings(tmp_path: Path) -> None:
    """R2: files appear all the while; runs are broken off and go on as 2 → 3 → 1 → 2 subtasks."""
    chance = random.Random(7)
    folder, out, url = tmp_path / "in", tmp_path / "out", f"memory://{uuid.uuid4().hex}"
    folder.mkdir()
    written: dict[str, int] = {}

    def more() -> None:
        name = f"{len(written):04}.jsonl"
        written[name] = chance.randint(0, 200)
        appear(folder, name, written[name])

    for parallelism in (2, 3, 1, 2):
        target = len(written) + 20
        more()

        def until(target: int = target) -> bool:
            if len(written) < target:
                more()
            return len(written) == target and len(visible(out)) > sum(written.values()) * 0.9

        asyncio.run(run_for_a_while(folder, out, url, parallelism, until))
    asyncio.run(run_for_a_while(folder, out, url, 2, lambda: len(visible(out)) >= sum(written.values())))
    found = sorted((row["file"], row["n"]) for row in visible(out))
    assert found == sorted((name, n) for name, rows in written.items() for n in range(rows))


def test_files_that_are_known_cost_a_look_at_a_bounded_number_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_files, "_SIZES_PER_POLL", 10)
    for n in range(200):
        appear(tmp_path, f"{n}.jsonl", 1)
    looked_at: list[str] = []
    stat = os.stat

    def counted(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        looked_at.append(str(path))
        return stat(path, *arguments, **options)

    source = source_of(tmp_path)
    assert isinstance(source, watched_files.WatchedFiles)
    seen = names(*(f"{n}.jsonl" for n in range(200)))
    arrivals = watched_files._Arrivals(source._inner, seen)
    monkeypatch.setattr(os, "stat", counted)
    for _ in range(21):
        assert arrivals.list() == []
    files = [path for path in looked_at if path.startswith(f"{tmp_path}/")]
    assert len(set(files)) == 200  # each file once …
    assert len(files) <= 2 * 200  # … but not at each listing
    appear(tmp_path, "new.jsonl", 1)
    assert [split.id for split in arrivals.list()] == ["new.jsonl"]
