"""Checkpoints as tables: another program reads each kind of state of a run from the files alone."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import (
    TTL,
    CollectSink,
    Dataflow,
    ListState,
    MapState,
    ProcessContext,
    ReducingState,
    Tumbling,
    ValueState,
    count,
    max_,
    sum_,
)
from barrier_runtime.bootstrap import write_savepoint
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.scratch import LOCK
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state_tables import open_checkpoint, stored_state
from tests.barrier_runtime.running_job import RunningJob, Target, numbers_flow, numbers_of

USERS = ("ann", "bob", "cid", "dot", "eve")
ROWS = [{"user": USERS[n % len(USERS)], "n": n} for n in range(200)]


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass
class Line:
    price: float
    note: str | None = None


@dataclasses.dataclass
class Basket:
    lines: list[Line]
    level: Level
    seen: dict[str, int]
    at: datetime.datetime
    total: decimal.Decimal


class Everything:
    last = ValueState(int)
    basket = ValueState(Basket)
    kept = ListState(int)
    by_name = MapState(str, float)
    most = ReducingState(int, max)
    fresh = ValueState(str, ttl=TTL(datetime.timedelta(hours=1), clock="processing"))
    odd = ValueState(object, codec="pickle")

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        n = row["n"]
        self.last.value = n
        self.kept.append(n)
        self.by_name[f"{n % 3}"] = n / 2
        self.most.add(n)
        self.fresh.value = f"of {n}"
        self.odd.value = {n}
        self.basket.value = Basket(
            [Line(n / 4), Line(1.0, "two")],
            Level.HIGH if n % 2 else Level.LOW,
            {user: n},
            datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
            decimal.Decimal("1.50"),
        )
        ctx.timers.register(5_000_000 + n)
        return [row]

    def on_timer(self, user: str, timestamp_ms: int, ctx: ProcessContext) -> None:
        pass


def flow() -> Dataflow:
    flow = Dataflow("kept")
    rows = flow.from_iterator(
        "rows", lambda index, of: iter(ROWS), schema={"user": str, "n": int}, splits=1, event_time="n"
    )
    keyed = rows.key_by("user").process("all", Everything, schema={"user": str, "n": int}, event_time="n")
    keyed.key_by("user").aggregate("sums", rows=count(), total=sum_("n"), most=max_("n")).sink("out", CollectSink())
    return flow


@pytest.fixture(scope="module", params=["rocksdb", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("kept") / "checkpoints"

    async def run() -> None:
        assert (await RunningJob(flow(), folder, state_backend=request.param).task).outcome == "finished"

    asyncio.run(run())
    return str(folder)


class Noted:
    note = ValueState(str)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> None:
        self.note.value = row["note"]


def notes_flow() -> Dataflow:
    flow = Dataflow("noted")
    rows = flow.from_iterator("rows", lambda index, of: iter(()), schema={"key": int, "note": str}, splits=1)
    rows.key_by("key").process("notes", Noted, schema={"key": int}).sink("out", CollectSink())
    return flow


def of_user(user: str) -> list[int]:
    return [row["n"] for row in ROWS if row["user"] == user]  # type: ignore[misc]


def table(storage: str, state: str, operator: str = "all", **where: Any) -> pa.Table:
    with open_checkpoint(storage, "kept") as stored:
        return stored.table(operator, state, where or None).read_all()


@pytest.mark.slow
def test_every_state_is_listed_with_what_it_is(storage: str) -> None:
    with open_checkpoint(storage, "kept") as stored:
        found = {(each.operator, each.state): (each.kind, each.key, each.type) for each in stored.tables()}
    assert found["all", "last"] == ("value", "user: string", "int")
    assert found["all", "basket"] == ("value", "user: string", "Basket")
    assert found["all", "kept"][::2] == ("list", "int")
    assert found["all", "by_name"][::2] == ("map", "float")
    assert "timers" in {kind for kind, _, _ in found.values()}
    assert "columns" in {kind for (operator, _), (kind, _, _) in found.items() if operator == "sums"}


def test_values(storage: str) -> None:
    rows = table(storage, "last")
    assert rows.schema.equals(pa.schema({"user": pa.string(), "value": pa.int64()}))
    assert dict(zip(*rows.to_pydict().values(), strict=True)) == {user: of_user(user)[-1] for user in USERS}


def test_a_class_is_a_struct(storage: str) -> None:
    rows = table(storage, "basket")
    assert rows.schema.field("value").type == pa.struct(
        {
            "lines": pa.list_(pa.struct({"price": pa.float64(), "note": pa.string()})),
            "level": pa.string(),
            "seen": pa.map_(pa.string(), pa.int64()),
            "at": pa.string(),
            "total": pa.string(),
        }
    )
    (ann,) = [row for row in rows.to_pylist() if row["user"] == "ann"]
    last = of_user("ann")[-1]
    assert ann["value"]["lines"] == [{"price": last / 4, "note": None}, {"price": 1.0, "note": "two"}]
    assert (ann["value"]["level"], ann["value"]["seen"]) == ("high" if last % 2 else "low", [("ann", last)])
    assert (ann["value"]["at"], ann["value"]["total"]) == ("2026-01-01T00:00:00+00:00", "1.50")


def test_lists_and_maps_have_a_row_per_entry(storage: str) -> None:
    lists = table(storage, "kept").to_pylist()
    assert len(lists) == len(ROWS)
    for user in USERS:
        mine = sorted((row["position"], row["value"]) for row in lists if row["user"] == user)
        assert [value for _, value in mine] == of_user(user)
    maps = table(storage, "by_name").to_pylist()
    for user in USERS:
        mine = {row["entry"]: row["value"] for row in maps if row["user"] == user}
        assert mine == {f"{n % 3}": n / 2 for n in of_user(user)}


def test_reduced_values_times_of_writing_and_pickles(storage: str) -> None:
    assert {row["value"] for row in table(storage, "most").to_pylist()} == {of_user(user)[-1] for user in USERS}
    fresh = table(storage, "fresh")
    assert fresh.schema.field("written_at").type == pa.timestamp("ms", tz="UTC")
    assert all(row["written_at"].year >= 2026 for row in fresh.to_pylist())
    assert {row["value"] for row in fresh.to_pylist()} == {f"of {of_user(user)[-1]}" for user in USERS}
    odd = table(storage, "odd")
    assert odd.schema.field("value").type == pa.binary(), "nobody unpickles what lies in a store"


def test_timers_are_listed_with_their_time(storage: str) -> None:
    with open_checkpoint(storage, "kept") as stored:
        (name,) = [each.state for each in stored.tables() if each.kind == "timers" and "wall" not in each.state]
        rows = stored.table("all", name).read_all()
    assert rows.schema.field("at").type == pa.timestamp("ms", tz="UTC")
    assert rows.num_rows in (0, len(ROWS)), "they fired when the input ended, or wait"


def test_aggregates_are_their_columns(storage: str) -> None:
    with open_checkpoint(storage, "kept") as stored:
        (name,) = [each.state for each in stored.tables() if each.operator == "sums"]
        rows = stored.table("sums", name).read_all().to_pylist()
    assert {row["user"] for row in rows} == set(USERS)
    for row in rows:
        mine = of_user(row["user"])
        assert {len(mine), sum(mine), max(mine)} <= set(row.values())


def test_a_filter_on_the_key_reads_one_subtask(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = stored_state.StoredPart

    def counted(*arguments: Any) -> Any:
        opened.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(stored_state, "StoredPart", counted)
    rows = table(storage, "kept", user="cid")
    assert [row["value"] for row in rows.sort_by("position").to_pylist()] == of_user("cid")
    assert len(opened) == 1
    assert table(storage, "kept", user="nobody").num_rows == 0
    assert table(storage, "kept", user="nobody").schema.names == ["user", "position", "value"]


@pytest.mark.slow
def test_a_filter_on_the_whole_key_reads_a_small_part_of_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.3: reads only the blocks of a key group from RocksDB's files."""
    keys, rng = list(range(20_000)), random.Random(1)
    notes = [rng.randbytes(100).hex() for _ in keys]
    done = write_savepoint(
        str(tmp_path / "savepoint"),
        flow=notes_flow(),
        states={("notes", "note"): pa.table({"key": keys, "value": notes})},
    )
    read = []

    def counted(self: LocalStore, key: str, offset: int = 0, size: int | None = None) -> bytes:
        data = original(self, key, offset, size)
        read.append(len(data))
        return data

    original = LocalStore.get
    monkeypatch.setattr(LocalStore, "get", counted)
    with open_checkpoint(str(tmp_path / "savepoint")) as stored:
        rows = stored.table("notes", "note", {"key": 4_711}).read_all().to_pylist()
    assert rows == [{"key": 4_711, "value": notes[4_711]}]
    assert 0 < sum(read) < done.bytes * 0.05


