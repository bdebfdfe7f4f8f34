"""Victims of a soak, made from a seed alone. Pure.

Each minute has a kill, and each life must be long enough to show growth. So most kills hit slots above slot 0, which
lives through many generations.
"""

import random
from collections.abc import Iterator
from typing import Literal

Victim = Literal["slot", "slot 0", "coordinator", "program"]
DECK: tuple[Victim, ...] = (*(["slot"] * 24), *(["coordinator"] * 3), *(["slot 0"] * 2), "program")


def victims(seed: int) -> Iterator[tuple[Victim, float]]:
    """Yields kinds without end, each with a choice among several such processes: a place in their list, 0 to 1."""
    choose = random.Random(seed)
    while True:
        cards = list(DECK)
        choose.shuffle(cards)
        for card in cards:
            yield card, choose.random()
