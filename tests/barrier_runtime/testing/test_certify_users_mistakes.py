"""Mistakes of users' sinks that show only in calls, neighbours and errors of production: `certify` finds them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.testing import NotCertified, certify

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]


class Table:
    """Target in memory. Each method is a single step, like a server's."""

    def __init__(self) -> None:
        self.staged: dict[str, tuple[str, str, int, int, Rows]] = {}
        self.shown: dict[str, Rows] = {}
        self.number = 0

    def name(self) -> str:
        self.number += 1
        return str(self.number)

    def read(self) -> Rows:
        return [row for rows in self.shown.values() for row in rows]


class TableSink(TwoPhaseCommitSink):
    """Correct."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def open(self, context: SinkContext) -> None:
        self.context = context
        self.opened: Rows = []  # the newest transaction

    def begin_transaction(self) -> Rows:
        self.opened = []
        return self.opened

    def write(self, transaction: Rows, rows: pa.RecordBatch) -> None:
        transaction.extend(rows.to_pylist())

    def pre_commit(self, transaction: Rows, checkpoint: int) -> bytes | None:
        return self.stage(self.table.name(), transaction) if transaction else None

    def stage(self, name: str, rows: Rows) -> bytes:
        me = self.context
        self.table.staged[name] = (me.job, me.sink, me.token, me.subtask, rows)
        return name.encode()

    def commit(self, committable: bytes) -> None:
        name = committable.decode()
        if name not in self.table.shown:
            self.table.shown[name] = self.table.staged.pop(name)[-1]

    def abort(self, committable: bytes) -> None:
        self.table.staged.pop(committable.decode(), None)

    def recover(self, decided: Sequence[bytes]) -> None:
        super().recover(decided)
        for name, (job, sink, token, subtask, _) in list(self.table.staged.items()):
            me = self.context
            if token < me.token and subtask % me.parallelism == me.subtask and self.owns(job, sink):
                del self.table.staged[name]

    def owns(self, job: str, sink: str) -> bool:
        return (job, sink) == (self.context.job, self.context.sink)


class WritesTheFirstRow(TableSink):
    def write(self, transaction: Rows, rows: pa.RecordBatch) -> None:
        transaction.append({name: rows.column(name)[0].as_py() for name in rows.schema.names})


class TakesLists(TableSink):
    def write_few(self, transaction: Rows, rows: FewRows) -> None:
        transaction.extend(
            dict(zip(rows.schema.names, values, strict=True)) for values in zip(*rows.columns, strict=True)
        )


class ReplacesListsByTheLast(TableSink):
    def write_few(self, transaction: Rows, rows: FewRows) -> None:
        transaction[:] = [
            dict(zip(rows.schema.names, values, strict=True)) for values in zip(*rows.columns, strict=True)
        ][-1:]


class RefusesLists(TableSink):
    def write_few(self, transaction: Rows, rows: FewRows) -> None:
        raise AssertionError("not in production")


class WritesItself(RefusesLists):
    """Correct: a subclass with a `write` of its own gets all rows there."""

    def write(self, transaction: Rows, rows: pa.RecordBatch) -> None:
        transaction.extend(rows.to_pylist())


class SwapsValues(TableSink):
    def write(self, transaction: Rows, rows: pa.RecordBatch) -> None:
        transaction.extend({**row, "value": row["id"]} for row in rows.to_pylist())


class LosesAColumn(TableSink):
    def write(self, transaction: Rows, rows: pa.RecordBatch) -> None:
        transaction.extend({**row, "key": None} for row in rows.to_pylist())


class FlushesOnClose(TableSink):
    """As a file that closes in place, or a connection that commits when it closes."""

    def close(self) -> None:
        if self.opened:
            self.commit(self.stage(self.table.name(), self.opened))


class SweepsOtherJobs(TableSink):
    def owns(self, job: str, sink: str) -> bool:
        return sink == self.context.sink


class SweepsOtherSinks(TableSink):
    def owns(self, job: str, sink: str) -> bool:
        return job == self.context.job


class NamesWithoutTheSink(TableSink):
    def pre_commit(self, transaction: Rows, checkpoint: int) -> bytes | None:
        me = self.context
        name = f"{me.job}-{me.lineage}-{me.token}-{me.subtask}-{checkpoint}"
        return self.stage(name, transaction) if transaction else None


class CommitsOnlyGlobally(TableSink):
    """Correct: `commit` has nothing to do, and production does not call it."""

    global_committer = True
    commits_only_globally = True

    def commit(self, committable: bytes) -> None:
        raise AssertionError("not in production")

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        for committable in committables:
            super().commit(committable)

    def recover(self, decided: Sequence[bytes]) -> None:
        for name, (job, sink, token, subtask, _) in list(self.table.staged.items()):
            me = self.context
            old = token < me.token and subtask % me.parallelism == me.subtask and self.owns(job, sink)
            if old and name.encode() not in decided:
                del self.table.staged[name]


class NeedsEachCommit(CommitsOnlyGlobally):
    commits_only_globally = True

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self.committed: list[bytes] = []

    def commit(self, committable: bytes) -> None:
        self.committed.append(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        super().commit_globally(checkpoint, [each for each in committables if each in self.committed])


def certified(make: Callable[[Table], TwoPhaseCommitSink], **settings: Any) -> Any:
    table = Table()
    return certify(
        lambda: make(table),
        table.read,
        reset=table.__init__,  # type: ignore[misc]
        leftovers=lambda: list(table.staged),
        ordered=True,
        scenarios=40,
        seeds=4,
        **settings,
    )


@pytest.mark.parametrize("sink", [TableSink, TakesLists, WritesItself, CommitsOnlyGlobally])
def test_correct_sinks_of_users_pass(sink: type[TableSink]) -> None:
    assert certified(sink).guarantee == "exactly once"


@pytest.mark.parametrize(
    ("sink", "rule", "scenario"),
    [
        pytest.param(WritesTheFirstRow, "lost", "batches", id="only the first row of a batch"),
        pytest.param(ReplacesListsByTheLast, "lost", "lists", id="only the last row of lists"),
        pytest.param(SwapsValues, "altered", "straight plain", id="a value of another column"),
        pytest.param(LosesAColumn, "altered", "straight plain", id="a column is lost"),
        pytest.param(FlushesOnClose, "undecided visible", "closed at work", id="close shows rows"),
        pytest.param(SweepsOtherJobs, "lost", "two jobs", id="sweeps another job"),
        pytest.param(SweepsOtherSinks, "lost", "two sinks", id="sweeps another sink"),
        pytest.param(NamesWithoutTheSink, "lost", "two sinks", id="names without the sink"),
        pytest.param(NeedsEachCommit, "lost", "straight plain", id="a commit that is never called"),
    ],
)
def test_a_mistake_is_found_and_named(sink: type[TableSink], rule: str, scenario: str) -> None:
    with pytest.raises(NotCertified) as failed:
        certified(sink)
    assert (failed.value.rule, failed.value.scenario) == (rule, scenario), str(failed.value)


def test_an_altered_row_is_shown_beside_what_was_written() -> None:
    with pytest.raises(NotCertified, match=r"value of row \d+ .* is \d+; written was \d+"):
        certified(SwapsValues)


def test_readers_may_return_numbers_as_text_and_leave_columns_out() -> None:
    table = Table()
    rows = lambda: [{"id": row["id"], "value": str(row["value"])} for row in table.read()]  # noqa: E731
    assert certify(lambda: TableSink(table), rows, scenarios=4, seeds=1)


def test_rows_may_be_others_in_each_generation() -> None:
    """An undecided row that another generation replaced is not missed."""
    table, made = Table(), iter(range(10**9))
    certify(
        lambda: TableSink(table),
        table.read,
        make_row=lambda number: {"id": number, "key": "k", "value": next(made)},
        scenarios=20,
        seeds=2,
    )


# ---------------------------------------------------------------- a write of a file that fails


class FolderSink(TwoPhaseCommitSink):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, context: SinkContext) -> None:
        self.context = context
        for name in ("staged", "out"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def begin_transaction(self) -> Rows:
        return []

    def write(self, transaction: Rows, rows: pa.RecordBatch) -> None:
        transaction.extend(rows.to_pylist())

    def pre_commit(self, transaction: Rows, checkpoint: int) -> bytes | None:
        if not transaction:
            return None
        name = f"{self.context.new_id()}.json"
        (self.folder / "staged" / name).write_text(json.dumps(transaction))
        return name.encode()

    def commit(self, committable: bytes) -> None:
        staged, out = (self.folder / name / committable.decode() for name in ("staged", "out"))
        if not out.exists():
            staged.rename(out)

    def abort(self, committable: bytes) -> None:
        (self.folder / "staged" / committable.decode()).unlink(missing_ok=True)


class EmptiesTheTransactionFirst(FolderSink):
    def pre_commit(self, transaction: Rows, checkpoint: int) -> bytes | None:
        rows, transaction[:] = list(transaction), []
        return super().pre_commit(rows, checkpoint)


class WritesAFileOnce(FolderSink):
    def pre_commit(self, transaction: Rows, checkpoint: int) -> bytes | None:
        if not transaction:
            return None
        me = self.context
        name = f"{me.job}-{me.sink}-{me.lineage}-{me.token}-{me.subtask}-{checkpoint}.json"
        with open(self.folder / "staged" / name, "x") as file:
            file.write(json.dumps(transaction))
        return name.encode()


def certified_files(sink: type[FolderSink], folder: Path, **settings: Any) -> Any:
    def read() -> Rows:
        return [row for path in (folder / "out").glob("*.json") for row in json.loads(path.read_text())]

    return certify(lambda: sink(folder), read, scenarios=0, seeds=(), **settings)


def test_a_sink_that_tries_a_failed_write_again_passes(tmp_path: Path) -> None:
    assert certified_files(FolderSink, tmp_path).scenarios > 20


@pytest.mark.parametrize(("sink", "rule"), [(EmptiesTheTransactionFirst, "lost"), (WritesAFileOnce, "raises")])
def test_a_pre_commit_that_cannot_be_repeated_is_found(sink: type[FolderSink], rule: str, tmp_path: Path) -> None:
    with pytest.raises(NotCertified) as failed:
        certified_files(sink, tmp_path)
    assert failed.value.rule == rule, str(failed.value)
    assert failed.value.scenario.startswith("full ")
    with pytest.raises(NotCertified):
        certified_files(sink, tmp_path, only=failed.value.scenario)
