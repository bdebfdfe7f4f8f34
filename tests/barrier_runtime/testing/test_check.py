"""`check`: correct flows pass at every crash point, and planted bugs are reported with seed, crash point and row."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest

from barrier_runtime import CallableSink, Dataflow, Tumbling, ValueState, count, sum_
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.operators import stable as stable_module
from barrier_runtime.operators.stable import StableOperator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.testing import CheckedSink, CheckFailed, check
from barrier_runtime.testing.flows import run
from barrier_runtime.testing.flows.given_rows import difference, tables_of
from barrier_runtime.testing.flows.run import PHASES, CrashPoint, FlowScenario, FlowUnderTest, named, run_flow

REACHED = tuple(phase for phase in PHASES if phase != "manifest")  # a small manifest is inside the decision

PAYMENTS = pa.schema([("card", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
TOTALS = pa.schema([("card", pa.string()), ("amount", pa.int64()), ("total", pa.int64())])
ROWS = [{"card": f"card-{i % 5}", "amount": i, "at": 1_000 * i} for i in range(40)]


class Total:
    """Running total of a card. Large totals, and totals after five seconds, go to a side output, too."""

    total = ValueState(int, default=0)

    def process(self, card: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.total.value += row["amount"]
        ctx.timers.register(ctx.timestamp + 5_000)
        if row["amount"] > 30:
            ctx.emit("large", {"card": card, "amount": row["amount"]})
        yield {"card": card, "amount": row["amount"], "total": self.total.value}

    def on_timer(self, card: str, due_ms: int, ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"card": card, "amount": -1, "total": due_ms}


def nothing(rows: pa.RecordBatch) -> None:
    """Replacement for the flow's own sinks."""


