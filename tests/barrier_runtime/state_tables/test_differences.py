"""Differences between two checkpoints: inserted, changed and deleted entries, and no others."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from command_line import run_here

from barrier_runtime import CollectSink, Dataflow, InvalidJob, MapState, ProcessContext, ValueState, count
from barrier_runtime.bootstrap import write_savepoint
from barrier_runtime.state_tables import open_checkpoint
from barrier_runtime.state_tables.differences import StateDifference, diff


class Pages:
    last = ValueState(int)
    pages = MapState(str, int)

    def process(self, user: str, row: dict[str, Any], ctx: ProcessContext) -> None:
        return None


def flow() -> Dataflow:
    flow = Dataflow("differs")
    read = flow.from_iterator("rows", lambda index, of: iter(()), schema={"user": str, "n": int}, splits=1)
    read.key_by("user").process("pages", Pages, schema={"user": str}).sink("out", CollectSink())
    read.key_by("user").aggregate("sums", rows=count()).sink("totals", CollectSink())
    return flow


USERS = [f"u{n}" for n in range(50)]


def written(
    folder: Path, values: dict[str, int], pages: dict[tuple[str, str], int], sums: dict[str, int], **more: Any
) -> str:
    states = {
        ("pages", "last"): pa.table({"user": list(values), "value": list(values.values())}),
        ("pages", "pages"): pa.table(
            {"user": [u for u, _ in pages], "entry": [e for _, e in pages], "value": list(pages.values())}
        ),
        ("sums", "running"): pa.table({"user": list(sums), "rows": list(sums.values())}),
    }
    write_savepoint(str(folder), flow=flow(), states=states, **more)
    return str(folder)


def found_between(one: str, other: str, *of: str) -> list[StateDifference]:
    with open_checkpoint(one) as before, open_checkpoint(other) as after:
        return sorted(
            diff(before, after, *of), key=lambda each: (each.operator, each.state, str(each.key), str(each.beside))
        )


@pytest.mark.parametrize("parallelism", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_inserted_changed_and_deleted_entries_are_found_at_any_parallelism(tmp_path: Path, parallelism: int) -> None:
    values = dict(zip(USERS, range(50), strict=True))
    pages = {(user, "home"): 1 for user in USERS}
    sums = dict.fromkeys(USERS, 7)
    one = written(tmp_path / "one", values, pages, sums)
    changed = {**values, "u3": 99, "new": 1}
    del changed["u4"]
    other = written(
        tmp_path / "other", changed, {**pages, ("u5", "cart"): 2}, {**sums, "u6": 8, "u7": 9}, parallelism=parallelism
    )
    told = [
        (e.operator, e.state, e.change, e.key["user"], e.beside, e.before, e.after) for e in found_between(one, other)
    ]
    assert told == [
        ("pages", "last", "inserted", "new", None, None, 1),
        ("pages", "last", "changed", "u3", None, 3, 99),
        ("pages", "last", "deleted", "u4", None, 4, None),
        ("pages", "pages", "inserted", "u5", "cart", None, 2),
        ("sums", "running", "changed", "u6", None, {"rows": 7}, {"rows": 8}),
        ("sums", "running", "changed", "u7", None, {"rows": 7}, {"rows": 9}),
    ]
    assert [each.state for each in found_between(one, other, "pages", "pages")] == ["pages"]
    assert found_between(other, other) == []


@pytest.mark.slow
def test_subtasks_whose_files_are_the_same_are_not_read(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"a": 1}, {("a", "x"): 1}, {"a": 1})
    other = str(tmp_path / "other")
    write_savepoint(other, flow=flow(), base=one, states={("sums", "running"): pa.table({"user": ["a"], "rows": [2]})})
    with open_checkpoint(one) as before, open_checkpoint(other) as after:
        opened: list[Path] = []
        make = after.folder
        after.folder = lambda: opened.append(make()) or opened[-1]  # type: ignore[assignment,method-assign,func-returns-value]
        assert list(diff(before, after, "pages")) == []
        assert opened == []
        assert [each.change for each in diff(before, after, "sums")] == ["changed"]


@pytest.mark.slow
def test_states_of_columns_are_held_a_subtask_at_a_time(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"a": 1}, {("a", "x"): 1}, dict.fromkeys(USERS, 1), parallelism=5)
    other = written(tmp_path / "other", {"a": 1}, {("a", "x"): 1}, dict.fromkeys(USERS, 2), parallelism=5)
    with open_checkpoint(one) as before, open_checkpoint(other) as after:
        opened: list[Path] = []
        make = after.folder
        after.folder = lambda: opened.append(make()) or opened[-1]  # type: ignore[assignment,method-assign,func-returns-value]
        found = diff(before, after, "sums")
        assert next(found).change == "changed"
        before_rest = len(opened)
        assert (len(list(found)), len(opened) - before_rest) == (len(USERS) - 1, 4)


def test_a_wide_subtask_is_decoded_once_for_all_narrow_ones(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"a": 1}, {("a", "x"): 1}, dict.fromkeys(USERS, 1), parallelism=1)
    other = written(tmp_path / "other", {"a": 1}, {("a", "x"): 1}, dict.fromkeys(USERS, 2), parallelism=16)
    with open_checkpoint(one) as before, open_checkpoint(other) as after:
        opened: list[Path] = []
        make = before.folder
        before.folder = lambda: opened.append(make()) or opened[-1]  # type: ignore[assignment,method-assign,func-returns-value]
        found = list(diff(before, after, "sums"))
    assert sorted(each.key["user"] for each in found) == sorted(USERS)
    assert {(each.change, each.before["rows"], each.after["rows"]) for each in found} == {("changed", 1, 2)}
    assert len(opened) == 2, "the state's single entries, then the rows"


@pytest.mark.slow
def test_other_key_groups_are_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"a": 1}, {("a", "x"): 1}, {"a": 1})
    other = written(tmp_path / "other", {"a": 1}, {("a", "x"): 1}, {"a": 1}, max_parallelism=64)
    with pytest.raises(InvalidJob, match=r"128 key groups and .* has 64"):
        found_between(one, other)


@pytest.mark.slow
def test_the_command_prints_a_line_per_entry_and_says_whether_anything_differs(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"a": 1, "b": 2}, {("a", "x"): 1}, {"a": 1})
    other = written(tmp_path / "other", {"a": 5, "b": 2}, {("a", "x"): 1}, {"a": 1})
    told = run_here("state", "diff", one, other, "--redact", "user")
    assert told.returncode == 1
    assert told.stdout.splitlines() == [
        '{"state": "pages.last", "change": "changed", "user": "***", "before": 1, "after": 5}',
        "0 inserted, 1 changed, 0 deleted",
    ]
    same = run_here("state", "diff", one, one)
    assert (same.returncode, same.stdout) == (0, "0 inserted, 0 changed, 0 deleted\n")


HIDDEN = [
    ("user", "***", "cart", 1, 5),
    ("value", "ann", "cart", "***", "***"),
    ("entry", "ann", "***", 1, 5),
    ("pages", "ann", "***", "***", "***"),
]


@pytest.mark.parametrize("hidden", HIDDEN, ids=[each[0] for each in HIDDEN])
def test_the_command_hides_the_columns_of_the_states_table(hidden: tuple[Any, ...], tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"ann": 1}, {("ann", "cart"): 1}, {"ann": 1})
    other = written(tmp_path / "other", {"ann": 1}, {("ann", "cart"): 5}, {"ann": 1})
    name, user, beside, before, after = hidden
    line = run_here("state", "diff", one, other, "--redact", name).stdout.splitlines()[0]
    told = {"state": "pages.pages", "change": "changed", "user": user, "beside": beside}
    assert json.loads(line) == {**told, "before": before, "after": after}


def test_the_command_hides_key_columns_that_it_shows_by_another_name(tmp_path: Path) -> None:
    flow = Dataflow("differs")
    read = flow.from_iterator("rows", lambda index, of: iter(()), schema={"state": str, "value": str}, splits=1)
    read.key_by("state", "value").process("pages", Pages, schema={"state": str}).sink("out", CollectSink())
    urls = [str(tmp_path / name) for name in ("one", "other")]
    for at, url in enumerate(urls):
        table = pa.table({"state": ["Ohio"], "value": ["ann"], "value_": [at]})
        write_savepoint(url, flow=flow, states={("pages", "last"): table})
    for names, state, value in ((["state", "value"], "***", "***"), (["state_"], "***", "ann")):
        told = run_here("state", "diff", *urls, *(part for name in names for part in ("--redact", name)))
        found = json.loads(told.stdout.splitlines()[0])
        assert (found["state"], found["state_"], found["value"]) == ("pages.last", state, value)
    found = json.loads(run_here("state", "diff", *urls, "--redact", "value_").stdout.splitlines()[0])
    assert (found["value"], found["before"], found["after"]) == ("ann", "***", "***")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("1", "2", "--job", "x"), "1 is the number of a checkpoint: give --checkpoints and --job as well"),
        (("/one", "/two", "--job", "x"), "/one and /two are no numbers of checkpoints"),
    ],
)
def test_numbers_and_the_options_that_are_for_them_go_together(arguments: tuple[str, ...], said: str) -> None:
    told = run_here("state", "diff", *arguments)
    assert told.returncode == 2
    assert said in " ".join(told.stderr.split())
