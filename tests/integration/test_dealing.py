"""The order in which workers get the tests of this folder."""

import random

import pytest

from tests.integration.dealing import dealt


def blocks_of(order: list[int], workers: int) -> list[list[int]]:
    """The initial blocks of pytest-xdist's `--dist worksteal`."""
    blocks, left = [], list(order)
    for number in range(workers):
        size = len(left) // (workers - number)
        blocks.append(left[:size])
        left = left[size:]
    return blocks


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
@pytest.mark.parametrize("many", [1, 10, 97])
def test_each_worker_begins_with_its_share_of_long_tests_and_no_test_is_lost(workers: int, many: int) -> None:
    draw = random.Random(many)
    seconds = {number: draw.choice([0.0, 0.0, 0.0, draw.uniform(30, 170)]) for number in range(many)}
    order = dealt(range(many), seconds.__getitem__, workers)
    assert sorted(order) == list(range(many))
    short = [each for each in order if not seconds[each]]
    assert short == sorted(short), "in their order"
    if many < 10 * workers:
        return
    shares = []
    for block in blocks_of(order, workers):
        long = [bool(seconds[each]) for each in block]
        assert long == sorted(long, reverse=True), "long ones first"
        shares.append(sum(seconds[each] for each in block))
    assert max(shares) - min(shares) <= max(seconds.values())


def test_the_longest_are_dealt_out_first() -> None:
    seconds = dict.fromkeys(range(8), 0.0) | {1: 50.0, 3: 40.0, 4: 30.0, 7: 20.0}
    assert dealt(range(8), seconds.__getitem__, 2) == [1, 7, 0, 2, 3, 4, 5, 6]
