"""The order of tests for several workers of pytest-xdist. Pure."""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def dealt(items: Sequence[Item], seconds: Callable[[Item], float], workers: int) -> list[Item]:
    """Deals the tests into blocks for `--dist worksteal`.

    Each worker gets a block of the order, from the block's start; a worker without tests left takes from the end of
    another worker's block. So each block begins with long tests (tests with `seconds`), dealt out longest first, and
    the tests left at the end of the run are short. All other tests keep their order: neighbours share servers and
    sessions.
    """
    long = sorted((each for each in items if seconds(each)), key=seconds, reverse=True)
    others = iter([each for each in items if not seconds(each)])
    hands: list[list[Item]] = [[] for _ in range(workers)]
    for number, each in enumerate(long):
        turn, place = divmod(number, workers)
        hands[place if turn % 2 == 0 else -1 - place].append(each)
    order: list[Item] = []
    for number, hand in enumerate(hands):
        size = (len(items) - len(order)) // (workers - number)  # of a block, as xdist reckons
        order += hand
        order += itertools.islice(others, max(0, size - len(hand)))
    return [*order, *others]
