"""The runs of `latency-targets`: the keyed count with each `latency_target` at each rate. Pure.

Targets take turns: within a round all targets do a rate before the next rate begins, and each round begins with a
different target.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.spec import RunSpec


@dataclass(frozen=True)
class TargetSizes:
    """Size of the table's runs. The defaults are 45 runs of 40 s."""

    targets_ms: Sequence[float] = (0, 0.25, 1, 4, 10)
    rates: Sequence[float] = (1_000, 10_000, 100_000)
    rounds: int = 3
    seconds: float = 12.0
    warm_up_s: float = 7.0
    keys: int = 10_000


def runs(sizes: TargetSizes) -> Iterator[RunSpec]:
    for number in range(sizes.rounds):
        turn = number % len(sizes.targets_ms)
        for rate in sizes.rates:
            for target_ms in [*sizes.targets_ms[turn:], *sizes.targets_ms[:turn]]:
                yield RunSpec(
                    engine="ours",
                    workload="keyed-count",
                    measure="latency",
                    source="generator",
                    sink="measure",
                    rate=rate,
                    keys=sizes.keys,
                    seconds=sizes.seconds,
                    warm_up_s=sizes.warm_up_s,
                    latency_target_ms=target_ms,
                    round=number,
                )
