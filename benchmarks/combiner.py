"""Cost of a row with and without the combiner, by skew of the keys.

    python -m benchmarks.combiner [latest] [tumbling] [--pairs 15] [--before CHECKOUT]      no Spark, no sockets
    python -m benchmarks.combiner [latest] [tumbling] --slots [--before CHECKOUT]           jobs on two slots of Spark

`benchmarks.combined` lists the measured parts. A process per setting; all process each window of rows in turn (a pair),
in alternating order. `before` is a checkout of the commit before the combiner, `each` a running aggregate of this
commit that emits a row per row. Times are CPU times; an interval holds the median ratio of all pairs with a probability
of 95 % (binomial).

With `--slots` jobs (`benchmarks.combined_job`) run as fast as possible, or with `--fixed` at fixed rates, in turn: with
the combiner, without, and at `before` (`latest`: the running aggregate with a row per row, which a user of that commit
had). Shown are rows per second, processor nanoseconds of both slots per row, ratios of pairs, and used cores.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.combined import BATCHES, SKEWS
from benchmarks.machine import describe

_HERE = Path(__file__).resolve().parent.parent
_WARM = 4  # pairs before the first measured pair
_RATES = (10_000, 100_000)  # rows per second


class _Process:
    def __init__(self, checkout: Path, kind: str, skew: str, mode: str, folder: Path) -> None:
        program = [sys.executable, str(_HERE / "benchmarks/combined.py"), kind, skew, mode, "1", str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ns_per_row(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def interval(ratios: list[float]) -> tuple[float, float]:
    """Returns bounds of the median with a probability of at least 95 %."""
    ordered, count_ = sorted(ratios), len(ratios)
    chance, lower = 0.5**count_, 0
    while chance <= 0.025 and lower < count_ // 2:
        lower += 1
        ways = 1.0
        for step in range(lower):
            ways *= (count_ - step) / (step + 1)
        chance += ways * 0.5**count_
    lower = max(0, lower - 1)
    return ordered[lower], ordered[-1 - lower]


def _settings(kind: str, before: Path | None) -> dict[str, tuple[Path, str, str]]:
    """Name → checkout, kind, mode."""
    settings = {"off": (_HERE, kind, "off"), "on": (_HERE, kind, "on"), "chosen": (_HERE, kind, "chosen")}
    if kind == "latest":
        settings["each"] = (_HERE, "each", "off")
    if before is not None:
        settings["before"] = (before, kind, "before")
    return settings


def _measured(kind: str, skew: str, pairs: int, before: Path | None, folder: Path) -> dict[str, list[float]]:
    jobs = {
        name: _Process(checkout, of, skew, mode, folder / name)
        for name, (checkout, of, mode) in _settings(kind, before).items()
    }
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    for pair in range(_WARM + pairs):
        for name in random.Random(pair).sample(sorted(jobs), len(jobs)):
            took = jobs[name].ns_per_row()
            if pair >= _WARM:
                spent[name].append(took)
    for job in jobs.values():
        job.end()
    return spent


def _ratio(spent: dict[str, list[float]], than: str) -> str:
    if than not in spent:
        return "-"
    ratios = [others / chosen for others, chosen in zip(spent[than], spent["chosen"], strict=True)]
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def _row(kind: str, skew: str, spent: dict[str, list[float]]) -> str:
    names = ("each", "before", "off", "on", "chosen")
    shown = [f"{statistics.median(spent[name]):.0f}" if name in spent else "-" for name in names]
    return f"| {kind}, {skew} | {' | '.join(shown)} | {_ratio(spent, 'before')} | {_ratio(spent, 'off')} |"


class _Jobs:
    """A process with a Spark session that runs jobs of a checkout."""

    def __init__(self, checkout: Path) -> None:
        program = [sys.executable, str(_HERE / "benchmarks/combined_job.py")]
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYSPARK_PYTHON": sys.executable}
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, *job: object) -> tuple[float, float]:
        """Returns rows per second and used cores."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, job)) + "\n")
        self._process.stdin.flush()
        rows_per_s, cores = map(float, self._process.stdout.readline().split())
        return rows_per_s, cores

    def end(self) -> None:
        self._process.communicate()


