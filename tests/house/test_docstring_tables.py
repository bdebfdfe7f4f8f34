"""Tables in docstrings match the code: each is parsed and compared with the code, or is listed here as prose."""

import ast
import re
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from barrier_runtime.coordinator.log import lease
from barrier_runtime.coordinator.status import health
from barrier_runtime.coordinator.status.why import bottleneck
from barrier_runtime.coordinator.status.why import checkpoint as why
from barrier_runtime.runtime import execution
from barrier_runtime.runtime.sinks import driver, global_committer
from barrier_runtime.runtime.sinks.global_committer import GlobalCommitDriver, GlobalEffect
from tests.parsed import nodes

ROOT = Path(__file__).resolve().parents[2]
Row = tuple[str, ...]

PROSE = {  # tables that no code holds as data
    "barrier_runtime/carriers/slots.py": "calls: tests/barrier_runtime/launch/test_processes.py",
    "barrier_runtime/connectors/kafka/sink/at_least_once.py": "moves: kafka/test_flights.py",
    "coordinator/log/manifest.py": "moves and crash points: tests/coordinator/log/test_decided.py",
    "barrier_runtime/connectors/memory/batch_function.py": "cases: tests/barrier_runtime/connectors/memory",
    "barrier_runtime/connectors/files/source/csv_rows.py": "cases: tests/field/local/test_csv.py",
    "barrier_runtime/connectors/files/sink/commit_record.py": "versions: files/test_commit_blocks.py",
    "barrier_runtime/connectors/files/sink/compaction.py": "crash points: tests/barrier_runtime/connectors/files",
    "barrier_runtime/connectors/files/sink/open_files.py": "moves: tests/barrier_runtime/connectors/files",
    "barrier_runtime/connectors/files/paths.py": "cases: tests/barrier_runtime/connectors/files",
    "barrier_runtime/connectors/sink_bases/sql/sink.py": "crash points: tests/ends/test_sql_sinks.py",
    "barrier_runtime/connectors/iceberg/table.py": "cases: tests/ends/test_iceberg.py",
    "barrier_runtime/connectors/clickhouse/sink.py": "types, cases: tests/ends/test_clickhouse.py",
    "barrier_runtime/connectors/kinesis/reader.py": "moves: tests/barrier_runtime/connectors/kinesis",
    "barrier_runtime/connectors/postgres/changes/position.py": "cases: tests/ends/test_postgres_changes.py",
    "barrier_runtime/connectors/postgres/changes/snapshot.py": "crash points: tests/ends/test_postgres_changes.py",
    "barrier_runtime/connectors/postgres/earlier.py": "cases: tests/ends/test_postgres_earlier.py",
    "barrier_runtime/data/values/into_columns.py": "types, by rules: tests/barrier_runtime/data/values",
    "state/store/s3/by_obstore.py": "requests: tests/state/store/test_s3_by_obstore.py",
    "barrier_runtime/connectors/sink_bases/file_committable.py": "cases: tests of the sweep",
    "barrier_runtime/connectors/sink_bases/write_ahead.py": "crash points: certify goes through them",
    "barrier_runtime/launch/local_handle.py": "cases: tests/barrier_runtime/launch/test_local_handle.py",
    "coordinator/log/kinds.py": "cases: tests/coordinator/log/test_kinds.py",
    "coordinator/log/restore_choice.py": "cases: tests/coordinator/savepoints",
    "coordinator/savepoint_import.py": "crash points: tests/coordinator/savepoints",
    "coordinator/server/web/sessions.py": "requests: tests/coordinator/server/web/test_pages.py",
    "state/kv/side_by_side.py": "states: tests/state/backend/test_side_by_side.py",
    "state/snapshots/plan.py": "cases: tests/state/backend/test_narrowed_restore.py, test_side_by_side.py",
    "state/backend/restore.py": "cases: tests/state/backend/test_checkpoint_after_a_restore.py",
}


def tables(docstring: str | None) -> list[list[Row]]:
    """Rows of cells without the head; a row whose first cell is empty continues the previous row."""
    found: list[list[Row]] = []
    inside = False
    for line in (docstring or "").splitlines():
        if not line.lstrip().startswith("|"):
            inside = False
            continue
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if not inside:
            found.append([])
        elif not set("".join(cells)) <= {"-"}:
            found[-1].append(cells)
        inside = True
    return found


def column(rows: list[Row], number: int) -> list[str]:
    return [row[number] for row in rows if row[number]]


def test_the_states_of_a_jobs_condition() -> None:
    (rows,) = tables(health.__doc__)
    told = [state for cell in column(rows, 0) for state in cell.split()]
    assert told == list(typing.get_args(health.State))


def test_how_a_lease_is_judged() -> None:
    found, _ = tables(lease.__doc__)
    judged = {row[1] for row in found if len(row) == 3}
    assert judged == {state.name for state in lease.LeaseState}


