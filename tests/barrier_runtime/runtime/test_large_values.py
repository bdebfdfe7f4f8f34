"""Snapshot values too large for the manifest become objects of their own, invisible to operators."""

import threading

import msgspec
import pytest
from slot_bench import TARGET, Bench, Totals

from barrier_runtime.coordinator.wire.messages import AbortCheckpoint, Ack, Trigger
from barrier_runtime.operators.base import Capture
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.snapshots.transfer import store_values

LARGE = b"x" * 5_000


class Runs(Totals):
    """A set that grows by immutable runs; each run is uploaded once, as `Capture` describes."""

    def __init__(self):
        super().__init__()
        self.runs = {}
        self.where = {}
        self.heard = []

    def open(self, context):
        self.life.append("opened")
        for snapshot in context.restored:
            assert snapshot.objects == {}
            self.runs.update({name: value for name, value in snapshot.values.items() if name.startswith("run-")})

    def on_stored(self, objects):
        self.where = dict(objects)
        self.heard.append(sorted(objects))

    def snapshot(self, checkpoint):
        fresh = {name: run for name, run in self.runs.items() if name not in self.where}
        stored = {name: ref for name, ref in self.where.items() if name in self.runs}
        values = {"tail": b"%d" % checkpoint, **fresh}
        return Capture(values=values, stored=stored, on_stored=self.on_stored)


def data_objects(bench):
    return sorted(info.key for info in bench.store.list("job/data/"))


async def test_a_large_value_is_an_object_and_comes_back_as_a_value(tmp_path):
    """The manifest stays small, however large the operator's state."""
    bench = Bench(tmp_path, make_operator=Runs)
    await bench.running(5)
    bench.operators[0].runs = {"run-0": LARGE, "run-1": b"short"}
    snapshots = await bench.checkpoint(1, 5)
    (target,) = [each for each in snapshots if each.operator == "target"]
    assert target.values == {"tail": b"1", "run-1": b"short"}
    ref = target.objects["run-0"]
    assert (ref.name, ref.size, ref.key.split("/")[:4]) == ("run-0", 5_000, ["job", "data", "5", "uuid-0"])
    assert data_objects(bench) == [ref.key]
    await bench.running(6, 1, snapshots)
    assert bench.operators[1].runs == {"run-0": LARGE, "run-1": b"short"}
    await bench.close()


async def test_what_a_decided_checkpoint_stored_is_not_uploaded_again(tmp_path):
    bench = Bench(tmp_path, make_operator=Runs)
    await bench.running(5)
    (operator,) = bench.operators
    operator.runs = {"run-0": LARGE}
    await bench.checkpoint(1, 5)
    operator.runs["run-1"] = LARGE + b"1"
    second = await bench.checkpoint(2, 5)
    assert operator.heard == [["run-0"], ["run-0", "run-1"]]
    assert len(data_objects(bench)) == 2
    del operator.runs["run-0"]
    third = await bench.checkpoint(3, 5)
    assert [sorted(each.objects) for each in second + third if each.operator == "target"] == [
        ["run-0", "run-1"],
        ["run-1"],
    ]
    assert len(data_objects(bench)) == 2
    await bench.running(6, 3, third)
    assert bench.operators[1].runs == {"run-1": LARGE + b"1"}
    await bench.close()


async def test_what_an_undecided_checkpoint_stored_is_uploaded_again(tmp_path):
    """The files of an undecided checkpoint may be deleted."""
    bench = Bench(tmp_path, make_operator=Runs)
    await bench.running(5)
    (operator,) = bench.operators
    operator.runs = {"run-0": LARGE}
    bench.tell(Trigger(5, 1, 0))
    await bench.acks(1, 5)
    bench.tell(AbortCheckpoint(5, 1, "expired"))
    snapshots = await bench.checkpoint(2, 5)
    assert operator.heard == [["run-0"]]
    assert len(data_objects(bench)) == 2
    assert next(each for each in snapshots if each.operator == "target").objects["run-0"].key in data_objects(bench)
    await bench.close()


async def test_an_operator_hears_also_that_nothing_of_it_is_stored_any_more(tmp_path):
    """Objects named to the operator before may be deleted from then on."""
    bench = Bench(tmp_path, make_operator=Runs)
    await bench.running(5)
    (operator,) = bench.operators
    operator.runs = {"run-0": LARGE}
    await bench.checkpoint(1, 5)
    operator.runs.clear()
    await bench.checkpoint(2, 5)
    assert operator.heard == [["run-0"], []]
    await bench.close()


class Waiting(Runs):
    def __init__(self):
        super().__init__()
        self.begun, self.let_go = threading.Event(), threading.Event()

    def snapshot(self, checkpoint):
        def blocking():
            self.begun.set()
            self.let_go.wait(60)
            return {"large": LARGE}

        return Capture(blocking=blocking)


async def test_a_checkpoint_that_was_given_up_uploads_no_value(tmp_path):
    bench = Bench(tmp_path, make_operator=Waiting)
    await bench.running(5)
    (operator,) = bench.operators
    bench.tell(Trigger(5, 1, 0))
    await bench.until(operator.begun.is_set)
    bench.tell(AbortCheckpoint(5, 1, "expired"))
    operator.let_go.set()
    snapshots = await bench.checkpoint(2, 5)
    assert data_objects(bench) == [each.objects["large"].key for each in snapshots if each.objects]
    acks = [(ack.checkpoint, ack.subtask.chain) for ack in bench.links[0].got(Ack)]
    assert (1, TARGET) not in acks
    await bench.close()


@pytest.mark.parametrize("damage", ["gone", "changed"])
async def test_a_damaged_value_stops_the_restore_with_the_name_of_its_object(tmp_path, damage):
    """O8, J2"""
    bench = Bench(tmp_path, make_operator=Runs)
    await bench.running(5)
    bench.operators[0].runs = {"run-0": LARGE}
    snapshots = await bench.checkpoint(1, 5)
    (key,) = data_objects(bench)
    if damage == "gone":
        bench.store.delete([key])
    else:
        bench.store.put(key, LARGE[:-1] + b"y")
    bench.deploy(6, 1, snapshots)
    failure = await bench.failure()
    assert not failure.retryable
    assert "run-0" in failure.error
    assert key in failure.error
    await bench.close()


async def test_snapshots_written_before_there_were_large_values_are_read(tmp_path):
    """B6"""
    bench = Bench(tmp_path)
    await bench.running(5)
    bench.feed.rows[0] += [1, 2]
    await bench.until(lambda: bench.operators[0].total == 2)
    snapshots = await bench.checkpoint(1, 5)
    old = []
    for each in snapshots:
        fields = msgspec.to_builtins(each)
        assert fields.pop("objects") == {}
        old.append(msgspec.convert(fields, type(each)))
    await bench.running(6, 1, old)
    assert bench.operators[1].total == 2
    await bench.close()


def test_values_that_are_named_twice_or_strangely_are_refused(store):
    ref = FileRef("a", 1, "00", "job/data/1/u/x")
    for values, stored in (({"a": b"1"}, {"a": ref}), ({"a/b": LARGE}, {}), ({}, {"": ref})):
        with pytest.raises(ProtocolViolation, match=r"handed over both|is not a name"):
            store_values(values, stored, store, lambda: "job/data/1/u/y", 10, lambda: None)
    assert list(store.list("")) == []
