"""Broadcast rows that become valid at a barrier: at the same barrier in every subtask, whatever the interleaving of
rows, barriers and crashes, and after restores at any parallelism.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World
from subtask_bench import TOKEN, Bench, barrier

from barrier_runtime import BroadcastState, CollectSink, Dataflow, InvalidJob, connect
from barrier_runtime.coordinator.checkpoints.checkpoint import disagreement
from barrier_runtime.data.elements import WATERMARK_MAX, Batch, CancelBarrier, EndOfInput, Watermark
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.operators.base import Capture, Emit
from barrier_runtime.operators.functions.connected import ConnectedInput, ConnectedOperator
from barrier_runtime.operators.functions.switching import WaitingRows, switched_between
from barrier_runtime.runtime.network.channels import LocalOutput
from barrier_runtime.runtime.network.wiring import Wiring
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import SWITCHES, OperatorSnapshot
from barrier_runtime.testing import ConnectedHarness
from tests.drawn import examples

ROWS = pa.schema([("k", pa.int64()), ("at", pa.int64())])
RULES = pa.schema([("n", pa.int64())])
OUT = pa.schema([("v", pa.int64())])
BY_KEY, FOR_ALL = 0, 1  # channels, and ports


class Ruled:
    """Returns the number of valid rules for a row, and the negated number of a rule for a rule."""

    rules = BroadcastState(int, int)

    def on_rules(self, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.rules[row["n"]] = row["n"]
        return {"v": -row["n"]}

    def on_rows(self, key: int, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"v": len(self.rules)}


class Timed(Ruled):
    """Subtracts 1000 from the results of timers."""

    def on_rows(self, key: int, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        if row["at"]:
            ctx.timers.register(row["at"])
        return super().on_rows(key, row, ctx)

    def on_timer(self, key: int, timestamp_ms: int, ctx: Any) -> dict[str, Any]:
        return {"v": -1_000 - len(self.rules)}


def opened(subtask: int = 0, parallelism: int = 1, restored: tuple[OperatorSnapshot, ...] = ()) -> tuple[World, Bench]:
    inputs = [ConnectedInput("rows", ("k",), ROWS), ConnectedInput("rules", (), RULES, switch="barrier")]
    world, operator = World(subtask=subtask, parallelism=parallelism), ConnectedOperator("op", inputs, Timed, OUT)
    operator.open(world.context("op", restored))
    channels = (BY_KEY, FOR_ALL)
    return world, Bench(inputs=2, ports=channels, aligned_only=channels, operator=operator)


def rows(*times: int, reached: list[int] | None = None) -> Batch:
    batch = pa.RecordBatch.from_pylist([{"k": 1, "at": at} for at in times], ROWS)
    return Batch(batch, 0, None if reached is None else np.array(reached))


def rules(*numbers: int, reached: list[int] | None = None) -> Batch:
    batch = pa.RecordBatch.from_pylist([{"n": number} for number in numbers], RULES)
    return Batch(batch, 0, None if reached is None else np.array(reached))


def told(bench: Bench) -> list[Any]:
    return [value for each in bench.emitted() for value in (each if isinstance(each, list) else [each])]


def snapshot(world: World, bench: Bench, checkpoint: int) -> OperatorSnapshot:
    (captures,) = [captures for taken, captures in bench.captured.calls if taken.id == checkpoint]
    return world.finish("op", checkpoint, captures["sum"])


PHASE = st.tuples(st.integers(0, 3), st.integers(0, 3))  # rules and rows (of each subtask) up to the next barrier


@pytest.mark.slow
@given(
    st.lists(PHASE, min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
@examples(60)
def test_rows_between_two_barriers_all_see_the_rules_before_the_first_barrier(
    phases: list[tuple[int, int]], runs: list[tuple[int, int, int]], rng: random.Random
) -> None:
    """Barrier n follows phase n - 1. Each run begins at a decided barrier and crashes a given number of elements after
    a later barrier; the interleaving decides between which moves. The last run reads to the end.
    """
    firsts = [0, *itertools.accumulate(count for count, _ in phases)]  # rules before each phase
    numbered = [list(range(firsts[at] + 1, firsts[at + 1] + 1)) for at in range(len(phases))]
    begun, restored = 0, tuple[OperatorSnapshot, ...]()
    for run, (parallelism, further, beyond) in enumerate(runs):
        last = run == len(runs) - 1
        decided = len(phases) if last else min(begun + further, len(phases) - 1)
        subtasks = [opened(subtask, parallelism, restored) for subtask in range(parallelism)]
        for subtask, (_, bench) in enumerate(subtasks):
            queues: list[list[Any]] = [[], []]
            for at in range(begun, len(phases)):
                queues[FOR_ALL] += [rules(number) for number in numbered[at]]
                queues[BY_KEY] += [rows(0)] * phases[at][1]
                for queue in queues:
                    queue.append(barrier(at + 1))
            left = None  # elements after the last decided barrier that remain until the crash
            while any(queues) and left != 0:
                channel = rng.choice([each for each in (BY_KEY, FOR_ALL) if queues[each]])
                bench.feed((channel, queues[channel].pop(0)))
                if left is not None:
                    left -= 1
                elif not last and len(bench.captured.calls) == decided - begun:
                    left = beyond
            if last:
                bench.feed((FOR_ALL, EndOfInput()), (BY_KEY, EndOfInput()))
            expected: list[Any] = []
            for at in range(begun, len(phases) + 1):
                expected += [-number for number in (numbered[at - 1] if at else []) if subtask == 0]
                expected += [firsts[at]] * phases[at][1] if at < len(phases) else []
                expected.append(barrier(at + 1))
            found = told(bench)
            if last:
                assert found == [*expected[:-1], Watermark(WATERMARK_MAX), EndOfInput()]
            else:
                assert found == expected[: len(found)]
                assert decided == begun or barrier(decided) in found
        for at in range(begun, decided):
            taken = tuple(snapshot(world, bench, at + 1) for world, bench in subtasks)
            assert disagreement(taken) == ""
            stored = [f"{SWITCHES}-rows" in each.values for each in taken]
            assert stored == [bool(numbered[at]), *[False] * (parallelism - 1)], "once"
            restored = taken
        begun = decided


def test_rules_become_valid_without_a_further_element_and_before_the_next_barrier() -> None:
    _, bench = opened()
    bench.queue((FOR_ALL, rules(1, 2)), (FOR_ALL, barrier(1)), (BY_KEY, barrier(1)))
    bench.work()
    assert told(bench) == [barrier(1), -1, -2]
    for checkpoint in (2, 3):
        bench.queue((FOR_ALL, rules(checkpoint + 1)), (FOR_ALL, barrier(checkpoint)), (BY_KEY, barrier(checkpoint)))
    bench.queue((FOR_ALL, barrier(4)), (BY_KEY, barrier(4)))
    bench.subtask.step()  # both barriers in one turn
    bench.work()
    assert told(bench) == [barrier(2), -3, barrier(3), -4, barrier(4)]


def test_unaligned_barriers_wait_for_the_rows_before_them() -> None:
    _, bench = opened()
    bench.queue((FOR_ALL, rules(1)), (FOR_ALL, barrier(1, 0)), (BY_KEY, rows(0, 0)), (BY_KEY, barrier(1, 0)))
    bench.queue((BY_KEY, rows(0)))
    bench.work()
    assert told(bench) == [0, 0, barrier(1, 0), -1, 1]
    assert bench.in_flight == {}


def test_rules_after_the_last_barrier_become_valid_when_all_inputs_have_ended() -> None:
    _, bench = opened()
    end = (Watermark(WATERMARK_MAX), EndOfInput())  # the last elements of upstream chains
    bench.feed((FOR_ALL, rules(1)), *[(FOR_ALL, each) for each in end], (BY_KEY, rows(5)))
    assert told(bench) == [0]
    bench.feed(*[(BY_KEY, each) for each in end])
    assert told(bench) == [-1, -1_001, *end]


def test_end_of_event_time_makes_waiting_rules_valid_before_operators_see_the_end() -> None:
    inputs = [ConnectedInput("rows", ("k",), ROWS), ConnectedInput("rules", (), RULES, switch="barrier")]
    world, operator = World(), ConnectedOperator("op", inputs, Timed, OUT)
    operator.open(world.context("op"))
    found: list[Batch] = []
    emit = Emit(found.append)
    operator.process(rules(1), emit, 1)
    operator.process(rows(5), emit, 0)
    operator.on_watermark(WATERMARK_MAX, emit)
    assert [row["v"] for batch in found for row in batch.rows.to_pylist()] == [0, -1, -1_001]


def test_event_time_advances_while_rules_wait_and_timers_fire_under_current_rules() -> None:
    _, bench = opened()
    bench.feed((BY_KEY, rows(10, 20)), (BY_KEY, Watermark(20)), (FOR_ALL, rules(1, 2, reached=[9, 10])))
    assert told(bench) == [0, 0, -1_000]
    bench.feed((FOR_ALL, barrier(1)), (BY_KEY, barrier(1)), (FOR_ALL, Watermark(20)))
    assert told(bench) == [barrier(1), -1, -2, -1_002, Watermark(20)]


@pytest.mark.parametrize("with_rules", [True, False])
def test_barrier_aborted_in_a_single_subtask_ends_the_generation_if_rules_switched(
    with_rules: bool,
) -> None:
    """The first of two subtasks has taken barrier 1 before the coordinator aborted the checkpoint."""
    subtasks = [opened(subtask, 2) for subtask in range(2)]
    for subtask, (_, bench) in enumerate(subtasks):
        if with_rules:
            bench.feed((FOR_ALL, rules(1)))
        bench.feed((FOR_ALL, barrier(1)), (BY_KEY, barrier(1) if subtask == 0 else CancelBarrier(1, TOKEN)))
        bench.subtask.on_abort(1)
        bench.feed((BY_KEY, rows(0)), (FOR_ALL, barrier(2)), (BY_KEY, barrier(2)))
    found = disagreement(snapshot(world, bench, 2) for world, bench in subtasks)
    assert ("became valid behind other barriers in its subtasks 0 and 1" in found) is with_rules
    for _, bench in subtasks:
        bench.feed((FOR_ALL, rules(2)), (FOR_ALL, barrier(3)), (BY_KEY, barrier(3)))
    found = disagreement(snapshot(world, bench, 3) for world, bench in subtasks)
    assert bool(found) is with_rules, "it does not heal by itself"


def test_rows_that_wait_for_an_input_that_is_gone_are_told() -> None:
    world, bench = opened()
    bench.feed((FOR_ALL, rules(1)), (FOR_ALL, barrier(1)), (BY_KEY, barrier(1)))
    taken = snapshot(world, bench, 1)
    other = ConnectedOperator("op", [ConnectedInput("rows", ("k",), ROWS), ConnectedInput("others", (), RULES)], Other)
    with pytest.raises(
        InvalidJob, match="rows of its broadcast input 'rules' wait for a barrier, and there is no such"
    ):
        other.open(World().context("op", (taken,)))


def test_waiting_rows_that_are_damaged_are_told_with_the_place() -> None:
    world, bench = opened()
    bench.feed((FOR_ALL, rules(1)), (FOR_ALL, barrier(1)), (BY_KEY, barrier(1)))
    taken = snapshot(world, bench, 1)
    name = f"{SWITCHES}-rows"
    rows = msgspec.msgpack.decode(taken.values[name])
    rows["parts"] = [(input, stream[: len(stream) // 2], emit_ns) for input, stream, emit_ns in rows["parts"]]
    damaged = msgspec.structs.replace(taken, values={**taken.values, name: msgspec.msgpack.encode(rows)})
    with pytest.raises(Corrupt, match=r"'op'.*: its rows that wait for a barrier is not readable .*: restore an"):
        opened(restored=(damaged,))


class Other:
    def on_others(self, row: dict[str, Any], ctx: Any) -> None: ...
    def on_rows(self, key: int, row: dict[str, Any], ctx: Any) -> None: ...


def test_a_harness_has_its_barriers_where_it_takes_snapshots() -> None:
    inputs: dict[str, Any] = {"keys": {"rows": "k"}, "broadcast": {"rules": "barrier"}}
    with ConnectedHarness(Ruled, **inputs, parallelism=3) as harness:
        assert harness.push("rules", {"n": 7}, {"n": 8}) == []
        assert harness.push("rows", {"k": 1, "at": 0}) == [{"v": 0}]
        taken = harness.snapshot()
        assert harness.broadcast("rules") == {7: 7, 8: 8}
        harness.push("rules", {"n": 9})
        assert harness.push("rows", {"k": 1, "at": 0}) == [{"v": 2}]
        assert harness.end() == [{"v": -9}]
    with ConnectedHarness(Ruled, **inputs, parallelism=2, restore=taken) as harness:
        assert harness.push("rows", {"k": 1, "at": 0}) == [{"v": -7}, {"v": -8}, {"v": 2}]
    with pytest.raises(InvalidJob, match="input 'rules': switch='barriers': pass 'row'"):
        ConnectedHarness(Ruled, **inputs | {"broadcast": {"rules": "barriers"}})


# ---------------------------------------------------------------- between two checkpoints


def snapshots(rules: Sequence[bool], restored: Sequence[OperatorSnapshot] = (), after: int = 0) -> list[Any]:
    """Returns a subtask's snapshots at the checkpoints after `after`. `rules`: a rule arrived before the checkpoint."""
    waiting, taken = WaitingRows("step", 0, ["rules"], restored), []
    for checkpoint, came in enumerate(rules, after + 1):
        if came:
            waiting.add("rules", Batch(pa.RecordBatch.from_pylist([{"n": checkpoint}], RULES), 0))
        capture = Capture({})
        waiting.at_barrier(checkpoint, capture)
        more = capture.blocking() if capture.blocking is not None else {}
        taken.append([OperatorSnapshot("step", 0, 1, {**capture.values, **more})])
    return taken


