"""The nemesis's actions, made from a seed alone. Pure: the same seed gives the same actions, so a run is repeatable.

Actions come in decks: every deck holds each kind of fault, in a random order, so that a short run is mixed too. A card
is a single strike at a healthy job, a burst, a strike into the recovery from another strike, or a strike while the
store or the disk is in trouble.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal[
    "kill slot",
    "kill executor",
    "kill coordinator",
    "kill driver",
    "kill jvm",  # the driver's; the Python program has to end by itself
    "kill all",  # every process of the program at once, as when the power fails
    "stall slot",  # SIGSTOP, later SIGCONT
    "stall executor",
    "stall coordinator",
    "stall driver",
    "store refuse",
    "store hang",
    "store error",
    "store cut",
    "store delay",
    "fill disk",
    "restart",  # the program stops cleanly and is started again
    "takeover",  # a second run of the program is started while the first runs
]
When = Literal["healthy", "now", "recovering"]

KILLS: tuple[Kind, ...] = ("kill slot", "kill executor", "kill coordinator", "kill driver", "kill jvm", "kill all")
STORE: tuple[Kind, ...] = ("store refuse", "store hang", "store error", "store cut", "store delay")


@dataclass(frozen=True)
class Action:
    """Waits until `when` (healthy: rows due after the strike before are committed; recovering: the job is not running),
    then for `gap_s`, then strikes. A lasting fault is undone after `hold_s`.
    """

    kind: Kind
    when: When
    gap_s: float
    hold_s: float = 0.0
    choice: float = 0.0  # which of the victims: a place in their list, from 0 to 1
    share: float = 1.0  # of the requests to the store
    path: str = ""  # only requests whose path contains this text

    def __str__(self) -> str:
        held = f" for {self.hold_s:.1f} s" if self.hold_s else ""
        part = (
            f" ({self.share:.0%} of requests{' to ' + self.path if self.path else ''})" if "store" in self.kind else ""
        )
        return f"{self.kind}{held}{part}, when {self.when} + {self.gap_s:.1f} s"


def plan(seed: int) -> Iterator[Action]:
    """Yields actions without end."""
    choose = random.Random(seed)
    while True:
        cards = _deck(choose)
        choose.shuffle(cards)
        for card in cards:
            yield from card


def _deck(choose: random.Random) -> list[list[Action]]:
    singles: list[Kind] = [
        *(["kill slot"] * 9),
        *(["kill coordinator"] * 7),
        *(["kill executor"] * 4),
        "kill driver",
        "kill jvm",
        "kill all",
        *(["stall slot"] * 2),
        "stall executor",
        "stall coordinator",
        "stall driver",
        *STORE,
        "fill disk",
        "restart",
        "takeover",
    ]
    cards = [[_action(choose, kind, "healthy")] for kind in singles]
    cards += [_burst(choose) for _ in range(5)]
    cards += [_into_recovery(choose) for _ in range(5)]
    cards += [_in_trouble(choose, choose.choice(STORE)) for _ in range(3)]
    cards += [_in_trouble(choose, "fill disk")]
    return cards


def _burst(choose: random.Random) -> list[Action]:
    weights = {"kill slot": 6, "kill coordinator": 4, "kill executor": 0.7, "stall slot": 0.7}
    kinds = choose.choices(list(weights), list(weights.values()), k=choose.randint(4, 8))
    first, *rest = [_action(choose, kind, "now") for kind in kinds]  # type: ignore[arg-type]
    return [replace(first, when="healthy"), *(replace(action, gap_s=choose.uniform(0, 1.5)) for action in rest)]


def _into_recovery(choose: random.Random) -> list[Action]:
    first: Kind = choose.choice(["kill slot", "kill slot", "kill executor"])
    actions = [_action(choose, first, "healthy")]
    for _ in range(choose.randint(1, 3)):
        kind: Kind = choose.choice(["kill slot", "kill slot", "kill coordinator", "kill executor", "stall slot"])
        actions.append(replace(_action(choose, kind, "recovering"), gap_s=choose.uniform(0, 0.5)))
    return actions


def _in_trouble(choose: random.Random, what: Kind) -> list[Action]:
    """A strike while the store or the disk is in trouble, which the recovery has to survive as well."""
    trouble = replace(_action(choose, what, "healthy"), hold_s=choose.uniform(3, 6))
    kind: Kind = choose.choice(["kill slot", "kill coordinator", "kill slot", "kill driver"])
    return [trouble, replace(_action(choose, kind, "now"), gap_s=choose.uniform(0.2, 2.0))]


def _action(choose: random.Random, kind: Kind, when: When) -> Action:
    gap_s = choose.uniform(0.0, 1.5)
    choice = choose.random()
    if kind == "stall slot":
        return Action(kind, when, gap_s, choose.choice([1.0, 6.0, 8.0]), choice)  # shorter and longer than slot_timeout
    if kind.startswith("stall"):
        return Action(kind, when, gap_s, choose.uniform(1.0, 6.0), choice)
    if kind == "fill disk":
        return Action(kind, when, gap_s, choose.uniform(2.0, 5.0), choice)
    if kind in STORE:
        share = choose.choice([1.0, 0.5, 0.2])
        path = choose.choice(["", "", "/log/", "/data/"]) if kind in ("store cut", "store error") else ""
        return Action(kind, when, gap_s, choose.uniform(1.5, 6.0), choice, share, path)
    return Action(kind, when, gap_s, 0.0, choice)
