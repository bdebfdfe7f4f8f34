"""The order of tests for several workers of pytest-xdist. Pure."""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def dealt(items: Sequence[Item], seconds: Callable[[Item], float], workers: int) -> list[Item]:
    """`--dist worksteal` gives each worker a block of the order, from its begin, and one that has nothing left takes
    from the end of another's. So each block begins with long tests (those with `seconds`), dealt out longest first, and
    what is left for the end of the run is short. All others stay in their order: neighbours share what they start."""
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
