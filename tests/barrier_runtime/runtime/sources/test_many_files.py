"""Very many splits: work, memory and stored bytes per split; no split is read twice or skipped."""

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from operator_harness import World
from source_harness import opened, rows_of, snapshot_of, spec_of

from barrier_runtime import Dataflow, JsonlSink
from barrier_runtime.connectors.name_set import RECORD_BYTES, NameSet, merged
from barrier_runtime.connectors.source import Discovery, Polled, Split
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.operators.base import Capture
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.sources.progress import RUN_VALUE, SPLITS_VALUE, OpenSplit, SourceProgress
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot

SCHEMA = pa.schema([("split", pa.string())])
SMALL = 4_096  # maximum bytes of a value within the manifest


class Many:
    exactly_once = True
    schema = SCHEMA

    def __init__(self, count: int) -> None:
        self.ids = [f"part-{n:06d}-5b1f0a52-c000.snappy.parquet" for n in range(count)]
        self.polls = 0

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(id, b"{}", 1_000) for id in self.ids]

    def reader(self, split: Split) -> "OneRow":
        return OneRow(self, split.id)


class Appearing(Many):
    """The same splits, discovered while the job runs."""

    finds_again = True

    def owner(self, split_id: str, parallelism: int) -> int:
        return int(split_id[5:11]) % parallelism

    def discovery(self, known: NameSet) -> Discovery | None:
        return Everything(self, known)


class Everything:
    def __init__(self, source: Many, known: NameSet) -> None:
        self._source = source
        self._known = known

    def found(self) -> Sequence[Split]:
        new = [split for split in self._source.splits(1) if split.id not in self._known] if self._source.ids else []
        for split in new:
            self._known.add(split.id, split.size)
        self._source.ids = []
        return new

    def close(self) -> None: ...


class OneRow:
    finished = False

    def __init__(self, source: Many, id: str) -> None:
        self._source = source
        self._id = id

    def poll(self, max_rows: int, now_ns: int) -> Polled:
        self._source.polls += 1
        self.finished = True
        return Polled(pa.record_batch([[self._id]], schema=SCHEMA), now_ns)

    def next_due_ns(self) -> None:
        return None

    def position(self) -> bytes:
        return b'{"row":0}'

    def seek(self, position: bytes) -> None: ...

    def close(self) -> None: ...


def read(driver: SourceDriver, count: int) -> list[str]:
    batches = [driver.poll(0) for _ in range(count)]
    return [row["split"] for row in rows_of([batch for batch in batches if batch is not None])]


def stored(capture: Capture) -> dict[str, FileRef]:
    """Returns the values that became objects when the checkpoint was decided, and notifies the driver."""
    large = {name: FileRef(name, len(data), "", name) for name, data in capture.values.items() if len(data) > SMALL}
    objects = {**large, **capture.stored}
    assert capture.on_stored is not None
    capture.on_stored(objects)
    return objects


# ---------------------------------------------------------------- work