class Sum:
    """Running total of a card, without side output."""

    total = ValueState(int, default=0)

    def process(self, card: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.total.value += row["amount"]
        return {"card": card, "amount": row["amount"], "total": self.total.value}


def flow_of(function: Any, key: str = "card") -> Callable[[], Dataflow]:
    def build() -> Dataflow:
        flow = Dataflow("payments-of-cards")
        payments = flow.from_iterator("payments", lambda part, parts: [], schema=PAYMENTS)
        payments.key_by(key).process("totals", function, schema=TOTALS).sink("out", CallableSink(nothing))
        return flow

    return build


def rich_flow(stored: bool = False) -> Dataflow:
    """Keyed state, timers, a side output, a lookup, windows; three sinks."""
    flow = Dataflow("rich")
    payments = flow.from_iterator("payments", lambda part, parts: [], schema=PAYMENTS, event_time="at")
    found = payments.lookup(
        "holder",
        lambda cards: {card: {"holder": f"holder of {card}"} for card in cards},
        key="card",
        schema=pa.schema([("holder", pa.string())]),
        ordered=True,
    )
    cards = (found.stable() if stored else found).key_by("card")
    side = {"large": pa.schema([("card", pa.string()), ("amount", pa.int64())])}
    totals, large = cards.process("totals", Total, schema=TOTALS, side=side, event_time="at")
    totals.sink("out", CallableSink(nothing))
    large.sink("large", CallableSink(nothing))
    window = cards.window("counts", Tumbling(timedelta(seconds=10)), event_time="at")
    window.aggregate(n=count(), paid=sum_("amount")).sink("windows", CallableSink(nothing))
    return flow


class TableSink(TwoPhaseCommitSink):
    """Right: parts are staged, decided, and become visible together. `table`: the target, by name of the part."""

    global_committer = True

    def __init__(self, table: dict[str, list[dict[str, Any]]], staged: dict[str, list[dict[str, Any]]]) -> None:
        self._table = table
        self._staged = staged

    def open(self, context: Any) -> None:
        self._context = context

    def begin_transaction(self) -> list[dict[str, Any]]:
        return []

    def write(self, transaction: list[dict[str, Any]], rows: pa.RecordBatch) -> None:
        transaction.extend(rows.to_pylist())

    def pre_commit(self, transaction: list[dict[str, Any]], checkpoint: int) -> bytes | None:
        name: str = self._context.new_id()
        self._staged[name] = transaction
        return msgspec.json.encode(name) if transaction else None

    def commit(self, committable: bytes) -> None:
        """Shows nothing."""

    def abort(self, committable: bytes) -> None:
        """Does nothing: staged rows are invisible."""

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        for committable in committables:
            name = msgspec.json.decode(committable)
            self._table[name] = self._staged[name]


def table() -> CheckedSink:
    rows: dict[str, list[dict[str, Any]]] = {}
    staged: dict[str, list[dict[str, Any]]] = {}
    return CheckedSink(lambda: TableSink(rows, staged), lambda: [row for part in rows.values() for row in part])


class EagerSink(TableSink):
    """Wrong: staged rows are visible."""

    global_committer = False

    def pre_commit(self, transaction: list[dict[str, Any]], checkpoint: int) -> bytes | None:
        committable = super().pre_commit(transaction, checkpoint)
        self._table.update(self._staged)
        return committable


def eager_table() -> CheckedSink:
    rows: dict[str, list[dict[str, Any]]] = {}
    return CheckedSink(lambda: EagerSink(rows, {}), lambda: [row for part in rows.values() for row in part])


# ---------------------------------------------------------------- right flows


@pytest.fixture
def few_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows arrive in a quarter of the usual time, and one checkpoint is retained: just enough checkpoints follow to
    delete files of an older checkpoint.
    """
    monkeypatch.setattr(run, "_LENGTHS_NS", (190_000_000, 250_000_000))
    monkeypatch.setitem(run._CHECKPOINTS, "retained", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("few_checkpoints")
def test_a_right_flow_gives_the_same_rows_whatever_dies_in_whatever_phase() -> None:
    """T10: with a user's sink that makes the rows of all subtasks visible at once."""
    checked = check(rich_flow, {"payments": ROWS}, parallelism=2, sinks={"out": table})
    assert checked.phases == REACHED
    assert checked.crashes == 2 * len(REACHED)
    assert checked.rows == {"out": 80, "large": 9, "windows": 20}
    assert "80 rows in 'out'" in str(checked)


@pytest.mark.slow
def test_a_few_crashes_of_a_right_flow_change_nothing() -> None:
    for only in ("0/2/decision/2/process", "0/2/ack/3/program", "0/2/commit globally/1/process"):
        checked = check(flow_of(LastSeen), {"payments": ROWS}, parallelism=(2, 1), sinks={"out": table}, only=only)
        assert (checked.runs, checked.crashes, checked.rows) == (2, 1, {"out": 40})


@pytest.mark.slow
@pytest.mark.parametrize("only", ["1/3/restore/3/process", "1/3/ack/5/program", "1/3/commit globally/2/program"])
def test_at_another_parallelism_and_with_another_seed(only: str) -> None:
    checked = check(rich_flow, {"payments": ROWS[:15]}, parallelism=3, seeds=[1], sinks={"out": table}, only=only)
    assert (checked.runs, checked.crashes) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("few_checkpoints")
def test_at_every_point_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    checked = check(flow_of(Sum), {"payments": ROWS[:8]}, crashes="every point", parallelism=1)
    assert f"check payments-of-cards: {checked.runs} runs" in capsys.readouterr().err, "told before they begin"
    assert checked.phases == tuple(phase for phase in REACHED if phase != "commit globally")
    assert checked.crashes > len(PHASES) * 3


@pytest.mark.slow
def test_a_flow_that_does_not_look_at_arrival_may_read_any_number_of_splits() -> None:
    splits = [ROWS[:15], [], ROWS[15:]]
    checked = check(rich_sums, {"payments": splits}, crashes="none", parallelism=(1, 2, 3), seeds=[0, 1])
    assert checked.rows == {"out": 5}
    assert (checked.runs, checked.crashes) == (7, 0)


def rich_sums() -> Dataflow:
    flow = Dataflow("sums")
    payments = flow.from_iterator("payments", lambda part, parts: [], schema=PAYMENTS, event_time="at")
    window = payments.key_by("card").window("sums", Tumbling(timedelta(days=1)), event_time="at")
    window.aggregate(paid=sum_("amount")).sink("out", CallableSink(nothing))
    return flow


@pytest.mark.slow
@pytest.mark.usefixtures("few_checkpoints")
def test_stored_rows_change_nothing_whatever_dies_in_whatever_phase() -> None:
    """Timers and windows behind the step: event time is that of the rows, also after a restart."""
    checked = check(stored_flow, {"payments": ROWS}, parallelism=2)
    assert checked.crashes == 2 * len(checked.phases)
    assert checked.rows == {"out": 80, "large": 9, "windows": 20}


def stored_flow() -> Dataflow:
    return rich_flow(stored=True)


# ---------------------------------------------------------------- planted bugs

GLOBAL_TOTALS: dict[str, int] = {}


class GlobalTotal:
    """Wrong: the total is in a global variable."""

    def process(self, card: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        GLOBAL_TOTALS[card] = GLOBAL_TOTALS.get(card, 0) + row["amount"]
        yield {"card": card, "amount": row["amount"], "total": GLOBAL_TOTALS[card]}


class LastSeen:
    """Wrong if a card's rows are in several splits: the total depends on the order of payments."""

    total = ValueState(int, default=0)

    def process(self, card: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.total.value += row["amount"]
        yield {"card": card, "amount": row["amount"], "total": self.total.value}


def flow_with_a_closure() -> Dataflow:
    """Wrong: the total is in a variable of the process and is lost with the process."""
    totals: dict[str, int] = {}

    def process(card: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        totals[card] = totals.get(card, 0) + row["amount"]
        return {"card": card, "amount": row["amount"], "total": totals[card]}

    return flow_of(process)()


def failure(*arguments: Any, **options: Any) -> CheckFailed:
    with pytest.raises(CheckFailed) as failed:
        check(*arguments, **options)
    return failed.value


class ForgetsStoredRows(StableOperator):
    def _restore(self, snapshot: OperatorSnapshot) -> None:
        pass


@pytest.mark.slow
def test_stored_rows_that_a_restart_forgets_are_found() -> None:
    with patch.object(stable_module, "StableOperator", ForgetsStoredRows):
        found = failure(stored_flow, {"payments": ROWS}, parallelism=1)
    assert found.missing


@pytest.mark.slow
def test_state_in_a_global_variable_is_found() -> None:
    GLOBAL_TOTALS.clear()
    found = failure(flow_of(GlobalTotal), {"payments": ROWS}, parallelism=1)
    assert (found.seed, found.phase, found.sink) == (0, "", "out")
    assert "a global variable" in str(found)
    assert "the first: {'card': 'card-0', 'amount': 0, 'total': 0}" in str(found) or found.missing
    assert found.unexpected[0] != found.missing[0]


@pytest.mark.slow
def test_state_in_a_closure_is_found_with_the_first_crash_that_loses_it() -> None:
    found = failure(flow_with_a_closure, {"payments": ROWS}, parallelism=1)
    assert found.phase in PHASES
    text = str(found)
    assert f"seed 0, 1 slot, the process dies in phase {found.phase!r}" in text or "the whole program dies" in text
    assert f"the first: {dict(found.missing[0])!r}" in text


@pytest.mark.slow
def test_rows_that_depend_on_the_order_of_arrival_are_found_without_a_crash() -> None:
    found = failure(flow_of(LastSeen), {"payments": [ROWS[:20], ROWS[20:]]}, parallelism=(1, 2, 3))
    assert (found.phase, found.parallelism) == ("", 2)
    assert "seed 0, 2 slots, no crash" in str(found)
    assert "not on arrival" in str(found)


@pytest.mark.slow
def test_a_sink_that_shows_rows_in_pre_commit_is_found() -> None:
    found = failure(flow_of(LastSeen), {"payments": ROWS}, parallelism=1, sinks={"out": eager_table})
    assert found.phase in ("pre-committed", "upload", "ack", "manifest")
    assert found.missing == ()
    assert f"rows too many: {len(found.unexpected)}, the first: {dict(found.unexpected[0])!r}" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["process", "program"])
def test_a_run_alone_gives_the_failure_of_the_whole_check(victim: str) -> None:
    only = f"0/1/pre-committed/3/{victim}"
    found = failure(flow_of(LastSeen), {"payments": ROWS}, parallelism=(1, 2), sinks={"out": eager_table}, only=only)
    assert (found.scenario, found.phase, found.missing) == (only, "pre-committed", ())
    assert f"check(…, only={only!r})" in str(found)
    assert check(flow_of(LastSeen), {"payments": ROWS}, parallelism=(1, 2), only=only).crashes == 1


def test_a_function_that_raises_fails_the_check_with_its_error() -> None:
    def broken(card: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"card": card, "amount": 1 // (row["amount"] - 7), "total": 0}

    found = failure(flow_of(broken), {"payments": ROWS}, parallelism=1)
    assert "the job failed" in str(found)
    assert "ZeroDivisionError" in str(found)


def test_a_flow_from_which_nothing_comes_checks_nothing() -> None:
    found = failure(flow_of(LastSeen), {"payments": []})
    assert "no sink got a row" in str(found)


# ---------------------------------------------------------------- runs


@pytest.mark.slow
def test_the_same_scenario_gives_the_same_run_and_another_seed_another_one() -> None:
    tables = {"payments": tables_of("payments", ROWS, PAYMENTS)}
    flow = FlowUnderTest(rich_flow, tables, {}, (2, 1))
    crash = CrashPoint("decision", 2, "program")
    first, again, other = (run_flow(flow, FlowScenario(seed, 2, crash)) for seed in (3, 3, 4))
    assert (first.crashed, first.trouble) == (True, "")
    assert (first.trace, first.rows) == (again.trace, again.rows)
    assert other.trace != first.trace


@pytest.mark.parametrize(
    "scenario",
    [
        FlowScenario(7, 3),
        FlowScenario(7, 3, again=True),
        FlowScenario(7, 3, CrashPoint("commit globally", 12, "program")),
    ],
)
def test_a_scenario_is_found_by_its_name(scenario: FlowScenario) -> None:
    assert named(scenario.name) == scenario


def test_rows_are_compared_as_often_as_they_are_and_with_their_types() -> None:
    assert (
        difference("out", [{"a": 1, "b": [1]}, {"a": float("nan")}], [{"a": float("nan")}, {"b": [1], "a": 1}]) is None
    )
    found = difference("out", [{"a": 1}, {"a": 1}, {"a": 2}], [{"a": 1}, {"a": 2.0}])
    assert found is not None
    assert found.missing == ({"a": 1}, {"a": 2})
    assert found.unexpected == ({"a": 2.0},)


# ---------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": {}}, "no rows for source 'payments': add them to inputs"),
        ({"inputs": {"payments": ROWS, "orders": []}}, "inputs for 'orders': it has only 'payments'"),
        ({"inputs": {"payments": [{"crad": "a"}]}}, "columns that it lacks: crad; it has card, amount, at"),
        ({"inputs": {"payments": [{"card": 1}]}}, "column 'card' is string, but a row has 1"),
        ({"sinks": {"in": table}}, "sinks for 'in': it has only 'out'"),
        ({"crashes": "often"}, "crashes='often': use 'every phase'"),
        ({"parallelism": ()}, "give numbers from 1 to 16"),
        ({"parallelism": (1, 17)}, "give numbers from 1 to 16"),
        ({"seeds": ()}, "no seeds: give at least one"),
        ({"only": "0/1/lunch/3/process"}, "is not the name of a run: copy that from a failure"),
        ({"only": "0/1/ack/99/process", "parallelism": 1}, "the run does not come to that point"),
        ({"only": "0"}, "is not the name of a run: copy that from a failure"),
    ],
)
def test_wrong_use_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message.replace("(", r"\(")):
        check(flow_of(LastSeen), **{"inputs": {"payments": ROWS}, **options})


def test_a_source_that_does_not_replay_is_refused_as_in_production() -> None:
    flow = Dataflow("unstable")
    payments = flow.from_iterator("payments", lambda part, parts: [], schema=PAYMENTS, replayable=False)
    payments.sink("out", TableSink({}, {}))
    with pytest.raises(InvalidJob, match="no stable positions"):
        check(flow, {"payments": ROWS})


@pytest.mark.slow
def test_harnesses_do_not_need_what_the_simulation_needs() -> None:
    code = "import sys; import barrier_runtime.testing; print('greenlet' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