def test_positions_of_sources(storage: str) -> None:
    with open_checkpoint(storage, "kept") as stored:
        rows = stored.positions().to_pylist()
    assert {row["source"] for row in rows} <= {"rows"}


def test_what_is_not_there_is_named(storage: str, tmp_path: Path) -> None:
    with open_checkpoint(storage, "kept") as stored:
        with pytest.raises(InvalidJob, match=r"no state 'first' of operator 'all'; it has: all\."):
            stored.table("all", "first")
        with pytest.raises(InvalidJob, match=r"its key has no column 'customer', it has user"):
            stored.table("all", "last", {"customer": "ann"})
    with pytest.raises(InvalidJob, match="no completed checkpoint 4711"):
        open_checkpoint(storage, "kept", 4711)
    with pytest.raises(InvalidJob, match="is not a savepoint: for a checkpoint give the job's name"):
        open_checkpoint(storage)


@pytest.mark.slow
def test_it_needs_no_part_of_the_program(storage: str) -> None:
    """Reads in another process without the program's classes."""
    program = f"""
from barrier_runtime.state_tables import open_checkpoint, stored_state
with open_checkpoint({storage!r}, "kept") as stored:
    print(sorted(row["value"]["level"] for row in stored.table("all", "basket").read_all().to_pylist()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in {str(["high"] * k + ["low"] * (5 - k)) for k in range(6)}


@pytest.mark.slow
async def test_a_savepoint_is_read_by_its_folder_alone(tmp_path: Path) -> None:
    target = Target()
    job = RunningJob(numbers_flow(target), tmp_path / "job")
    await job.rows_in(target, 500)
    request = SavepointRequest(uuid.uuid4().hex, str(tmp_path / "savepoint"), stops=True)
    job.runner.stop("checkpoint", request)
    await job.task
    with open_checkpoint(str(tmp_path / "savepoint")) as stored:
        own = {row["key"]: row["value"] for row in stored.table("own", "seen").read_all().to_pylist()}
        (columns,) = [each.state for each in stored.tables() if each.operator == "count"]
        assert stored.table("count", columns).read_all().num_rows == len(own)
        assert sum(row["rows"] for row in stored.positions().to_pylist()) == sum(own.values())
    assert own == {key: of_key[-1] for key, of_key in numbers_of(target.rows()).items()}


@pytest.mark.slow
async def test_states_of_the_runtimes_own_are_read_too(tmp_path: Path) -> None:
    """Seen ids, raw rows of windows, and all other state of such a job."""
    flow, target = Dataflow("own"), Target()

    def endless(index: int, of: int) -> Iterator[dict[str, Any]]:
        for n in range(1_000_000):
            yield {"user": USERS[n % len(USERS)], "n": n}

    rows = flow.from_iterator("in", endless, schema={"user": str, "n": int}, splits=1, event_time="n")
    rows.deduplicate("once", "user", within=None).sink("users", target)
    hour = Tumbling(datetime.timedelta(hours=100))
    rows.key_by("user").window("largest", hour, event_time="n").top(2, by="n").sink("out", CollectSink())
    job = RunningJob(flow, tmp_path / "job")
    await job.rows_in(target, len(USERS))
    await job.stop()
    with open_checkpoint(str(tmp_path / "job"), "own") as stored:
        seen = stored.table("once", "seen").read_all()
        assert seen.schema.equals(pa.schema({"user": pa.string(), "value": pa.int64()}))
        assert set(seen["user"].to_pylist()) == set(USERS)
        held = stored.table("largest", "windows").read_all().to_pylist()
        assert {each["user"] for each in held if each["tail"]} == set(USERS), "few rows wait in the window's entry"
        for each in stored.tables():
            stored.table(each.operator, each.state).read_all()


def test_reader_works_in_a_locked_folder_that_is_removed_at_close(tmp_path: Path) -> None:
    flow = Dataflow("read")
    rows = flow.from_iterator("in", lambda part, of: [{"k": 1}], schema={"k": int}, splits=1)
    rows.key_by("k").aggregate("sums", n=count()).sink("out", CollectSink())
    flow.run_local(checkpoints=tmp_path, parallelism=1)
    with open_checkpoint(str(tmp_path), "read") as stored:
        folder = stored._folder.parent
        assert (folder / LOCK).exists()
    assert not folder.exists()
