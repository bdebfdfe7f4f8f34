"""Files that grow over checkpoints: at any time each row is either in the snapshot or in a rolled file."""

from collections.abc import Mapping
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.files.sink.open_files import LIST, OpenFiles, Rolling, restored
from barrier_runtime.state.errors import Corrupt
from tests.drawn import examples

BIG = 1 << 40


def rows(*numbers: int, column: str = "n") -> pa.Table:
    return pa.table({column: pa.array(numbers, pa.int64())})


def numbers_of(table: pa.Table) -> list[int]:
    return [int(number) for number in table.column(0).to_pylist()]


def test_a_file_is_rolled_by_size_by_age_and_at_the_end() -> None:
    rolling = Rolling(size=40, age_ms=1_000, most_bytes=BIG)
    files, rolled = OpenFiles("a").grown({"": rows(1, 2)}, 0, rolling)
    assert rolled == []
    files, rolled = files.grown({"": rows(3, 4, 5), "k=1/": rows(9)}, 10, rolling)
    assert [(folder, numbers_of(each)) for folder, each in rolled] == [("", [1, 2, 3, 4, 5])]
    files, rolled = files.grown({}, 1_009, rolling)
    assert rolled == []
    files, rolled = files.grown({"": rows(6)}, 1_010, rolling)
    assert [(folder, numbers_of(each)) for folder, each in rolled] == [("k=1/", [9])]
    files, rolled = files.grown({}, 1_011, rolling, last=True)
    assert [(folder, numbers_of(each)) for folder, each in rolled] == [("", [6])]
    assert files.kept(()) == {}
    assert files.names() == frozenset()


def test_a_clock_that_is_set_back_makes_an_age_count_anew_and_never_for_ever() -> None:
    rolling = Rolling(size=BIG, age_ms=1_000, most_bytes=BIG)
    files, _ = OpenFiles("a").grown({"": rows(1)}, 10**12, rolling)
    files, rolled = files.grown({}, 5_000, rolling)
    assert rolled == []
    _, rolled = files.grown({}, 6_000, rolling)
    assert len(rolled) == 1


def test_the_largest_files_are_rolled_when_all_together_take_too_much() -> None:
    rolling = Rolling(size=BIG, age_ms=BIG, most_bytes=100, most_files=2)
    files, rolled = OpenFiles("a").grown({"a=1/": rows(*range(8)), "a=2/": rows(1, 2, 3), "a=3/": rows(4)}, 0, rolling)
    assert [folder for folder, _ in rolled] == ["a=1/"]
    _, rolled = files.grown({"a=4/": rows(5, 6)}, 0, rolling)
    assert [folder for folder, _ in rolled] == ["a=2/"]


def test_rows_of_other_columns_begin_another_file_behind_the_one_that_was_open() -> None:
    rolling = Rolling(size=BIG, age_ms=BIG, most_bytes=BIG)
    files, _ = OpenFiles("a").grown({"": rows(1)}, 0, rolling)
    files, rolled = files.grown({"": rows(2, column="m")}, 0, rolling)
    assert [numbers_of(each) for _, each in rolled] == [[1]]
    files, rolled = files.grown({"": rows(3, column="m")}, 0, rolling, last=True)
    assert [numbers_of(each) for _, each in rolled] == [[2, 3]]


@pytest.mark.slow
def test_parts_stay_few_and_a_row_is_written_a_few_times() -> None:
    """10,000 checkpoints before a file is complete: the parts are merged, eight at a time."""
    rolling = Rolling(size=BIG, age_ms=BIG, most_bytes=BIG)
    files, stored, written, most = OpenFiles("a"), frozenset[str](), 0, 0
    table = pa.table({"text": ["x" * 1_000] * 8})
    for number in range(2_000):
        files, _ = files.grown({"": table}, number, rolling)
        values = files.kept(stored)
        written += len(values) - 1
        stored = files.names()
        most = max(most, len(stored))
    assert most <= 24
    assert written < 2 * 2_000


