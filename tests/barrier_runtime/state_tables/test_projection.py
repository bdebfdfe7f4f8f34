"""4.3: some columns of a state, and the number of entries, without reading other values."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, ListState, MapState, ProcessContext, ValueState, count, sum_
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state_tables import StoredState, open_checkpoint, stored_state
from tests.barrier_runtime.running_job import RunningJob, Target, numbers_flow

ROWS = [{"user": f"user-{n % 300}", "n": n} for n in range(1_000)]
STATES = [("own", "last"), ("own", "kept"), ("own", "pages"), ("own", "@timers"), ("sums", "running")]


class Own:
    last = ValueState(int)
    kept = ListState(int)
    pages = MapState(str, float)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> None:
        self.last.value = row["n"]
        self.kept.append(row["n"])
        self.pages[f"page {row['n'] // 300 % 2}"] = 1.0
        ctx.wall_timers.register(10**13 + row["n"])

    def on_wall_timer(self, user: str, at_ms: int, ctx: ProcessContext) -> None:
        pass


def flow() -> Dataflow:
    flow = Dataflow("job")
    rows = flow.from_iterator("rows", lambda index, of: iter(ROWS), schema={"user": str, "n": int}, splits=1)
    rows.key_by("user").process("own", Own, schema={"user": str}).sink("out", CollectSink())
    rows.key_by("user").aggregate("sums", rows=count(), total=sum_("n")).sink("totals", CollectSink())
    return flow


@pytest.fixture(scope="module", params=["rocksdb", "memory"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredState]:
    folder = tmp_path_factory.mktemp("job")

    async def run() -> None:
        job = RunningJob(flow(), folder, state_backend=request.param, parallelism=2)
        assert (await job.task).outcome == "finished"

    asyncio.run(run())
    with open_checkpoint(str(folder), "job") as opened:
        yield opened


def values_of(stored: StoredState, operator: str, state: str) -> pa.Table:
    return stored.table(operator, state).read_all()


@pytest.mark.slow
def test_chosen_columns_are_those_of_the_whole_table(stored: StoredState) -> None:
    for operator, state in {(each.operator, each.state) for each in stored.tables()}:
        whole = values_of(stored, operator, state)
        for names in (whole.schema.names[:1], whole.schema.names[::-1], whole.schema.names[1:]):
            chosen = stored.table(operator, state, columns=names).read_all()
            assert chosen.schema.names == names
            assert chosen.num_rows == whole.num_rows
            assert sorted(map(str, chosen.to_pylist())) == sorted(map(str, whole.select(names).to_pylist()))


@pytest.mark.slow
def test_entries_are_counted_as_the_table_has_them(stored: StoredState) -> None:
    for each in stored.tables():
        assert stored.count(each.operator, each.state) == values_of(stored, each.operator, each.state).num_rows, each
    assert stored.count("own", "last") == 300
    assert stored.count("own", "kept") == len(ROWS)
    assert stored.count("own", "last", {"user": "user-7"}) == 1
    assert stored.count("own", "kept", {"user": "user-7"}) == 4
    assert stored.count("sums", "running", {"user": "nobody"}) == 0


@pytest.mark.slow
def test_values_that_nobody_asked_for_are_not_decoded(stored: StoredState, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("a value was decoded")

    monkeypatch.setattr(stored_state, "decoded_all", never)
    with pytest.raises(AssertionError, match="was decoded"):
        values_of(stored, "own", "last")
    assert stored.table("own", "last", columns=["user"]).read_all().num_rows == 300
    assert stored.table("own", "pages", columns=["entry"]).read_all().num_rows == 600
    assert stored.count("own", "kept") == len(ROWS)


def test_a_column_that_is_not_there_is_refused_with_those_that_are(stored: StoredState) -> None:
    with pytest.raises(InvalidJob, match=r"own\.last: it has no column 'price', it has user, value"):
        stored.table("own", "last", columns=["user", "price"])


@pytest.mark.slow
async def test_columns_that_a_checkpoint_has_whole_are_counted_by_the_heads_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns stored as changes are counted by their keys, with the same result."""
    target = Target()
    job = RunningJob(numbers_flow(target, "job"), tmp_path / "job", parallelism=2)
    await job.rows_in(target, 2_000)
    await job.savepoint(str(tmp_path / "changes"))
    await job.stop(str(tmp_path / "last"))
    for url in ("changes", "last"):
        with open_checkpoint(str(tmp_path / url)) as stored:
            assert stored.count("count", "running") == values_of(stored, "count", "running").num_rows == 40

    finished = tmp_path / "finished"
    flow().run_local(checkpoints=finished)

    def never(*arguments: Any) -> Any:
        raise AssertionError("a part was opened")

    with open_checkpoint(str(finished), "job") as stored:
        monkeypatch.setattr(stored_state, "StoredPart", never)
        assert stored.count("sums", "running") == 300


def test_chosen_columns_of_a_part_or_key_without_rows_are_empty(stored: StoredState) -> None:
    parts, columns = range(stored.parts("sums", "running")), values_of(stored, "sums", "running").schema.names
    key = {"user": "user-7"}
    of_parts = [stored.table("sums", "running", key, columns=["user"], part=part).read_all() for part in parts]
    assert sorted(each.num_rows for each in of_parts) == [0, 1]
    values = [stored.table("sums", "running", key, columns=columns, part=part).read_all() for part in parts]
    assert sorted(each.num_rows for each in values) == [0, 1]
    assert values[0].schema == values[1].schema
    assert stored.table("sums", "running", {"user": "nobody"}, columns=columns).read_all().num_rows == 0


def test_large_values_make_batches_of_few_rows(stored: StoredState, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = values_of(stored, "own", "kept")
    monkeypatch.setattr(stored_state, "_BATCH_BYTES", 100)
    batches = list(stored.table("own", "kept"))
    assert len(batches) > 2 * stored.parts("own", "kept")
    assert pa.Table.from_batches(batches).equals(whole)