def test_the_moves_of_a_transaction() -> None:
    (rows,) = tables(driver.__doc__)
    moves, stage = [], ""
    for row in rows:
        stage = row[0] or stage
        if row[2]:
            moves.append((stage, row[2]))
    gone = {driver.Stage.VISIBLE: "gone"}
    assert sorted(moves) == sorted((was.name, gone.get(now, now.name)) for (was, _), now in driver._MOVES.items())


def test_the_effects_of_a_transactions_moves() -> None:
    (rows,) = tables(driver.__doc__)
    known = {effect.__name__ for effect in typing.get_args(driver.Effect)}
    told = {name for cell in column(rows, 3) for name in known if re.search(rf"\b{name}\b", cell)}
    assert told == known - {"Recover"}, "what is restored is no transaction of this incarnation"


def test_the_parts_of_a_generation() -> None:
    (rows,) = tables(execution.__doc__)
    told = [cell.strip("`").rpartition(".") for cell in column(rows, 0)]
    parts = [(getattr(execution, name).__module__, name) for _, _, name in told]
    assert parts == [(f"barrier_runtime.runtime.{module}", name) for module, _, name in told]


# ------------------------------------------------------------ of the global committer, carried out


def idle() -> GlobalCommitDriver:
    committer = GlobalCommitDriver()
    committer.wanted(1, tuple)
    committer.committed()
    return committer


def busy() -> GlobalCommitDriver:
    committer = idle()
    committer.wanted(2, tuple)
    return committer


def backoff() -> GlobalCommitDriver:
    committer = busy()
    committer.failed("no answer", 0.0)
    return committer


STATES: dict[str, Callable[[], GlobalCommitDriver]] = {"idle": idle, "busy n": busy, "backoff": backoff}
EVENTS: dict[str, Callable[[GlobalCommitDriver], list[GlobalEffect]]] = {
    "wanted n > done": lambda committer: committer.wanted(2, tuple),
    "wanted m > n": lambda committer: committer.wanted(3, tuple),
    "committed": lambda committer: committer.committed(),
    "failed": lambda committer: committer.failed("no answer", 0.0),
    "the time has come": lambda committer: committer.retry(),
    "wanted n <= done": lambda committer: committer.wanted(1, tuple),
}


def state_of(committer: GlobalCommitDriver) -> str:
    return "busy" if committer._under_way is not None else "backoff" if committer._waits else "idle"


@pytest.mark.parametrize("row", tables(global_committer.__doc__)[0], ids=" / ".join)
def test_a_move_of_the_global_committer(row: Row) -> None:
    state, event, following, effect = row
    for name in STATES if state == "any" else [state]:
        committer = STATES[name]()
        given = [type(each).__name__ for each in EVENTS[event](committer)]
        always, _, _ = effect.partition(";")
        known = [each.__name__ for each in typing.get_args(GlobalEffect)]
        assert given == [each for each in re.findall(r"\w+", always) if each in known]
        assert state_of(committer) == (name if following == "same" else following).split()[0]


def test_the_global_committer_goes_on_with_the_wish_that_waits() -> None:
    """Covers the table's text after a semicolon."""
    committer = busy()
    committer.wanted(3, tuple)
    assert [type(each).__name__ for each in committer.committed()] == ["ReportGlobally", "CommitAll"]


def test_every_event_of_the_global_committer_is_in_its_table() -> None:
    (rows,) = tables(global_committer.__doc__)
    assert {row[1] for row in rows} == EVENTS.keys()
    assert {row[0] for row in rows} == {*STATES, "any"}


def causes_given_in(module: typing.Any) -> set[str]:
    file = str(Path(module.__file__).resolve().relative_to(ROOT))
    calls = [node for node in nodes(file) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Reason"]
    return {ast.literal_eval(call.args[0]) for call in calls}


def test_every_cause_of_a_slow_checkpoint_is_in_its_table() -> None:
    (rows,) = tables(why.__doc__)
    told = {cell.strip("`") for cell in column(rows, 1)}
    assert told == set(why.CAUSES[: why.CAUSES.index("unclear") + 1])
    assert causes_given_in(why) == set(why.CAUSES)


def test_every_bottleneck_is_in_its_table() -> None:
    (rows,) = tables(bottleneck.__doc__)
    assert {cell.strip("`") for cell in column(rows, 0)} == causes_given_in(bottleneck)


# ------------------------------------------------------------ completeness


def test_every_table_is_compared_or_is_prose() -> None:
    compared = {
        str(Path(module.__file__ or "").resolve().relative_to(ROOT))
        for module in (health, lease, driver, global_committer, execution, why, bottleneck)
    }
    holding = set()
    for package in ("barrier_runtime", "coordinator", "state"):
        for path in (ROOT / package).rglob("*.py"):
            file = str(path.resolve().relative_to(ROOT))
            owners = [node for node in nodes(file) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
            if any(tables(ast.get_docstring(owner)) for owner in owners):
                holding.add(file)
    assert holding == compared | PROSE.keys()
