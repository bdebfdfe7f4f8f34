"""Choice of small files to compact, time of compaction, and arguments of `compact=`."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.sink_bases.lake.compaction import (
    LEAST_FILES,
    Compactor,
    Pace,
    compact_bytes,
    to_compact,
)
from barrier_runtime.state.errors import InvalidJob, Unavailable
from tests.waiting import until

MB = 10**6


def groups(sizes: list[int], target: int) -> list[list[int]]:
    return to_compact(sizes, lambda size: size, lambda _: None, target)


@pytest.mark.parametrize(
    ("given_value", "size"), [("128 MB", 128 * MB), ("1GB", 10**9), ("1.5 GB", 1_500 * MB), (32 * MB, 32 * MB)]
)
def test_a_size_is_text_with_a_unit_or_bytes(given_value: Any, size: int) -> None:
    assert compact_bytes(given_value, "DeltaSink") == size
    assert compact_bytes(size, "DeltaSink") == size, "as settings have it"


@pytest.mark.parametrize("wrong", [True, "128", "128 MiB", "128 mb", 0, -1, "0.5 MB", "5 GB", float("nan"), "MB", b"1"])
def test_what_is_no_size_is_refused_with_the_remedy(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r'DeltaSink: compact=.*: give the size .* as in compact="128 MB"'):
        compact_bytes(wrong, "DeltaSink")


def test_no_compaction_is_the_default() -> None:
    assert compact_bytes(None, "DeltaSink") is None


def test_few_small_files_stay_and_many_become_one() -> None:
    assert groups([10] * (LEAST_FILES - 1), 10_000) == []
    assert groups([10] * LEAST_FILES, 10_000) == [[10] * LEAST_FILES]


def test_files_that_fill_the_target_become_one_however_few_they_are() -> None:
    assert groups([40, 40, 40], 100) == [[40, 40, 40]]
    assert groups([50, 60, 49], 100) == []


def test_kinds_are_never_mixed() -> None:
    found = to_compact(range(40), lambda _: 1, lambda number: number % 2, 1_000)
    assert [{number % 2 for number in group} for group in found] == [{0}, {1}]


def test_files_of_a_like_size_keep_their_order() -> None:
    numbered = [(number, 64) for number in range(20)]
    assert to_compact(numbered, lambda file: file[1], lambda _: None, 10**6) == [numbered]


def test_a_file_that_was_compacted_waits_until_its_size_doubles() -> None:
    assert groups([1_000, *[10] * 20], 10_000) == [[10] * 20]
    assert groups([1_000, *[60] * 20], 10_000) == [[*[60] * 20, 1_000]]


@given(st.lists(st.integers(0, 200), max_size=120), st.integers(10, 300))
def test_each_rewrite_doubles_the_file_of_a_row_at_least(sizes: list[int], target: int) -> None:
    files = list(enumerate(sizes))
    found = to_compact(files, lambda file: file[1], lambda _: None, target)
    chosen = [file for group in found for file in group]
    assert len(set(chosen)) == len(chosen)
    for group in found:
        filled = sum(size for _, size in group)
        assert filled >= 2 * max(size for _, size in group)
        assert filled < 1.5 * target
        assert filled >= target or len(group) >= LEAST_FILES


@given(st.lists(st.integers(1, 50), min_size=1, max_size=400))
def test_compactions_end_and_leave_few_small_files(sizes: list[int]) -> None:
    rewritten = 0
    while found := groups(sizes, 1_000):
        for group in found:
            rewritten += sum(group)
            for size in group:
                sizes.remove(size)
            sizes.append(sum(group))
    assert len([size for size in sizes if size < 500]) < LEAST_FILES + 12, "at most one of each doubling more"
    assert rewritten <= 10 * sum(sizes)


def test_the_table_is_looked_at_after_enough_files_and_ten_times_as_long_as_a_turn() -> None:
    pace = Pace()
    assert not pace.added(LEAST_FILES - 1, 0.0)
    assert pace.added(1, 0.0)
    pace.ended(0.0, 2.0, compacted=16)
    assert not pace.added(1_000, 21.9)
    assert pace.added(0, 22.0)


def test_looks_that_find_nothing_become_rare() -> None:
    pace = Pace()
    needed = []
    for _ in range(10):
        files = 1
        while not pace.added(1, 0.0):
            files += 1
        needed.append(files)
        pace.ended(0.0, 0.0, compacted=0)
    assert needed == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024, 1024]
    pace.ended(0.0, 0.0, compacted=5)
    assert pace.added(LEAST_FILES, 0.0)


class _Table:
    """A table whose `look` waits for the test."""

    def __init__(self, error: Exception | None = None) -> None:
        self.looks = 0
        self.go_on = threading.Event()
        self._error = error

    def look(self) -> str:
        self.looks += 1
        assert self.go_on.wait(30)
        if self._error is not None:
            raise self._error
        return "plan"

    def write(self, plan: str, stop: Callable[[], bool]) -> str:
        return "files"

    def commit(self, plan: str, written: str) -> int:
        return 0


def test_a_commit_does_not_wait_for_a_turn_and_there_is_one_at_a_time() -> None:
    table = _Table()
    compactor: Compactor[str, str] = Compactor(table, "sink 'out'")
    for _ in range(5):
        compactor.added(LEAST_FILES)
    until(lambda: table.looks > 0, "the table was looked at")
    assert table.looks == 1
    table.go_on.set()
    compactor.close()
    compactor.added(1_000_000)
    assert table.looks == 1


@pytest.mark.parametrize("error", [Unavailable("the catalog does not answer"), RuntimeError("a fault")])
def test_a_turn_that_fails_is_told_and_not_the_last(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    table = _Table(error)
    table.go_on.set()
    compactor: Compactor[str, str] = Compactor(table, "sink 'out'")
    compactor.added(LEAST_FILES)
    until(lambda: "small files are not compacted now" in caplog.text, "it was told")
    assert str(error) in caplog.text

    def again() -> bool:
        compactor.added(1)
        return table.looks > 1

    until(again, "it was tried again")
    compactor.close()
