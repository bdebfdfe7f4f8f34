"""What one call on keyed state costs a row-wise function, by kind, on RocksDB and in one core: no Spark, no loop.

    python -m benchmarks.state [--calls 200000] [--keys 10000] [--many 500000] [--rounds 5]

Each kind has a backend of its own, with a timer table or two beside it, as the step of a function has. Keys come round
in a mixed order. Of `--keys` all state fits into the caches, as that of a running program does; of `--many` keys it
does not, so that a call reads from RocksDB, and brings what is written behind. Elements of lists, and timers, are new
with each call: what a call costs includes that it, or one before it, is written. A checkpoint follows each round and is
not in the figures.

Timers are set for times in no order, and for times that go on as those of a stream do. Reported is the least processor
time per call of the rounds, of all threads, with the loop around the calls taken off; the interpreter is as in a slot.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from barrier_runtime import ListState, MapState, ReducingState, ValueState
from barrier_runtime.operators.keyed.timers import TABLE, Timers
from barrier_runtime.operators.keyed.wall_timers import WALL_TABLE
from barrier_runtime.operators.state.handle import CurrentKey, KeyedState, StateKey
from barrier_runtime.runtime.host.heap import PROCESS_HEAP
from barrier_runtime.runtime.host.interpreter import tune_interpreter
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from benchmarks.machine import describe
from benchmarks.timers import checkpoint, opened

Call: TypeAlias = Callable[[int], object]  # with the number of the row; the key is set before
Made: TypeAlias = Callable[[KeyedBackend, CurrentKey], Call]

_MEMORY_MB = 256
_STEP = 7_919  # prime: neighbours in the loop are no neighbours in the state
_MAP_KEYS = 16


def _bound(backend: KeyedBackend, current: CurrentKey, declared: KeyedState) -> Any:
    for table in (TABLE, WALL_TABLE):
        backend.timer_table(table, 1)
    return declared.open(backend, "state", "benchmark", 1, current, "Benchmark")


def _value(backend: KeyedBackend, current: CurrentKey) -> Call:
    value: ValueState[int] = _bound(backend, current, ValueState(int, default=0))

    def get_and_set(number: int) -> None:
        value.value += number

    return get_and_set


def _put(backend: KeyedBackend, current: CurrentKey) -> Call:
    entries: MapState[int, int] = _bound(backend, current, MapState(int, int))

    def put(number: int) -> None:
        entries[number % _MAP_KEYS] = number

    return put


def _get(backend: KeyedBackend, current: CurrentKey) -> Call:
    """After each entry was put once: the first round, which is never the least."""
    entries: MapState[int, int] = _bound(backend, current, MapState(int, int))

    def get(number: int) -> None:
        if entries.get(number % _MAP_KEYS) is None:
            entries[number % _MAP_KEYS] = number

    return get


def _append(backend: KeyedBackend, current: CurrentKey) -> Call:
    items: ListState[int] = _bound(backend, current, ListState(int))
    return items.append


def _add(backend: KeyedBackend, current: CurrentKey) -> Call:
    peak: ReducingState[int] = _bound(backend, current, ReducingState(int, max))
    return peak.add


def _any_time(backend: KeyedBackend, current: CurrentKey) -> Call:
    timers = Timers(backend.timer_table(TABLE, 1), current)
    return lambda number: timers.register(1_000_000 + number * _STEP % 10_000_000)


def _as_it_goes(backend: KeyedBackend, current: CurrentKey) -> Call:
    timers = Timers(backend.timer_table(TABLE, 1), current)
    return lambda number: timers.register(1_000_000 + number)


# Whether it makes sense of many keys: each new element, and each new timer, is written anyhow.
_KINDS: dict[str, tuple[Made, bool]] = {
    "ValueState: get and set": (_value, True),
    "MapState: put": (_put, True),
    "MapState: get": (_get, True),
    "ListState: append": (_append, True),
    "ReducingState: add": (_add, True),
    "timers.register: any time": (_any_time, False),
    "timers.register: as it goes": (_as_it_goes, False),
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


def _least_s(made: Made, keys: Sequence[StateKey], calls: int, rounds: int) -> float:
    """Of the rounds, for all calls of one."""
    folder, current = Path(tempfile.mkdtemp(prefix="barrier-state-")), CurrentKey()
    backend = opened(folder, "first", _MEMORY_MB)
    try:
        call, spent_s = made(backend, current), []
        for number in range(rounds):
            numbers = range(number * calls, (number + 1) * calls)
            spent_s.append(_round_s(call, keys, numbers, current) - _round_s(_nothing, keys, numbers, current))
            checkpoint(backend, number + 1)
        return min(spent_s)
    finally:
        backend.close()
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", help="only kinds whose names have this in them")
    given = parser.parse_args()
    tune_interpreter()  # as in a slot
    PROCESS_HEAP.begin()
    few, many = ([(f"key-{number}",) for number in range(count)] for count in (given.keys, given.many))
    print(describe())
    for name, (made, of_many) in _KINDS.items():
        if given.kind is not None and given.kind not in name:
            continue
        for keys, what in ((few, ""), (many, f", {given.many:,} keys")) if of_many else ((few, ""),):
            least_s = _least_s(made, keys, given.calls, given.rounds)
            print(f"  {name + what:<44} {least_s / given.calls * 1e9:7,.0f} ns", flush=True)


if __name__ == "__main__":
    main()