@pytest.mark.slow
@pytest.mark.parametrize("source_class", [Many, Appearing])
def test_the_work_for_a_finished_split_does_not_depend_on_how_many_there_are(
    source_class: type[Many], monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = 0
    order = OpenSplit.order

    def counted(split: OpenSplit) -> tuple[int, int]:
        nonlocal ordered
        ordered += 1
        return order.fget(split)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(OpenSplit, "order", property(counted))
    for count in (500, 4_000):
        source, ordered = source_class(count), 0
        driver = opened(SourceSpec("src", source, tuple(source.splits(1))), World())
        assert len(read(driver, count)) == count
        assert driver.records == count
        assert source.polls == count
        assert ordered <= 3 * count
        assert not driver._queue
        assert not driver._kept
        driver.close()


class Empty(Many):
    def reader(self, split: Split) -> "NoRow":
        return NoRow(self, split.id)


class NoRow(OneRow):
    def poll(self, max_rows: int, now_ns: int) -> None:  # type: ignore[override]
        super().poll(max_rows, now_ns)


@pytest.mark.slow
def test_a_poll_ends_a_bounded_number_of_splits_without_rows() -> None:
    source = Empty(1_000)
    driver = opened(SourceSpec("src", source, tuple(source.splits(1))), World())
    while not driver.finished:
        before = source.polls
        assert driver.poll(0) is None
        assert source.polls - before <= 32
        assert driver.next_due_ns() is None, "polled again at once"
    assert source.polls == 1_000


class CountedAppearing(Appearing):
    made = 0

    def reader(self, split: Split) -> "OneRow":
        self.made += 1
        return super().reader(split)


@pytest.mark.slow
def test_a_poll_opens_a_bounded_number_of_discovered_splits() -> None:
    source = CountedAppearing(1_000)
    driver = opened(SourceSpec("src", source, ()), World())
    while source.made < 1_000:
        before = source.made
        driver.poll(0)
        assert source.made - before <= 256
        assert driver.next_due_ns() is None, "polled again at once"
    driver.close()


# ---------------------------------------------------------------- stored values


@pytest.mark.slow
def test_splits_of_a_fixed_list_that_were_not_begun_cost_nothing_in_a_snapshot() -> None:
    source = Many(5_000)
    driver = opened(spec_of(source), World())
    capture = driver.snapshot(1)
    assert sum(map(len, capture.values.values())) < 200
    read(driver, 100)
    assert sum(map(len, driver.snapshot(2).values.values())) < SMALL


@pytest.mark.slow
@pytest.mark.parametrize("source_class", [Many, Appearing])
def test_a_checkpoint_of_many_finished_splits_writes_what_is_new(source_class: type[Many]) -> None:
    count = 6_000
    source, world = source_class(count), World()
    driver = opened(SourceSpec("src", source, tuple(source.splits(1))), world)
    done, written, checkpoint = 0, 0, 0
    draw = random.Random(7)
    while done < count:
        done += len(read(driver, draw.randrange(1, 1_000)))
        checkpoint += 1
        capture = driver.snapshot(checkpoint)
        written += sum(map(len, capture.values.values()))
        assert len(capture.values) + len(capture.stored) <= 20
        assert sum(len(data) for data in capture.values.values() if len(data) <= SMALL) <= 3 * SMALL
        stored(capture)
    assert written <= RECORD_BYTES * 8 * count + checkpoint * SMALL
    capture = driver.snapshot(checkpoint + 1)
    assert sum(map(len, capture.values.values())) <= 3 * SMALL  # nothing is new
    assert sum(ref.size for ref in capture.stored.values()) <= RECORD_BYTES * count


def whole(driver: SourceDriver, world: World) -> OperatorSnapshot:
    """Returns a snapshot with all values, as an operator gets at a restore."""
    return snapshot_of(driver, world)


@pytest.mark.slow
@pytest.mark.parametrize("source_class", [Many, Appearing])
def test_what_has_finished_is_not_read_again_at_any_parallelism(source_class: type[Many]) -> None:
    count, read_so_far = 3_000, set()
    worlds = [World(subtask=subtask, parallelism=1) for subtask in range(1)]
    snapshots: tuple[OperatorSnapshot, ...] = ()
    draw = random.Random(3)
    for parallelism in (1, 3, 2, 5, 1):
        worlds = [World(subtask=subtask, parallelism=parallelism) for subtask in range(parallelism)]
        taken = []
        for world in worlds:
            source = source_class(count)
            driver = opened(SourceSpec("src", source, tuple(source.splits(1))), world, snapshots)
            ids = read(driver, draw.randrange(200, 500))
            assert not read_so_far & set(ids)
            read_so_far |= set(ids)
            taken.append((driver, whole(driver, world)))
        snapshots = tuple(snapshot for _, snapshot in taken)
        finished = [msgspec.json.decode(snapshot.values[SPLITS_VALUE]).get("finished", 0) for snapshot in snapshots]
        assert sum(finished) == len(read_so_far)
        assert sum(driver.records for driver, _ in taken) == len(read_so_far)
    source = source_class(count)
    driver = opened(SourceSpec("src", source, tuple(source.splits(1))), World(), snapshots)
    rest = read(driver, count)
    assert len(rest) + len(read_so_far) == count
    assert {*rest} | read_so_far == set(Many(count).ids)


@pytest.mark.slow
def test_four_subtasks_restore_a_folder_of_many_files_from_twenty_bytes_per_file() -> None:
    count, parallelism = 92_500, 4
    ids = Many(count).ids
    worlds = [World(subtask=subtask, parallelism=parallelism) for subtask in range(parallelism)]
    finished = NameSet()
    for id in ids:
        finished.add(id, 1_000)
    runs = [merged([finished.added()]).share(subtask, parallelism)[0] for subtask in range(parallelism)]
    snapshots = tuple(
        OperatorSnapshot(
            "src",
            subtask,
            parallelism,
            {
                SPLITS_VALUE: msgspec.json.encode(SourceProgress({}, done_rows=len(run), finished=len(run), version=2)),
                f"{RUN_VALUE}1": run.data,
            },
        )
        for subtask, run in enumerate(runs)
    )
    again, read_anew = [], 0
    for world in worlds:
        source = Appearing(0)
        source.ids = [*ids[::100], f"part-{count:06d}-5b1f0a52-c000.snappy.parquet"]
        driver = opened(SourceSpec("src", source, ()), world, snapshots)
        read_anew += len(read(driver, 3))
        again.append(snapshot_of(driver, world))
        assert sum(map(len, again[-1].values.values())) <= 20 * count / parallelism * 1.1
        driver.close()
    assert read_anew == 1
    assert sum(msgspec.json.decode(snapshot.values[SPLITS_VALUE])["done_rows"] for snapshot in again) == count + 1
    assert sum(map(len, (data for snapshot in again for data in snapshot.values.values()))) <= 20 * count


def test_what_older_releases_stored_of_finished_splits_is_read() -> None:
    splits = {"part-000001-5b1f0a52-c000.snappy.parquet": {"rows": 1, "greatest_ms": 5, "finished": True}}
    value = {"splits": splits, "done": [Many(3).ids[0]], "done_rows": 1, "done_ms": 7, "version": 1}
    snapshot = OperatorSnapshot("src", 0, 1, {SPLITS_VALUE: msgspec.json.encode(value)})
    world = World()
    for source in (Many(3), Appearing(3)):
        driver = opened(SourceSpec("src", source, tuple(source.splits(1))), world, (snapshot,))
        assert read(driver, 5) == [Many(3).ids[2]]
        assert driver.records == 3
        again = opened(SourceSpec("src", Many(3), tuple(Many(3).splits(1))), world, (snapshot_of(driver, world),))
        assert again.finished
        assert again.records == 3


def test_finished_splits_of_older_releases_are_read_and_stored_with_marks() -> None:
    """Records of 17 bytes: 12 of the hash, 5 of the size."""
    source, world = Many(600), World()
    records = [
        hashlib.blake2b(id.encode(), digest_size=12).digest() + (1_000).to_bytes(5, "big") for id in source.ids[:500]
    ]
    value = {"splits": {}, "done_rows": 500, "done_ms": 7, "finished": 500, "version": 1}
    values = {
        SPLITS_VALUE: msgspec.json.encode(value),
        f"{RUN_VALUE}1": b"".join(sorted(records[:300])),
        "finished": b"".join(records[300:]),
    }
    driver = opened(spec_of(source), world, (OperatorSnapshot("src", 0, 1, values),))
    assert read(driver, 600) == source.ids[500:]
    snapshot = whole(driver, world)
    assert msgspec.json.decode(snapshot.values[SPLITS_VALUE])["version"] == 2
    assert opened(spec_of(source), world, (snapshot,)).finished
    larger = SourceSpec("src", source, (Split(source.ids[7], b"{}", 1_001),))
    for state in (OperatorSnapshot("src", 0, 1, values), snapshot):
        with pytest.raises(InvalidJob, match=r"had 1000 bytes when it was read to its end, and has 1001 now"):
            opened(larger, world, (state,))


@pytest.mark.slow
def test_a_snapshot_that_lacks_names_of_finished_splits_is_refused() -> None:
    source, world = Many(600), World()
    driver = opened(spec_of(source), world)
    read(driver, 600)
    snapshot = whole(driver, world)
    values = {name: data for name, data in snapshot.values.items() if not name.startswith("finished")}
    damaged = msgspec.structs.replace(snapshot, values=values)
    with pytest.raises(Corrupt, match="restore an intact copy of the checkpoint"):
        opened(spec_of(source), world, (damaged,))


# ---------------------------------------------------------------- files that changed after they were read


def lines(first: int, count: int) -> str:
    return "".join(json.dumps({"n": n}) + "\n" for n in range(first, first + count))


def run(folder: Path, **options: Any) -> None:
    flow = Dataflow("cron")
    flow.read_jsonl("src", str(folder / "in"), schema={"n": int}).sink("out", JsonlSink(str(folder / "out")))
    flow.run_local(checkpoints=str(folder / "ck"), **options)


@pytest.mark.slow
def test_a_file_that_grew_after_it_was_read_to_its_end_is_named_at_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    old = tmp_path / "in" / "1.jsonl"
    old.write_text(lines(0, 3))
    run(tmp_path)
    (tmp_path / "in" / "2.jsonl").write_text(lines(3, 2))
    run(tmp_path)
    old.write_text(lines(0, 4))
    with pytest.raises((InvalidJob, JobFailed), match=r"the file '1.jsonl' had 27 bytes .* and has 36 now"):
        run(tmp_path)
    old.write_text(lines(0, 3))
    run(tmp_path)
