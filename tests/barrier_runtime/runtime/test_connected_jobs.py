"""Whole jobs with several named inputs: rules that change while rows arrive, over crashes, with unaligned barriers,
and at other parallelisms.
"""

import datetime
import hashlib
import itertools
import json
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from failing_upload import FailingUpload

from barrier_runtime import BroadcastState, CollectSink, Dataflow, JobFailed, JsonlSink, ValueState, connect
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import load_manifest
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.operators.state.broadcast_copy import SUMMARY
from barrier_runtime.runtime.network.channels import LocalOutput
from barrier_runtime.runtime.network.wiring import Wiring
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from tests.integration.harness import visible_files
from tests.newest_checkpoint import newest_manifest

Row = dict[str, Any]
KEYS, SPLITS = 200, 4
SEEN = pa.schema([("key", pa.int64()), ("number", pa.int64()), ("rules", pa.int64()), ("digest", pa.string())])


def ruled(crash: FailingUpload, out: Path, switch: Any = "row") -> Dataflow:
    class Ruled:
        """Each rule changes the digest of all earlier rules, so rows reveal the order in which rules were applied."""

        number = ValueState(int, default=0)
        ballast = ValueState(str, default="")
        rules = BroadcastState(str, str)

        def on_rules(self, row: Row, ctx: Any) -> Any:
            before = self.rules.get("digest", "")
            self.rules["digest"] = hashlib.sha256(f"{before} {row['value']}".encode()).hexdigest()
            self.rules["count"] = str(int(self.rules.get("count", "0")) + 1)
            self.rules[f"rule {row['value']}"] = "x" * 40

        def on_rows(self, key: int, row: Row, ctx: Any) -> Row:
            crash.on_row()
            self.number.value += 1
            self.ballast.value = hashlib.shake_256(f"{row}".encode()).hexdigest(300)
            count = int(self.rules.get("count", "0"))
            assert len(self.rules) == (count + 2 if count else 0)
            return {"key": key, "number": self.number.value, "rules": count, "digest": self.rules.get("digest", "")}

    flow = Dataflow("ruled")
    rows = flow.rate("numbers", 1_500, keys=KEYS, splits=SPLITS)
    rules = flow.rate("changes", 100, keys=KEYS, splits=3)
    inputs = connect(rows=rows.key_by("key"), rules=rules.broadcast(switch))
    inputs.process("ruled", Ruled, schema=SEEN).sink("out", JsonlSink(str(out)))
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["row", "barrier"])
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_rules_are_applied_in_one_order_over_crashes_and_every_change_of_parallelism(
    tmp_path: Path, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2, T8: 1→5→2→3→1, unaligned: barriers overtake rows by key, and no broadcast row is ever in flight. If rules
    become valid at barriers, barriers overtake no rows, and all rows of a checkpoint, in every subtask, see equally
    many rules.
    """
    monkeypatch.setattr("barrier_runtime.launch.local.wire_by_default", switch == "row")
    url = f"memory://{uuid.uuid4().hex}"
    store = open_store(url)
    assert isinstance(store, MemoryStore)
    in_flight, counts = set(), []
    for parallelism in (1, 5, 2, 3, 1):
        options: Any = {"parallelism": parallelism, "checkpoints": url, "checkpoint_interval": 0.05}
        with pytest.raises(JobFailed, match="/data/"):
            ruled(FailingUpload(store, 2), tmp_path, switch).run_local(**options, restart_attempts=0, unaligned=True)
        graph = compile_plan(ruled(FailingUpload(store, 2), tmp_path, switch).plan, parallelism)
        edges = {(graph.chains[edge.target_chain].operators[0].name, edge.port): edge for edge in graph.edges}
        for snapshot in newest_manifest(store, "ruled").operators:
            in_flight |= {edges[snapshot.operator, each.port].partitioning for each in snapshot.in_flight}
        files = {path: [json.loads(line) for line in path.read_text().splitlines()] for path in visible_files(tmp_path)}
        rows = [row for found in files.values() for row in found]
        under: dict[str, set[int]] = {}
        for path, found in files.items():
            under.setdefault(path.name[: len("part-00000001")], set()).update(row["rules"] for row in found)
        assert switch == "row" or all(len(found) == 1 for found in under.values()), under
        counts.append(max((row["rules"] for row in rows), default=0))
        digests: dict[int, set[str]] = {}
        by_key: dict[int, list[tuple[int, int]]] = {}
        for row in rows:
            digests.setdefault(row["rules"], set()).add(row["digest"])
            by_key.setdefault(row["key"], []).append((row["number"], row["rules"]))
        assert all(len(found) == 1 for found in digests.values()), "two subtasks had applied other rules"
        for key, found in by_key.items():
            found.sort()
            assert [number for number, _ in found] == list(range(1, len(found) + 1)), f"key {key}: lost or doubled"
            seen = [rules for _, rules in found]
            assert seen == sorted(seen), f"key {key}: a rule was there and gone"
    assert in_flight <= ({"hash"} if switch == "row" else set())
    assert counts[-1] > counts[0] > 0
    assert all(before <= after for before, after in itertools.pairwise(counts))


def test_barriers_overtake_rows_by_key_and_wait_for_rows_for_all(tmp_path: Path) -> None:
    """However an unaligned barrier arrives, all copies of broadcast state are captured at the same point of the rules'
    order.
    """
    graph = compile_plan(ruled(FailingUpload(MemoryStore(), 2), tmp_path).plan, 3)
    plane: Any = None  # nothing is connected
    wiring = Wiring(graph, 1, 0, plane, lambda: None, 1 << 20, LocalOutput)
    wiring.make_inputs()
    found = {}
    for chain in graph.chains:
        aligned = wiring.aligned_only(chain.id)
        for edge in graph.inputs(chain.id):
            channels = [each.index for each in wiring.inputs[chain.id] if each.port == edge.port]
            found[edge.partitioning] = [index in aligned for index in channels]
    assert found == {"hash": [False] * 3, "single": [True] * 3, "broadcast": [True] * 3}


class Big:
    rules = BroadcastState(int, bytes)

    def on_rules(self, row: Row, ctx: Any) -> None:
        self.rules[row["n"]] = bytes(200_000)

    def on_rows(self, key: int, row: Row, ctx: Any) -> Row:
        return {"n": row["n"], "rules": len(self.rules)}


@pytest.mark.slow
def test_a_large_state_that_does_not_change_is_uploaded_once() -> None:
    flow, out = Dataflow("ruled"), CollectSink()
    url = f"memory://{uuid.uuid4().hex}"
    rules = flow.from_iterator("r", lambda i, of: iter([{"n": n} for n in range(3)]), schema={"n": int}, splits=1)

    def each_in_a_checkpoint(index: int, of: int) -> Iterator[Row]:
        """Waits for each row to be visible; ends when six rows were visible with the whole state."""
        number = 0
        while sum(row["rules"] == 3 for row in out.rows()) < 6:
            yield {"n": number}
            while all(row["n"] != number for row in out.rows()):
                time.sleep(0.01)
            number += 1

    rows = flow.from_iterator("numbers", each_in_a_checkpoint, schema={"n": int}, splits=1)
    inputs = connect(rows=rows.key_by("n"), rules=rules.broadcast())
    inputs.process("big", Big, schema={"n": int, "rules": int}).sink("out", out)
    result = flow.run_local(parallelism=2, checkpoints=url, checkpoint_interval=0.05, retained=1000)
    store = open_store(url)
    keys, whole = [], 0
    for entry in read_log(store, Paths("ruled"), completes=1_000).completes:
        manifest = load_manifest(complete_of(entry), store.get)
        assert manifest is not None
        for each in manifest.operators:
            for name, ref in each.objects.items():
                assert (name, each.subtask) == (f"{SUMMARY}-0", 0)
                whole += ref.size > 600_000
                keys.append(ref.key)
    assert whole > len(set(keys)), "it is named by several checkpoints"
    assert len(set(keys)) <= 5, f"three changes of the state: {len(keys)} checkpoints, {result.status}"


class Random:
    """Broadcast function whose subtasks write different values."""

    rules = BroadcastState(int, int)

    def on_rules(self, row: Row, ctx: Any) -> None:
        self.rules[row["n"]] = ctx.subtask

    def on_rows(self, key: int, row: Row, ctx: Any) -> Row:
        return {"n": 1}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_a_job_whose_copies_differ_completes_no_checkpoint_and_says_why(mode: Any) -> None:
    flow = Dataflow("ruled")
    rules = flow.from_iterator("r", lambda i, of: iter([{"n": 1}]), schema={"n": int}, splits=1)
    rows = flow.from_iterator("s", lambda i, of: iter([{"n": 1}]), schema={"n": int}, splits=1)
    inputs = connect(rows=rows.key_by("n"), rules=rules.broadcast())
    inputs.process("random", Random, schema={"n": int}).sink("out", CollectSink())
    if mode == "at_least_once":
        flow.run_local(parallelism=2, mode=mode)
        return
    with pytest.raises(JobFailed, match="broadcast state of operator 'random' is not the same in its subtasks 0 and 1"):
        flow.run_local(parallelism=2, restart_attempts=1, restart_delay=0.01)


class Late:
    def on_rows(self, key: int, row: Row, ctx: Any) -> Row:
        ctx.timers.register(ctx.timestamp)
        return {"at": -1, "upto": -1}

    def on_rules(self, row: Row, ctx: Any) -> Row:
        return {"at": -2, "upto": ctx.watermark}

    def on_timer(self, key: int, at: int, ctx: Any) -> Row:
        return {"at": at, "upto": ctx.watermark}


def timed(out: CollectSink, rules: list[Row], idle_s: float | None, done: threading.Event) -> Dataflow:
    flow, schema = Dataflow("ruled"), {"n": int, "at": int}
    idle = None if idle_s is None else datetime.timedelta(seconds=idle_s)

    def waiting(index: int, of: int) -> Iterator[Row]:
        yield from rules
        done.wait(60)

    def rows(index: int, of: int) -> Iterator[Row]:
        for at in range(1, 40):
            yield {"n": at, "at": at}
        while not any(row["at"] == 30 for row in out.rows()):  # which the silent input has never reached
            assert not done.wait(0.01)
        done.set()

    by_key = flow.from_iterator("rows", rows, schema=schema, splits=1, event_time="at")
    for_all = flow.from_iterator("rules", waiting, schema=schema, splits=1, event_time="at", idle_timeout=idle)
    inputs = connect(rows=by_key.key_by("n"), rules=for_all.broadcast())
    inputs.process("late", Late, schema={"at": int, "upto": int}, event_time="at").sink("out", out)
    return flow


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_a_watermark_is_the_least_of_all_inputs_and_idle_ones_are_left_out() -> None:
    out = CollectSink()
    timed(out, [{"n": 0, "at": 10}], 0.1, threading.Event()).run_local(parallelism=2, checkpoint_interval=0.05)
    assert sorted(row["at"] for row in out.rows() if row["at"] > 0) == list(range(1, 40))


class Priced:
    """Prices become valid at a barrier; timers of orders emit the valid price."""

    price = BroadcastState(int, int)

    def on_prices(self, row: Row, ctx: Any) -> None:
        self.price[1] = row["n"]

    def on_orders(self, key: int, row: Row, ctx: Any) -> None:
        ctx.timers.register(row["at"] + 1_000)

    def on_timer(self, key: int, at: int, ctx: Any) -> Row:
        return {"n": self.price.get(1, 0)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # threads of this process are no part of a flow on Spark
@pytest.mark.parametrize("parallelism", [1, 2])
def test_rules_that_wait_are_valid_before_the_timers_of_a_drain_and_behind_it(parallelism: int, tmp_path: Path) -> None:
    """No barrier arrives before the sources end early. The next run has another parallelism and still has the rule."""
    done, came, all_came = threading.Event(), list[int](), threading.Event()

    def passed(row: Row) -> Row:
        came.append(row["n"])
        if len(came) == 4:
            all_came.set()
        return row

    def flow(orders: int, out: CollectSink) -> Dataflow:
        flow, schema = Dataflow("priced"), {"n": int, "at": int}

        def rows(name: str, rows: list[Row]) -> Any:
            def told(index: int, of: int) -> Iterator[Row]:
                yield from rows
                done.wait(60)

            source = flow.from_iterator(name, told, schema=schema, splits=1, event_time="at")
            return source.map(passed, schema=schema)

        by_key = rows("orders", [{"n": at, "at": at} for at in range(orders)]).key_by("n")
        inputs = connect(orders=by_key, prices=rows("prices", [{"n": 5, "at": 0}]).broadcast("barrier"))
        inputs.process("priced", Priced, schema={"n": int}).sink("out", out)
        return flow

    first, second = CollectSink(), CollectSink()
    options: dict[str, Any] = {"checkpoints": str(tmp_path / "checkpoints"), "checkpoint_interval": 3_600}
    job = flow(3, first).start_local(parallelism=parallelism, **options)
    assert all_came.wait(60)
    job.stop(drain=True)
    done.set()
    job.wait(60)
    assert [row["n"] for row in first.rows()] == [5, 5, 5]
    flow(4, second).run_local(parallelism=3 - parallelism, allow_drained=True, **options)
    assert [row["n"] for row in second.rows()] == [5]
