"""Whole small jobs in this process, at the edges: no rows, fewer splits than subtasks, input that ended before."""

import asyncio
import datetime
import gc
import itertools
import json
import threading
import weakref

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, JsonlSink, Tumbling, TwoPhaseCommitSink, count
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions, job_spec
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("both_ways")

SECOND = datetime.timedelta(seconds=1)
SECOND_MS = 1_000


def numbers(splits, rows):
    def make(index, of):
        return ({"n": n} for n in range(rows) if n % of == index)

    flow = Dataflow("edges")
    sink = CollectSink()
    source = flow.from_iterator("numbers", make, schema={"n": pa.int64()}, splits=splits)
    source.key_by("n").aggregate("count", times=count()).sink("out", sink)
    return flow, sink


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1, 1_000])
@pytest.mark.parametrize(("parallelism", "splits"), [(1, 1), (3, 1), (3, 7)])
def test_a_job_ends_with_all_its_rows_visible_whatever_its_splits_and_subtasks(parallelism, splits, rows):
    """C18, T7"""
    flow, sink = numbers(splits, rows)
    result = flow.run_local(parallelism=parallelism, checkpoint_interval=0.05)
    assert result.status.outcome == "finished"
    assert sorted(row["n"] for row in sink.rows()) == list(range(rows))
    assert result.records == rows


class Circle:
    def __init__(self):
        self.itself = self


@pytest.mark.slow
def test_a_run_leaves_what_the_program_has_frozen_frozen_also_after_a_failure():
    failed = []

    def fails_once(row):
        if not failed:
            failed.append(row)
            raise Unavailable("once")
        return row

    flow = Dataflow("heap")
    sink = CollectSink()
    source = flow.from_iterator("numbers", lambda index, of: iter([{"n": 1}]), schema={"n": pa.int64()}, splits=1)
    source.map(fails_once).sink("out", sink)
    circle = Circle()
    left = weakref.ref(circle)
    gc.freeze()
    del circle  # only the collector frees the cycle, and frozen objects are not collected
    flow.run_local(parallelism=1, checkpoint_interval=0.05)
    assert failed
    assert sink.rows() == [{"n": 1}]
    assert left() is not None
    left().itself = None


def windows(folder):
    flow = Dataflow("days")
    schema = pa.schema([("k", pa.string()), ("t", pa.int64())])
    rows = flow.read_jsonl("files", str(folder / "in"), schema=schema, event_time="t")
    rows.key_by("k").window("w", Tumbling(SECOND), event_time="t").aggregate(n=count()).sink(
        "out", JsonlSink(str(folder / "out"))
    )
    return flow


def write(folder, name, first_ms):
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"k": "a", "t": first_ms + at * 1_000}) for at in range(10)]
    (folder / "in" / name).write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_rows_added_after_every_window_was_closed_are_an_error_and_not_silently_late(tmp_path):
    """A finished job has advanced event time to the end; later rows would be dropped singly."""
    write(tmp_path, "1.jsonl", 1_000_000)
    options = {"parallelism": 1, "checkpoints": str(tmp_path / "checkpoints")}
    windows(tmp_path).run_local(**options)
    windows(tmp_path).run_local(**options)  # no new rows: no error
    write(tmp_path, "2.jsonl", 2_000_000)
    with pytest.raises(JobFailed, match=r"had read all of its input .*another name"):
        windows(tmp_path).run_local(**options)


def with_dictionaries(make, declared=None):
    """Builds a keyed flow of ten rows whose column `w` `make` derives from a dictionary-encoded column."""
    flow = Dataflow("words")
    sink = CollectSink()

    def encoded(rows):
        words = pa.array([f"w{n % 3}" for n in rows.column("n").to_pylist()]).dictionary_encode()
        return pa.record_batch({"t": rows.column("n"), "w": make(words)})

    numbers = flow.from_iterator(
        "numbers", lambda index, of: ({"n": n} for n in range(index, 10, of)), schema={"n": pa.int64()}, splits=2
    )
    return flow, sink, numbers.map_batches(encoded, schema=declared)


