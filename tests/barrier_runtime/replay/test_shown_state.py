"""State beside replayed rows is that of the row's key, or no state is shown."""

import datetime as dt
import io
import pdb
from collections.abc import Iterator
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, Tumbling, ValueState, count
from barrier_runtime.replay import replay
from barrier_runtime.tools import replaying

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
ROWS = [{"user": "ab"[n % 2], "n": n, "at": BEGIN + dt.timedelta(seconds=n)} for n in range(6)]
SCHEMA = {"user": str, "n": int, "at": dt.datetime}


class Total:
    total = ValueState(int, default=0)

    def process(self, user: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.total.value += row["n"]
        yield {"user": user, "n": self.total.value}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataflow, str]:
    flow, folder = Dataflow("shown"), str(tmp_path_factory.mktemp("shown"))
    read = flow.from_iterator("rows", lambda index, of: iter(ROWS), schema=SCHEMA, splits=1, event_time="at")
    keyed = read.key_by("user")
    keyed.process("totals", Total, schema={"user": str, "n": int}).sink("out", CollectSink())
    hours = keyed.window("hours", Tumbling(dt.timedelta(seconds=2)), event_time="at").aggregate(rows=count())
    hours.sink("counts", CollectSink())
    flow.run_local(checkpoints=folder, parallelism=1)
    return flow, folder


def test_rows_of_several_keys_are_shown_without_state(job: tuple[Dataflow, str]) -> None:
    flow, folder = job
    done = replay(flow, "totals", after=0, checkpoints=folder)
    assert [each.row["n"] for each in done.rows if each.row] == list(range(6))
    assert [row["n"] for row in done.emitted] == [0, 1, 2, 4, 6, 9]
    assert not any(each.before or each.after for each in done.rows)
    assert done.without_state == "state is shown with --key for the whole key: user"
    other = replay(flow, "totals", {"n": 3}, after=0, checkpoints=folder)
    assert [(each.row["n"], each.before, each.after) for each in other.rows if each.row] == [(3, {}, {})]
    assert other.without_state == done.without_state


def test_time_is_shown_without_state_of_several_keys_if_it_emits(job: tuple[Dataflow, str]) -> None:
    flow, folder = job
    done = replay(flow, "hours", after=0, checkpoints=folder)
    assert len(done.emitted) == 6
    assert not any(each.before or each.after for each in done.rows)
    assert all(each.row or each.emitted for each in done.rows)


def test_state_of_the_given_key_is_shown(job: tuple[Dataflow, str]) -> None:
    flow, folder = job
    for key in ("b", {"user": "b"}):
        done = replay(flow, "totals", key, after=0, checkpoints=folder)
        states = [(each.before.get("total"), each.after["total"]) for each in done.rows if each.row]
        assert states == [(None, 1), (1, 4), (4, 9)]
        assert not done.without_state


def test_the_debugger_shows_no_state_of_another_key(job: tuple[Dataflow, str]) -> None:
    flow, folder = job
    for key, shown in ((None, False), ("b", True)):
        out = io.StringIO()
        debugger = pdb.Pdb(stdin=io.StringIO("continue\n" * 100), stdout=out, nosigint=True, readrc=False)
        replay(flow, "totals", key, after=0, checkpoints=folder, stop=debugger)
        assert ("state: " in out.getvalue()) is shown


def test_the_command_says_how_state_is_shown(job: tuple[Dataflow, str], capsys: pytest.CaptureFixture[str]) -> None:
    flow, folder = job
    for keys, said in (([], True), (["b"], False)):
        replaying.replayed(flow, "totals", keys, "0", None, folder, row=None, stop=False, redact=[])
        assert ("state is shown with --key" in capsys.readouterr().out) is said
