"""Parts of the larger commands, in sequence: `all`, `all --quick` and `table`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks import workloads
from benchmarks.checkpoint_cost import size_specs, throughput_specs
from benchmarks.engines import ENGINES
from benchmarks.plan import ROWS, Wanted
from benchmarks.recovery import VICTIMS
from benchmarks.session import FOLDER, Store, grid, measure, recover, search, there

_THROUGHPUT = ("keyed-count", "map-filter", "tumbling", "python-count")
_WINDOWS = ("map-filter", "tumbling", "sliding", "two-shuffles")
_GRID = str(FOLDER / "run/grid")

TABLE_ENGINES = [name for name, known in ENGINES.items() if name not in ("spark-continuous", "kafka-streams")]
SEARCHED = ("keyed-count", "python-count")


@dataclass(frozen=True)
class TableSizes:
    """Size of each part of the table.

    The defaults take an hour and a half on two cores; a single round takes half an hour."""

    seconds: float = 12.0
    warm_up_s: float = 7.0
    rounds: int = 3  # the fewest that give a 95 % interval
    rows: int = ROWS
    keys: Sequence[int] = (10_000, 1_000_000)
    rates: Sequence[float] = (10_000, 100_000)
    kills: int = 3
    cost_rounds: int = 2


def everything(store: Store, asked: Sequence[str], rounds: int) -> None:
    engines = there(store, asked)
    base = Wanted(engines=engines, rounds=rounds)
    nexmark = workloads.names("nexmark")
    measure(store, replace(base, measures=("latency", "visible")))
    measure(store, replace(base, measures=("latency",), workloads=("python-count",), rates=(1_000, 10_000)))
    measure(store, replace(base, measures=("latency",), workloads=_WINDOWS, rates=(10_000,)))
    measure(store, replace(base, measures=("throughput",), workloads=_THROUGHPUT))
    measure(store, replace(base, measures=("throughput",), workloads=nexmark, nexmark=nexmark))
    search(store, engines, SEARCHED, Wanted.keys, 1)
    recover(store, VICTIMS, 10, 50_000, 5.0)
    checkpoints(store, rounds)


def checkpoints(store: Store, rounds: int) -> None:
    costs = throughput_specs((0, 200, 1_000, 5_000), (10_000, 1_000_000), (1, 2), ROWS, rounds, _GRID)
    sizes = [
        *size_specs((10_000, 100_000, 1_000_000), (0.001, 0.01, 0.1), ("file",), 20.0, 10.0, rounds, _GRID),
        *size_specs((100_000, 1_000_000), (0.01,), ("s3",), 20.0, 10.0, rounds, _GRID),
    ]
    grid(store, list(costs), sizes)


def quick(store: Store, asked: Sequence[str]) -> None:
    """Measures each figure briefly."""
    engines = there(store, asked)
    brief = Wanted(engines=engines, rounds=1, seconds=4.0, warm_up_s=2.0, keys=(10_000,), rows=4_000_000)
    measure(store, replace(brief, measures=("latency",), rates=(10_000,)))
    visible = replace(brief, measures=("visible",), visible_rates=(1_000,), engines=engines[:2])
    measure(store, replace(visible, warm_up_s=7.0))  # a new broker's first transactions take seconds
    measure(store, replace(brief, measures=("throughput",), workloads=("tumbling",)))
    recover(store, ["slot"], 1, 10_000, 1.0)
    quick_checkpoints(store)


def quick_checkpoints(store: Store) -> None:
    grid(store, [], list(size_specs((100_000,), (0.01,), ("file",), 5.0, 2.0, 1, _GRID)))


def table(store: Store, asked: Sequence[str], sizes: TableSizes) -> None:
    """Measures the table's figures of all engines."""
    found = there(store, asked)

    def of(*names: str) -> list[str]:
        return [name for name in names if name in found]

    few, many = min(sizes.keys), max(sizes.keys)
    base = Wanted(
        engines=of("ours", "spark-tuned", "flink", "flink-sql", "jet", "bytewax"),
        rounds=sizes.rounds,
        seconds=sizes.seconds,
        warm_up_s=sizes.warm_up_s,
        rows=sizes.rows,
        keys=sizes.keys,
        rates=sizes.rates,
    )
    measure(store, replace(base, measures=("latency",)))
    real_time = replace(base, engines=of("ours", "spark-real-time"), source="kafka", rates=[min(sizes.rates)])
    measure(store, replace(real_time, measures=("latency",)))
    visible = replace(base, engines=of("ours", "spark-tuned", "spark-real-time", "flink"), visible_rates=(1_000,))
    measure(store, replace(visible, measures=("visible",)))
    measure(store, replace(base, measures=("throughput",), workloads=("keyed-count", "tumbling")))
    measure(store, replace(base, measures=("throughput",), workloads=("map-filter",), keys=[few]))
    python = replace(base, workloads=("python-count",), keys=[few])
    measure(store, replace(python, measures=("throughput",), engines=of("ours", "pyflink")))
    measure(store, replace(python, measures=("latency",), engines=of("ours"), rates=[min(sizes.rates)]))
    if "ours" in found:
        recover(store, ["slot"], sizes.kills, 50_000, 5.0)
        costs = throughput_specs((0, 1_000), sizes.keys, (2,), sizes.rows, sizes.cost_rounds, _GRID)
        # long enough to contain merges of files as often as the long run
        size = size_specs((many,), (0.01,), ("file",), sizes.seconds * 5, sizes.warm_up_s * 5, 1, _GRID)
        grid(store, list(costs), list(size))