def a_list(words):
    return pa.ListArray.from_arrays(range(len(words) + 1), words)


def a_struct(words):
    return pa.StructArray.from_arrays([words], ["w"])


ENCODED = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize("declared", [None, {"t": pa.int64(), "w": ENCODED}], ids=["found", "declared"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_are_counted_by_a_dictionary_column(parallelism, declared):
    """A subtask gets rows of the own slot and of others: both must have the same type."""
    flow, sink, rows = with_dictionaries(lambda words: words, declared)
    rows.key_by("w").aggregate("count", n=count()).sink("out", sink)
    flow.run_local(parallelism=parallelism)
    last = {}
    for row in sink.rows():
        last[row["w"]] = max(row["n"], last.get(row["w"], 0))
    assert last == {"w0": 4, "w1": 3, "w2": 3}


@pytest.mark.parametrize("make", [a_list, a_struct])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_with_dictionaries_inside_other_columns_arrive(parallelism, make):
    flow, sink, rows = with_dictionaries(make)
    rows.rebalance().sink("out", sink)
    flow.run_local(parallelism=parallelism)
    assert sorted(str(row["w"]) for row in sink.rows()) == sorted(
        str(make(pa.array([f"w{n % 3}"]))[0].as_py()) for n in range(10)
    )


@pytest.mark.parametrize("declared", [None, {"t": pa.int64(), "w": ENCODED}], ids=["found", "declared"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_keyed_by_a_dictionary_column_fire(parallelism, declared):
    flow, sink, rows = with_dictionaries(lambda words: words, declared)
    keyed = rows.with_watermarks("t", datetime.timedelta(0)).key_by("w")
    keyed.window("w", Tumbling(SECOND), event_time="t").aggregate(n=count()).sink("out", sink)
    flow.run_local(parallelism=parallelism)
    assert sorted((row["w"], row["n"]) for row in sink.rows()) == [("w0", 4), ("w1", 3), ("w2", 3)]


def test_a_stream_says_what_its_rows_are_on_an_edge():
    flow, sink, rows = with_dictionaries(lambda words: words, {"t": pa.int64(), "w": ENCODED})
    assert rows.schema.field("w").type == pa.string()
    rows.rebalance().sink("out", sink)
    assert "dictionary" not in str(flow.explain())


@pytest.mark.slow
def test_checkpoints_go_on_while_the_commits_of_seventeen_sinks_hang():
    """C5: no executor waits for another, however many there are."""
    never = threading.Event()

    class Hanging(TwoPhaseCommitSink):
        def __deepcopy__(self, memo):
            return self

        def begin_transaction(self):
            return []

        def write(self, transaction, rows):
            transaction.append(rows)

        def pre_commit(self, transaction, checkpoint):
            return b"some" if transaction else None

        def commit(self, committable):
            never.wait()

        def abort(self, committable):
            """Nothing was staged."""

    async def main(store):
        flow = Dataflow("hanging")
        rows = flow.rate("numbers", 500)
        for number in range(17):
            rows.sink(f"out{number}", Hanging())
        options = JobOptions.from_keywords({"parallelism": 1, "checkpoint_interval": 0.02})
        graph = compile_plan(flow.plan, 1, 128)
        spec = job_spec(graph, options)
        runner = make_runner(spec, store)
        running = asyncio.create_task(run_graph(graph, spec, store, options, runner))
        while runner.status().checkpoints.completed < 8:
            assert not running.done(), runner.status()
            await asyncio.sleep(0.01)
        never.set()
        runner.stop("now")
        await running

    asyncio.run(asyncio.wait_for(main(MemoryStore()), 120))


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_whose_splits_wait_for_slower_ones_ends_with_all_its_rows(parallelism):
    """The fast source is ahead at once; the fast splits wait for the slow source, which ends first."""

    def events(count, step):
        return lambda index, of: ({"k": n % 3, "at": n * step} for n in range(index, count, of))

    flow, sink = Dataflow("drift"), CollectSink()
    schema = {"k": int, "at": int}
    fast, slow = (
        flow.from_iterator(name, events(count, step), schema=schema, splits=2, event_time="at").key_by("k")
        for name, count, step in (("fast", 60, 1_000), ("slow", 1_000, 10))
    )
    fast.join("both", slow, between=(-SECOND, SECOND), event_time="at").sink("out", sink)
    result = flow.run_local(parallelism=parallelism, checkpoint_interval=0.05, max_drift=datetime.timedelta(seconds=5))
    assert result.status.outcome == "finished"
    near = [(a, b) for a in range(60) for b in range(1_000) if abs(b * 10 - a * 1_000) <= 1_000 and a % 3 == b % 3]
    assert len(sink.rows()) == len(near)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_an_input_that_has_been_silent_for_its_idle_timeout_holds_no_split_back(parallelism):
    """The silent input ends after the last row of the other input, which is one minute of event time later."""
    flow, sink, seen = Dataflow("silent"), CollectSink(), threading.Event()

    def silent(index, of):
        yield {"at": 0}
        assert seen.wait(60)

    def see(row):
        if row["at"] == 59_000:
            seen.set()
        return row

    options = {"schema": {"at": int}, "splits": 1, "event_time": "at"}
    fast = flow.from_iterator("fast", lambda index, of: ({"at": n * 1_000} for n in range(60)), **options).map(see)
    idle = datetime.timedelta(seconds=0.1)
    fast.union(flow.from_iterator("silent", silent, idle_timeout=idle, **options)).sink("out", sink)
    flow.run_local(parallelism=parallelism, checkpoint_interval=0.05, max_drift=5 * SECOND, restart="none")
    assert sorted(row["at"] for row in sink.rows()) == [0, *range(0, 60_000, 1_000)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:union .* between two files")
@pytest.mark.parametrize("idle", [datetime.timedelta(seconds=0.05), None])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_files_found_while_a_job_runs_hold_event_time_back_for_the_timeout_alone(tmp_path, parallelism, idle):
    flow, windows, read, reached, over = Dataflow("silent"), CollectSink(), CollectSink(), [0], threading.Event()
    folder = tmp_path / "silent"
    folder.mkdir()

    def live(index, of):
        for second in itertools.count(1):
            if over.wait(0.002):
                return
            reached[0] = second * SECOND_MS
            yield {"at": reached[0]}

    options = {"schema": {"at": int}, "event_time": "at"}
    silent = flow.read_jsonl("silent", str(folder), watch=0.01, idle_timeout=idle, **options)
    silent.sink("read", read)
    rows = flow.from_iterator("live", live, splits=1, **options).union(silent)
    rows.window_all("windows", Tumbling(10 * SECOND)).aggregate(n=count()).sink("out", windows)
    with flow.start_local(parallelism=parallelism, checkpoint_interval=0.05, restart="none") as job:
        for number in range(3):
            (tmp_path / "next").write_text(f'{{"at": {number}}}\n')
            (tmp_path / "next").rename(folder / f"{number}.jsonl")
            until(lambda: len(read.rows()) > number, "the file is read")  # noqa: B023
            last = reached[0] + 100 * SECOND_MS
            until(lambda: windows.rows() and max(map(ends_at, windows.rows())) > last, "event time goes on")  # noqa: B023
        until(lambda: "no idle_timeout" not in str(job.why()), "`why` blames no idle source")
        over.set()
        job.stop("now")


def ends_at(row):
    return row["window_end"] if isinstance(row["window_end"], int) else row["window_end"].timestamp() * 1_000


def test_an_error_with_half_a_surrogate_pair_is_told_as_any_other():
    """`str` of a file name that is not UTF-8 contains such a surrogate; messages and histories cannot."""

    def fails(row):
        raise ValueError("cannot open caf\udce9.csv")

    flow = Dataflow("surrogates")
    rows = flow.from_iterator("in", lambda index, of: iter([{"n": 1}]), schema={"n": pa.int64()}, splits=1)
    rows.map(fails, schema={"n": pa.int64()}).sink("out", CollectSink())
    with pytest.raises(JobFailed, match=r"ValueError: cannot open caf\\udce9.csv"):
        flow.run_local(restart="none")