def test_it_is_known_between_which_checkpoints_rules_became_valid() -> None:
    first, second, third, fourth = snapshots([True, False, True, False])
    assert switched_between((), 0, second, "step")
    assert not switched_between((), 0, first, "step"), "the rule is valid behind the barrier of 1"
    assert not switched_between(first, 1, second, "step")
    assert not switched_between(first, 1, third, "step")
    assert switched_between(first, 1, fourth, "step")
    assert switched_between(second, 2, fourth, "step")


def test_rules_that_became_valid_in_a_restore_did_so_at_its_checkpoint() -> None:
    (first,) = snapshots([True])
    second, third, fourth = snapshots([False, True, False], restored=first, after=1)
    assert not switched_between(first, 1, second, "step")
    assert not switched_between(first, 1, third, "step")
    assert switched_between(first, 1, fourth, "step")


# ---------------------------------------------------------------- in a flow


def flow(switch: Any = "barrier") -> Dataflow:
    flow = Dataflow("switched")
    keyed = flow.from_iterator("rows", _nothing, schema=ROWS, splits=2).key_by("k")
    inputs: dict[str, Any] = {"rows": keyed}
    inputs["rules"] = flow.from_iterator("rules", _nothing, schema=RULES, splits=2).broadcast(switch)
    connect(**inputs).process("ruled", Ruled, schema=OUT).sink("out", CollectSink())
    return flow


def _nothing(index: int, of: int) -> Iterator[Sequence[Any]]:
    return iter(())


@pytest.mark.parametrize("switch", ["row", "barrier"])
def test_all_edges_into_the_step_are_aligned_where_rules_wait_for_barriers(switch: str) -> None:
    graph = compile_plan(flow(switch).plan, 3)
    plane: Any = None  # nothing is connected
    wiring = Wiring(graph, 1, 0, plane, lambda: None, 1 << 20, LocalOutput)
    wiring.make_inputs()
    (chain,) = [each for each in graph.chains if each.operators and each.operators[0].name == "ruled"]
    assert len(wiring.aligned_only(chain.id)) == (6 if switch == "barrier" else 3)
    text = flow(switch).explain(parallelism=3, unaligned=True)
    assert ("rules at barriers" in text) is (switch == "barrier")
    assert ("that a barrier overtook" in text) is (switch == "row")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"broadcast: switch='checkpoint': pass 'row' .* or 'barrier'"):
        flow("checkpoint")
    with pytest.raises(InvalidJob, match=r"connect 'ruled': broadcast\(switch=\"barrier\"\) needs barriers"):
        flow().run_local(mode="at_least_once")
