"""Plan of merges of segments: few files, few rewrites of a row."""

import random

import pytest

from barrier_runtime.state.columns.segment import BOTTOM, Size, merge_from


def base(entries: int) -> Size:
    return Size(entries, BOTTOM)


def delta(entries: int, level: int = 0) -> Size:
    return Size(entries, level)


def test_a_base_and_what_was_cut_from_it_stay_as_they_are() -> None:
    assert merge_from([base(10)]) is None
    assert merge_from([base(10), base(10), base(3)]) is None


def test_deltas_become_a_base_when_they_hold_as_much_as_the_one_below() -> None:
    assert merge_from([base(10), delta(4), delta(5)]) is None
    assert merge_from([base(10), delta(4), delta(6)]) == 0
    assert merge_from([base(10), base(10), delta(4), delta(6)]) is None
    assert merge_from([delta(1)]) == 0


def test_two_dozen_deltas_of_a_level_become_one() -> None:
    deltas = [delta(1) for _ in range(24)]
    assert merge_from([base(1_000), *deltas[1:]]) is None
    assert merge_from([base(1_000), *deltas]) == 1
    assert merge_from([base(1_000), delta(24, 1), *deltas]) == 2


def test_what_a_merge_makes_is_merged_on_when_there_are_enough_of_its_kind() -> None:
    upper = [delta(24, 1) for _ in range(23)]
    assert merge_from([base(100_000), *upper, *[delta(1) for _ in range(24)]]) == 1
    assert merge_from([base(100_000), delta(600, 2), *upper, *[delta(1) for _ in range(24)]]) == 2
    assert merge_from([base(100_000), *upper[1:], *[delta(1) for _ in range(24)]]) == 23


@pytest.mark.slow
def test_files_stay_few_and_rows_are_not_written_often() -> None:
    draw = random.Random(3)
    for changed in (1, 10, 100, 2_000):
        sizes = [base(10_000)]
        given = written = 0
        for _ in range(3_000):
            entries = draw.randint(1, 2 * changed)
            given += entries
            start = merge_from([*sizes, delta(entries)])
            if start == 0:
                sizes = [base(10_000)]
            elif start is None:
                sizes.append(delta(entries))
            else:
                level = 1 + max(size.level for size in sizes[start:])
                sizes[start:] = [delta(sum(size.entries for size in sizes[start:]) + entries, level)]
            written += sizes[-1].entries
            assert len(sizes) <= 1 + 3 * 24
        assert written <= 5 * given
