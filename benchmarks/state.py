"""What one call on keyed state costs a row-wise function, by kind, on RocksDB and in one core: no Spark, no loop.

    python -m benchmarks.state [--calls 200000] [--keys 10000] [--rounds 5]

Timers are set for times in no order, and for times that go on as those of a stream do (a minute ahead, say); what a
timer costs includes that it, or one before it, is written behind to RocksDB.

Keys come round in a mixed order and fit into memory, as the keys of a running program do; a checkpoint follows each
round and is not in the figures. Reported is the least processor time per call of the rounds, with the loop around the
calls taken off.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from barrier_runtime import ListState, MapState, ReducingState, ValueState
from barrier_runtime.operators.keyed.timers import TABLE, Timers
from barrier_runtime.operators.state.handle import CurrentKey, KeyedState, StateKey
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from benchmarks.machine import describe
from benchmarks.timers import checkpoint, opened

_MEMORY_MB = 256
_STEP = 7_919  # prime: neighbours in the loop are no neighbours in the state
_MAP_KEYS = 16


def _bound(backend: KeyedBackend, current: CurrentKey, name: str, declared: KeyedState) -> KeyedState:
    return declared.open(backend, name, "benchmark", 1, current, "Benchmark")


def _calls(backend: KeyedBackend, current: CurrentKey) -> dict[str, Callable[[int], object]]:
    """Name → what is called with the number of the row; the key is set before."""
    value: ValueState[int] = ValueState(int, default=0)
    value = _bound(backend, current, "value", value)  # type: ignore[assignment]
    entries: MapState[int, int] = MapState(int, int)
    entries = _bound(backend, current, "map", entries)  # type: ignore[assignment]
    items: ListState[int] = ListState(int)
    items = _bound(backend, current, "list", items)  # type: ignore[assignment]
    peak: ReducingState[int] = ReducingState(int, max)
    peak = _bound(backend, current, "reducing", peak)  # type: ignore[assignment]
    timers = Timers(backend.timer_table(TABLE, 1), current)
    ahead = Timers(backend.timer_table("ahead", 1), current)

    def get_and_set(number: int) -> None:
        value.value += number

    def put(number: int) -> None:
        entries[number % _MAP_KEYS] = number

    return {
        "ValueState: get and set": get_and_set,
        "MapState: put": put,
        "MapState: get": lambda number: entries.get(number % _MAP_KEYS),
        "ListState: append": items.append,
        "ReducingState: add": peak.add,
        "timers.register: any time": lambda number: timers.register(1_000_000 + number * _STEP % 10_000_000),
        "timers.register: as it goes": lambda number: ahead.register(1_000_000 + number),
    }


def _nothing(number: int) -> None:
    pass


def _round_s(
    call: Callable[[int], object], keys: Sequence[StateKey], numbers: Iterable[int], current: CurrentKey
) -> float:
    began_s = time.process_time()
    for number in numbers:
        current.key = keys[number * _STEP % len(keys)]
        call(number)
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="barrier-state-"))
    current, keys = CurrentKey(), [(f"key-{number}",) for number in range(given.keys)]
    backend = opened(folder, "first", _MEMORY_MB)
    least: dict[str, float] = {}
    try:
        calls = {"": _nothing, **_calls(backend, current)}
        for number in range(given.rounds):
            numbers = range(number * given.calls, (number + 1) * given.calls)
            for name, call in calls.items():
                spent_s = _round_s(call, keys, numbers, current)
                least[name] = min(spent_s, least.get(name, spent_s))
            checkpoint(backend, number + 1)
    finally:
        backend.close()
        shutil.rmtree(folder)
    print(describe())
    for name, spent_s in least.items():
        if name:
            print(f"  {name:<28} {(spent_s - least['']) / given.calls * 1e9:7,.0f} ns")


if __name__ == "__main__":
    main()