def test_a_damaged_or_missing_part_is_refused() -> None:
    rolling = Rolling(size=BIG, age_ms=BIG, most_bytes=BIG)
    files, _ = OpenFiles("a").grown({"": rows(1)}, 0, rolling)
    kept = files.kept(())
    (part,) = files.names()
    with pytest.raises(Corrupt, match="is not in the checkpoint"):
        restored("b", [{LIST: kept[LIST]}], "sink")
    with pytest.raises(Corrupt, match="cannot be read"):
        restored("b", [{LIST: kept[LIST], part: kept[part][:-20]}], "sink")


def test_a_part_that_is_stored_is_named_again_and_its_rolled_files_are_passed_over() -> None:
    rolling = Rolling(size=40, age_ms=BIG, most_bytes=BIG)
    first, _ = OpenFiles("a").grown({"k=1/": rows(1, 2), "k=2/": rows(3, 4, 5)}, 0, rolling)
    stored = first.kept(())
    second, rolled = first.grown({"k=1/": rows(6, 7, 8)}, 0, rolling)
    assert [numbers_of(table) for _, table in rolled] == [[1, 2, 6, 7, 8]]
    assert second.names() == first.names()
    kept = {**stored, **second.kept(first.names())}
    _, rolled = restored("b", [kept], "sink").grown({}, 0, None)
    assert [(folder, numbers_of(table)) for folder, table in rolled] == [("k=2/", [3, 4, 5])]


STEP = st.tuples(
    st.lists(st.sampled_from(["", "k=a/", "k=b/", "k=c/"]), max_size=6),
    st.sampled_from(["go on", "go on", "undecided", "restore", "rescale", "end"]),
    st.integers(0, 400),
)


@pytest.mark.slow
@examples(150)
@given(steps=st.lists(STEP, max_size=30), size=st.sampled_from([8, 60, BIG]), age_ms=st.sampled_from([0, 500, BIG]))
def test_every_row_is_rolled_once_in_its_order_over_crashes_and_restores(
    steps: list[tuple[list[str], str, int]], size: int, age_ms: int
) -> None:
    """A rolled file counts once the checkpoint is decided; a restore returns to the decided checkpoint. The store has
    only the parts of decided checkpoints, and every part that is not handed over again must be among them.
    """
    rolling = Rolling(size, age_ms, most_bytes=200, most_files=3)
    files, store, shown = OpenFiles("a0"), dict[str, bytes](), list[tuple[str, list[int]]]()
    decided_next = next_number = now = incarnation = 0
    decided: Mapping[str, bytes] = {}
    pending: list[tuple[str, list[int]]] = []  # rolled by undecided checkpoints
    for folders, what, passed in [*steps, ([], "go on", 0), ([], "end", 0)]:
        now += passed
        came: dict[str, list[int]] = {}
        for folder in folders:
            came.setdefault(folder, []).append(next_number)
            next_number += 1
        tables = {folder: rows(*numbers) for folder, numbers in came.items()}
        files, rolled = files.grown(tables, now, rolling, last=what == "end")
        pending += [(folder, numbers_of(table)) for folder, table in rolled]
        stored = files.names() & store.keys()
        snapshot = {**files.kept(stored), **{name: store[name] for name in stored}}
        if what == "undecided":
            continue
        if what in ("restore", "rescale"):  # the process dies before this checkpoint is decided
            incarnation += 1
            next_number, pending = decided_next, []
            halves = [decided] if what == "restore" else [{}, decided]
            files, store = restored(f"a{incarnation}", halves, "sink"), {}
            continue
        shown += pending
        pending, decided, decided_next = [], snapshot, next_number
        store = {name: value for name, value in snapshot.items() if name != LIST}
    numbers = sorted(number for _, each in shown for number in each)
    assert numbers == list(range(next_number))
    for folder in {folder for folder, _ in shown}:
        of_folder = [number for each, found in shown if each == folder for number in found]
        assert all(first < second for first, second in pairwise(of_folder)), folder
