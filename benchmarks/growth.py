"""The runs of `growth`: the keyed count with growing rate, keys or parallelism. Pure.

Rate, keys and parallelism never grow together. Engines take turns: within a round all engines do a cell before the next
cell begins, and each round begins with a different engine. A cell on several curves is measured once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.plan import can
from benchmarks.spec import RunSpec


@dataclass(frozen=True)
class GrowthSizes:
    """Values of each curve, and of the sizes that do not grow (`at_…`).

    The defaults are nine cells of 40 s per engine and round. State has at most as many keys as rows came: at 50,000
    rows per second for 19 s this is 60 % of a million."""

    rates: Sequence[float] = (1_000, 10_000, 50_000, 100_000)
    keys: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000)
    parallelism: Sequence[int] = (1, 2, 4)
    at_rate: float = 50_000
    at_keys: int = 10_000
    at_parallelism: int = 2
    rounds: int = 3
    seconds: float = 12.0
    warm_up_s: float = 7.0


def runs(sizes: GrowthSizes, engines: Sequence[str]) -> Iterator[RunSpec]:
    """None without engines."""
    cells = dict.fromkeys(
        [
            *((rate, sizes.at_keys, sizes.at_parallelism) for rate in sizes.rates),
            *((sizes.at_rate, keys, sizes.at_parallelism) for keys in sizes.keys),
            *((sizes.at_rate, sizes.at_keys, parallelism) for parallelism in sizes.parallelism),
        ]
    )
    for number in range(sizes.rounds if engines else 0):
        turn = number % len(engines)
        for rate, keys, parallelism in cells:
            for engine in [*engines[turn:], *engines[:turn]]:
                spec = RunSpec(
                    engine=engine,
                    workload="keyed-count",
                    measure="latency",
                    source="generator",
                    sink="measure",
                    rate=rate,
                    keys=keys,
                    parallelism=parallelism,
                    seconds=sizes.seconds,
                    warm_up_s=sizes.warm_up_s,
                    round=number,
                )
                if can(engine, spec):
                    yield spec
