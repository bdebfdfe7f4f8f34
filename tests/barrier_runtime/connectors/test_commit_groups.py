"""Groups of decided checkpoints that a sink commits at once: as many as possible, halved after a failure."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.sink_bases.sql.sink import CommitGroups
from barrier_runtime.state.errors import InvalidJob, Unavailable


class Target:
    """Target that accepts groups without a poisoned step, up to a size."""

    def __init__(self, poisoned: int | None = None, most: int = 1_000, error: Callable[[str], Exception] = InvalidJob):
        self.poisoned = poisoned
        self.most = most
        self.error = error
        self.committed: list[int] = []
        self.asked: list[list[int]] = []

    def commit(self, steps: Sequence[int]) -> None:
        self.asked.append(list(steps))
        if self.poisoned in steps or len(steps) > self.most:
            raise self.error(f"no {list(steps)}")
        self.committed += steps


def size(step: int) -> int:
    return 1


def test_everything_is_committed_at_once() -> None:
    target = Target()
    CommitGroups(100).commit(range(10), size, target.commit)
    assert target.asked == [list(range(10))]


def test_groups_end_before_they_are_too_large_and_a_large_step_goes_alone() -> None:
    target = Target()
    CommitGroups(10).commit([3, 3, 3, 3, 50, 1, 1], lambda step: step, target.commit)
    assert target.asked == [[3, 3, 3], [3], [50], [1, 1]]


def test_a_poisoned_step_holds_back_nothing_older_and_is_tried_alone() -> None:
    """After a poisoned step, the limit stays until the step is committed."""
    target, groups = Target(poisoned=5), CommitGroups(100)
    for _ in range(2):
        with pytest.raises(InvalidJob, match=r"no \[5\]"):
            groups.commit(range(len(target.committed), 8), size, target.commit)
        assert target.committed == [0, 1, 2, 3, 4]
    assert groups.limited
    target.poisoned = None
    groups.commit(range(5, 8), size, target.commit)
    assert target.committed == list(range(8))
    assert not groups.limited


def test_a_target_that_may_be_away_is_asked_once_for_each_attempt() -> None:
    """Groups of more than three steps are too slow: each attempt halves the group, and committed
    steps stay committed.
    """
    target, groups = Target(most=3, error=Unavailable), CommitGroups(100)
    attempts = 0
    while len(target.committed) < 8:
        attempts += 1
        asked = len(target.asked)
        try:
            groups.commit(range(len(target.committed), 8), size, target.commit)
        except Unavailable:
            failed = [each for each in target.asked[asked:] if len(each) > 3]
            assert len(failed) == 1
    assert attempts <= 5
    assert target.committed == list(range(8))


@given(st.integers(1, 40), st.integers(0, 50), st.integers(1, 50))
def test_whatever_fails_all_before_the_poison_is_committed_once_and_in_order(
    steps: int, poisoned: int, most: int
) -> None:
    target, groups = Target(poisoned=poisoned), CommitGroups(most)
    for _ in range(3):
        try:
            groups.commit(range(len(target.committed), steps), size, target.commit)
        except InvalidJob:
            assert target.asked[-1] == [poisoned]
    assert target.committed == list(range(min(steps, poisoned)))
