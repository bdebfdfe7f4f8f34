"""Longest hold of a slot's loop by a connector or lookup, per unit: `python -m benchmarks holds`.

A hold is the processor time of the loop's thread in a `poll` of a reader, or in a call of an operator or sink. With a
waiting barrier, `position` or `snapshot` follows each call and counts too. The figure of a unit is the largest hold of
all runs. For a restore it is the longest callback of the loop of a whole job.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from barrier_runtime.runtime.host.process import tune_interpreter
from benchmarks.hold_units import UNITS
from benchmarks.holding import Hold


def measure(runs: int, chosen: Sequence[str]) -> None:
    """Prints a table: the longest hold alone and while a barrier waits, and rows per second of processor time."""
    tune_interpreter()  # as in slots: full collections of garbage are rare
    pa.array([0])  # imports pandas, as slots do before their loops
    print("| unit | longest hold (ms of CPU) | while a barrier waits | rows per second of CPU, all threads |")
    print("| --- | --- | --- | --- |")
    for name, (unit, rows) in UNITS.items():
        if not all(word in name for word in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder, unit(Path(folder), rows) as measured:
            alone = waiting = Hold()
            for _ in range(runs):
                alone = alone.or_longer(measured(False))
                waiting = waiting.or_longer(measured(True))
        rate = alone.rows / alone.process_s
        print(f"| {name} | {1000 * alone.hold_s:.1f} | {1000 * waiting.hold_s:.1f} | {rate:,.0f} |", flush=True)
