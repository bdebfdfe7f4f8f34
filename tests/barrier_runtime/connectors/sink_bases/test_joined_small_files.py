"""Choice of small files to join: by kind, in order, and above a worthwhile size."""

from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.sink_bases.lake.compaction import groups

FILES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120)), max_size=60)


@given(FILES)
def test_every_file_is_in_a_single_group_of_its_kind_in_order_and_none_too_small(
    files: list[tuple[int, int]],
) -> None:
    numbered = [(number, kind, size) for number, (kind, size) in enumerate(files)]
    found = groups(numbered, lambda each: each[2], lambda each: each[1], target=100)
    assert sorted(each for group in found for each in group) == numbered
    for group in found:
        assert group
        assert group == sorted(group)
        assert len({kind for _, kind, _ in group}) == 1
        assert sum(size for _, _, size in group) < 100 + 50 + 50
    for kind in range(3):
        small = [group for group in found if group[0][1] == kind and sum(each[2] for each in group) < 50]
        assert len(small) <= 1, "one rest"


def test_files_of_half_the_size_stay_as_they_are() -> None:
    assert groups([50, 10, 60, 20], lambda size: size, lambda _: 0, target=100) == [[50], [10, 20], [60]]


def test_a_small_rest_goes_with_the_group_before_it() -> None:
    assert groups([40, 40, 40, 10], lambda size: size, lambda _: 0, target=100) == [[40, 40, 40, 10]]
