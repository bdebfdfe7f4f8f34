"""Replays of real local jobs: between two checkpoints that the job kept."""

import io
import pdb
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, JobFailed, ProcessContext, ValueState
from barrier_runtime.replay import replay
from barrier_runtime.replay.observing import ReplayedRow
from barrier_runtime.tools.replaying import lines
from tests.barrier_runtime.replay.two_checkpoints import ROWS, TwoCheckpoints, two_checkpoints


@pytest.fixture(scope="module", params=["rocksdb", pytest.param("memory", marks=pytest.mark.slow)])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TwoCheckpoints:
    return two_checkpoints(str(tmp_path_factory.mktemp("replayed")), backend=request.param)


def of_user(rows: list[dict[str, Any]], user: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["user"] == user]


def again(job: TwoCheckpoints, key: Any = "ann", **more: Any) -> Any:
    return replay(job.flow, "totals", key, after=job.before, until=job.until, checkpoints=job.folder, **more)


def everything(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_rows_of_a_key_between_two_checkpoints_with_state_before_and_after(job: TwoCheckpoints) -> None:
    done = again(job)
    assert [each.row for each in done.rows] == of_user(ROWS[job.rows_before : job.rows_until], "ann")
    earlier = of_user(ROWS[: job.rows_before], "ann")
    total = sum(row["n"] for row in earlier)
    kept = [row["n"] for row in earlier if row["n"] % 300 < 3]
    assert done.rows[0].before["kept"] == kept
    for each in done.rows:
        assert each.before["total"] == total
        total += each.row["n"]
        assert each.after["total"] == total
        assert each.after["seen"][str(each.row["n"] % 2)] == each.row["n"]
        assert each.emitted == [{"user": "ann", "total": total}]
    assert not done.error
    assert done.read == job.rows_until - job.rows_before


@pytest.mark.slow
def test_nothing_is_written_where_the_job_is_and_no_sink_is_run(job: TwoCheckpoints) -> None:
    before, (sink,) = everything(job.folder), [node for node in job.flow.plan.nodes if node.name == "out"]
    operator = sink.make("out")  # type: ignore[union-attr]
    visible = len(operator.fresh_sink().rows())  # type: ignore[attr-defined]
    again(job)
    assert everything(job.folder) == before
    assert len(operator.fresh_sink().rows()) == visible  # type: ignore[attr-defined]


@pytest.mark.slow
def test_without_state_it_begins_with_the_first_row(job: TwoCheckpoints) -> None:
    done = replay(job.flow, "totals", "bob", after=0, until=job.before, checkpoints=job.folder)
    assert [each.row for each in done.rows] == of_user(ROWS[: job.rows_before], "bob")
    assert done.rows[0].before == {} or "total" not in done.rows[0].before


@pytest.mark.slow
def test_without_a_later_checkpoint_it_reads_all_that_is_there(job: TwoCheckpoints) -> None:
    done = replay(job.flow, "totals", "cid", after=job.until, checkpoints=job.folder)
    assert [each.row for each in done.rows] == of_user(ROWS[job.rows_until :], "cid")


@pytest.mark.slow
def test_all_rows_of_a_step_without_key(job: TwoCheckpoints) -> None:
    done = replay(job.flow, "filter-1", after=job.before, until=job.until, checkpoints=job.folder)
    assert [each.row for each in done.rows] == ROWS[job.rows_before : job.rows_until]


@pytest.mark.slow
def test_one_row_of_a_source(job: TwoCheckpoints) -> None:
    at = job.rows_before + 31
    done = replay(job.flow, "filter-1", after=job.before, until=job.until, checkpoints=job.folder, row=f"0-of-1:{at}")
    assert [each.row for each in done.rows] == [ROWS[at]]


@pytest.mark.slow
def test_the_debugger_stops_in_the_users_function(job: TwoCheckpoints) -> None:
    said = io.StringIO()
    commands = io.StringIO("p row['n'], user\nquit_after = 1\ncontinue\n" * 3 + "continue\n" * 2_000)
    again(job, stop=pdb.Pdb(stdin=commands, stdout=said, nosigint=True, readrc=False))
    told = said.getvalue()
    first = of_user(ROWS[job.rows_before : job.rows_until], "ann")[0]
    assert f"({first['n']}, 'ann')" in told
    assert "two_checkpoints.py" in told
    assert "process()" in told
    assert f"row 0: {first}" in told


@pytest.mark.slow
@pytest.mark.parametrize("left", ["quit\n", ""], ids=["quit", "end of input"])
def test_who_leaves_the_debugger_ends_the_replay_and_has_seen_no_error(job: TwoCheckpoints, left: str) -> None:
    commands = io.StringIO("continue\n" * 2 + left)
    done = again(job, stop=pdb.Pdb(stdin=commands, stdout=io.StringIO(), nosigint=True, readrc=False))
    assert (done.error, len(done.rows)) == ("", 2), "the third has not been processed"


@pytest.mark.slow
def test_masked_columns_are_hidden_in_rows_and_state(job: TwoCheckpoints) -> None:
    told: list[ReplayedRow] = []
    done = again(job, redact=["user", "seen"], told=told.append)
    assert tuple(told) == done.rows
    text = "\n".join(line for each in done.rows for line in lines(each))
    assert "ann" not in text
    assert done.rows[0].row["user"] == "***"
    assert done.rows[0].before["seen"] == "***"


@pytest.mark.slow
def test_what_is_not_there_is_refused_by_name(job: TwoCheckpoints) -> None:
    with pytest.raises(InvalidJob, match="has no step 'out'"):
        replay(job.flow, "out", "ann", after=job.before, checkpoints=job.folder)
    with pytest.raises(InvalidJob, match="no completed checkpoint 99999"):
        replay(job.flow, "totals", "ann", after=99_999, checkpoints=job.folder)
    with pytest.raises(InvalidJob, match="give a value for each"):
        replay(job.flow, "totals", ("ann", 1), after=job.before, checkpoints=job.folder)
    with pytest.raises(InvalidJob, match="give checkpoints="):
        replay(job.flow, "totals", "ann", after=1)
    for step in ("totals", "filter-1"):
        with pytest.raises(
            InvalidJob, match=r"no column 'usr', which the key names \(did you mean 'user'\?\): use one of"
        ):
            replay(job.flow, step, {"usr": "ann"}, after=job.before, until=job.until, checkpoints=job.folder)
    with pytest.raises(
        InvalidJob, match="row '0-of-1:3' is one of a source, and step 'totals' is in one chain with none"
    ):
        replay(job.flow, "totals", after=job.before, until=job.until, checkpoints=job.folder, row="0-of-1:3")


class Fails:
    total = ValueState(int)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        self.total.value = (self.total.value or 0) + row["n"]
        if row["n"] == 900:
            raise ValueError(f"cannot do {row['n']}")
        yield {"user": user, "total": self.total.value}


def failing() -> Dataflow:
    from tests.barrier_runtime.replay.two_checkpoints import flow_of

    return flow_of(Fails)


@pytest.mark.slow
def test_a_failure_is_met_again_with_the_row_before_it(tmp_path: Path) -> None:
    flow = failing()
    with pytest.raises(JobFailed) as failure:
        flow.run_local(checkpoints=tmp_path, parallelism=2, checkpoint_interval=0.1, restart="none", retained=100)
    told = str(failure.value)
    command = next(line.strip() for line in told.splitlines() if "barrier-runtime replay" in line)
    assert f"--checkpoints {tmp_path}" in command or f"--checkpoints file://{tmp_path}" in command
    assert "--operator totals" in command
    assert "--key user=ann" in command
    after = int(command.split("--from ")[1].split()[0])
    done = replay(flow, "totals", "ann", after=after, checkpoints=str(tmp_path))
    assert "cannot do 900" in done.error
    assert done.rows[-1].row == {"user": "ann", "n": 900}
    assert "cannot do 900" in done.rows[-1].error
    assert done.rows[-1].before["total"] == sum(range(0, 900, 3))


def test_a_source_that_gives_its_rows_once_is_refused_before_anything_runs(tmp_path: Path) -> None:
    flow = Dataflow("once")
    rows = flow.from_iterator("rows", lambda index, of: iter([{"n": 1}]), schema={"n": int}, splits=1, replayable=False)
    rows.map(lambda row: row).sink("out", CollectSink())
    flow.run_local(checkpoints=tmp_path, parallelism=1, mode="at_least_once")
    with pytest.raises(InvalidJob, match="rows of it are gone:\n  source 'rows': it has no stable positions"):
        replay(flow, "map-1", after=0, checkpoints=str(tmp_path))


@pytest.mark.slow
def test_rows_of_a_side_output_of_errors_say_how_to_meet_them_again(tmp_path: Path) -> None:
    def refuses(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 17:
            raise ValueError("17 is bad")
        return row

    rows = [{"user": "ann", "n": n} for n in range(100)]
    flow, bad = Dataflow("letters"), CollectSink()
    read = flow.from_iterator("rows", lambda index, of: iter(rows), schema={"user": str, "n": int}, splits=1)
    good, errors = read.map(refuses, name="refuses", schema={"user": str, "n": int}, on_error="side")
    good.sink("good", CollectSink())
    errors.sink("bad", bad)
    flow.run_local(checkpoints=tmp_path, parallelism=1)
    (letter,) = bad.rows()
    command = letter["replay"]
    assert "--from 0 --operator refuses --row 0-of-1:" in command
    row = command.split("--row ")[1]
    done = replay(flow, "refuses", after=0, checkpoints=str(tmp_path), row=row)
    (met,) = [each for each in done.rows if each.side]
    assert met.row == {"user": "ann", "n": 17}
    assert met.side["errors"][0]["message"] == "17 is bad"
    assert not met.side["errors"][0]["replay"]
