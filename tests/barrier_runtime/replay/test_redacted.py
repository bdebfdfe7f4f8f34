"""Hidden columns and states are in no output of `replay` and `verify`: not in errors, differences and error rows."""

import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, MapState, UserCodeError, connect
from barrier_runtime.replay import replay, verify
from barrier_runtime.tools.replaying import lines

ROWS = [{"user": user, "n": n} for n, user in enumerate(["ann", "bob", "ann"])]
SCHEMA = {"user": str, "n": int}


class Seen:
    seen = MapState(str, int)
    raises = False
    added = 0  # a difference of the replay

    def process(self, user: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        if Seen.raises:
            raise ValueError(f"{user} is unknown")
        self.seen[f"of {user}"] = row["n"] + Seen.added
        yield {"user": user, "n": row["user"] if Seen.added else row["n"]}


class Marked(Seen):
    def process(self, user: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.seen[f"of {user}"] = row["n"] + Seen.added
        yield row


def rows_of(flow: Dataflow, name: str) -> Any:
    return flow.from_iterator(name, lambda index, of: iter(ROWS), schema=SCHEMA, splits=1)


def flow_of(make: Any) -> Dataflow:
    flow = Dataflow("hidden")
    keyed = rows_of(flow, "rows").key_by("user")
    keyed.process("seen", make, schema=SCHEMA).sink("out", CollectSink())
    return flow


@pytest.fixture
def job(tmp_path: Path) -> tuple[Dataflow, dict[str, Any]]:
    return ran(flow_of(Seen), tmp_path)


def ran(flow: Dataflow, folder: Path) -> tuple[Dataflow, dict[str, Any]]:
    flow.run_local(checkpoints=folder, parallelism=1)
    return flow, {"after": 0, "checkpoints": str(folder)}


def whole_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_error_of_a_function_is_hidden_from_verify(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, at = job
    monkeypatch.setattr(Seen, "raises", True)
    with pytest.raises(UserCodeError, match="ann is unknown"):
        verify(flow, **at)
    with pytest.raises(UserCodeError, match=r"'seen'.*ValueError.*hidden") as hidden:
        verify(flow, **at, redact=["user"])
    assert "ann" not in whole_text(hidden.value)
    done = replay(flow, "seen", **at, redact=["user"])
    assert "ValueError" in done.error
    assert "ann" not in done.error + "\n".join(lines(done.rows[0]))


@pytest.mark.parametrize("again", [verify, partial(replay, operator="seen")], ids=["verify", "replay"])
def test_error_of_a_row_that_misses_the_schema_is_hidden(job: Any, again: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, at = job
    monkeypatch.setattr(Seen, "added", 1)
    with pytest.raises(InvalidJob, match="a row has 'ann'"):
        again(flow, **at)
    shown: list[Any] = []
    told = {} if again is verify else {"told": lambda row: shown.extend(lines(row))}
    with pytest.raises(InvalidJob, match="hidden, because columns are") as hidden:
        again(flow, **at, redact=["user", "seen"], **told)
    assert "ann" not in whole_text(hidden.value) + "".join(shown)


def test_entries_of_a_hidden_map_are_in_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, at = ran(flow_of(Marked), tmp_path)
    monkeypatch.setattr(Seen, "added", 1)
    assert "of ann" in str(verify(flow, **at).differences)
    found = str(verify(flow, **at, redact=["user", "seen"]).differences)
    assert "state 'seen' of key user='***', ***" in found
    assert "ann" not in found


class Both:
    seen = MapState(str, int)

    def on_left(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.seen["n"] = row["n"] + Seen.added
        yield {"n": row["n"]}

    on_right = on_left


def test_key_columns_of_connected_inputs_are_hidden_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Dataflow("hidden")
    right = rows_of(flow, "named").map(lambda row: {"person": row["user"], "n": 0}, schema={"person": str, "n": int})
    inputs = connect(left=rows_of(flow, "rows").key_by("user"), right=right.key_by("person"))
    inputs.process("both", Both, schema={"n": int}).sink("out", CollectSink())
    flow, at = ran(flow, tmp_path)
    monkeypatch.setattr(Seen, "added", 1)
    assert "key_1='ann'" in str(verify(flow, **at).differences)
    for name in ("user", "person", "key_1"):
        found = str(verify(flow, **at, redact=[name]).differences)
        assert "key_1='***'" in found
        assert "ann" not in found


def test_rows_of_an_error_output_are_hidden(tmp_path: Path) -> None:
    def refuses(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(f"{row['user']} is unknown")

    flow = Dataflow("hidden")
    good, errors = rows_of(flow, "rows").map(refuses, name="refuses", schema=SCHEMA, on_error="side")
    good.sink("out", CollectSink())
    errors.map(lambda row: row, name="told").sink("bad", CollectSink())
    flow, at = ran(flow, tmp_path)
    for step in ("refuses", "told"):
        done = replay(flow, step, **at, redact=["user"])
        text = "\n".join(line for each in done.rows for line in lines(each))
        assert len(done.rows) == len(ROWS)
        assert "ValueError" in text
        assert "ann" not in text