def _on_slots(kind: str, options: argparse.Namespace, folder: Path) -> None:
    here = _Jobs(_HERE)
    settings: dict[str, tuple[_Jobs, str, str]] = {"off": (here, kind, "off"), "chosen": (here, kind, "chosen")}
    if options.before is not None:
        settings["before"] = (_Jobs(options.before), "each" if kind == "latest" else kind, "before")
    show = _show_rates if options.fixed else _show_skews
    show(kind, settings, options, folder)
    for jobs in {jobs for jobs, *_ in settings.values()}:
        jobs.end()


def _show_skews(
    kind: str, settings: dict[str, tuple[_Jobs, str, str]], options: argparse.Namespace, folder: Path
) -> None:
    print(f"| rows/s / CPU ns per row | {' | '.join(settings)} | before / off: rows/s of chosen (95 %) | CPU (95 %) |")
    print("|---|" + "---|" * (len(settings) + 2), flush=True)
    for skew in options.skew:
        keys = _keys(skew, folder)
        took: dict[str, list[float]] = {name: [] for name in settings}  # ns by the clock per row
        spent: dict[str, list[float]] = {name: [] for name in settings}
        for pair in range(1 + options.pairs):
            for name in random.Random(pair).sample(sorted(settings), len(settings)):
                jobs, of, mode = settings[name]
                rate, cores = jobs.run(of, mode, 0, options.rows, keys)
                if pair > 0:
                    took[name].append(1e9 / rate)
                    spent[name].append(cores * 1e9 / rate)
        shown = [f"{1e3 / statistics.median(took[n]):.2f} M / {statistics.median(spent[n]):.0f}" for n in settings]
        ratios = [" / ".join(_ratio(of, than) for than in ("before", "off")) for of in (took, spent)]
        print(f"| {kind}, {skew} | {' | '.join(shown)} | {' | '.join(ratios)} |", flush=True)


def _show_rates(
    kind: str, settings: dict[str, tuple[_Jobs, str, str]], options: argparse.Namespace, folder: Path
) -> None:
    print(f"| cores at a fixed rate | {' | '.join(settings)} |")
    print("|---|" + "---|" * len(settings), flush=True)
    for rate in _RATES:
        for skew in options.skew:
            keys = _keys(skew, folder)
            rows = int(rate * options.seconds)
            cores = [jobs.run(of, mode, rate, rows, keys)[1] for jobs, of, mode in settings.values()]
            print(f"| {kind}, {skew}, {rate:,}/s | {' | '.join(f'{used:.2f}' for used in cores)} |", flush=True)


def _keys(skew: str, folder: Path) -> Path:
    """Writes the keys of both splits."""
    its = folder / f"skew-{list(SKEWS).index(skew)}"
    if not its.exists():
        its.mkdir()
        for split in range(2):
            random = np.random.default_rng(split)
            np.save(its / f"keys-{split}.npy", np.concatenate([SKEWS[skew](random) for _ in range(BATCHES)]))
    return its


def _pairs(kind: str, options: argparse.Namespace, folder: Path) -> None:
    print("| CPU ns per row | `each` | before | off | on | chosen | before / chosen (95 %) | off / chosen (95 %) |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for skew in options.skew:
        spent = _measured(kind, skew, options.pairs, options.before, folder / f"{kind}-{skew}")
        print(_row(kind, skew, spent), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["latest", "tumbling"])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--skew", nargs="*", default=list(SKEWS), help="; ".join(SKEWS))
    parser.add_argument("--before", type=Path, help="checkout of the commit before the combiner, 65fff2cf")
    parser.add_argument("--slots", action="store_true", help="jobs on two slots instead of pairs")
    parser.add_argument("--fixed", action="store_true", help="with --slots: at fixed rates")
    parser.add_argument("--rows", type=int, default=24_000_000, help="of a job as fast as possible")
    parser.add_argument("--seconds", type=float, default=9, help="of a job at a fixed rate")
    options = parser.parse_args()
    print(describe())
    folder = Path(tempfile.mkdtemp(prefix="barrier-runtime-bench-"))
    try:
        for kind in options.kinds:
            (_on_slots if options.slots else _pairs)(kind, options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
