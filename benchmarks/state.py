"""Cost of a call on keyed state in a row-wise function, by kind, on RocksDB and a single core.

    python -m benchmarks.state [--calls 200000] [--keys 10000] [--many 500000] [--rounds 5] [--kind WORDS]

Neither Spark nor an event loop runs. Each kind has a separate backend with a timer table or two, like a function's
step. Keys come in turn, in a mixed order. With `--keys` all state fits into the caches, as in a usual program; with
`--many` keys it does not, so a call reads from RocksDB and causes deferred writes. List elements and timers are new
with each call, so the cost of a call includes the write of this element or timer, or of an earlier one. A checkpoint
follows each round and is not in the figures.

Timers are set for times in no order, and for rising times as in a stream. Reported is the lowest processor time per
call of the rounds, of all threads, minus the loop around the calls; the interpreter is as in a slot.

Then follow three other measurements, with `--calls` of each: a row of a side output compared with a row of the main
output; the time in the loop of a slice of a sweep of expired state; and a restore of entries that `migrate=` has to
convert, compared with a restore of unchanged entries.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime import TTL, ListState, MapState, ReducingState, ValueState
from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.keyed.timers import TABLE, Timers
from barrier_runtime.operators.keyed.wall_timers import WALL_TABLE
from barrier_runtime.operators.state.handle import CurrentKey, KeyedState, StateKey
from barrier_runtime.operators.state.ttl import Timing
from barrier_runtime.runtime.host.process import PROCESS_HEAP, tune_interpreter
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.values.timed_table import ExpirySweep
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings
from benchmarks.timers import checkpoint, opened

Call: TypeAlias = Callable[[int], object]  # with the number of the row; the key is set before
Made: TypeAlias = Callable[[KeyedBackend, CurrentKey], Call]

_MEMORY_MB = 256
_STEP = 7_919  # prime: neighbours in the loop are not neighbours in the state
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
    """Reads entries; the first round puts each entry, so that round is never the lowest."""
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


# Whether many keys make a difference: each new element and each new timer is written anyway.
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
    """The lowest of the rounds, for all calls."""
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


class _Returns:
    def process(self, key: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"k": key, "n": row["n"]}


class _Yields:
    def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        yield {"k": key, "n": row["n"]}


class _Emits:
    def process(self, key: str, row: dict[str, Any], ctx: Any) -> None:
        ctx.emit("side", {"k": key, "n": row["n"]})


def _outputs(rows: int, rounds: int) -> None:
    """Batches of 10,000 rows into `process`, whose output is discarded."""
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    parts = [{"k": [f"key-{n % 1_000}" for n in range(10_000)], "n": list(range(at, at + 10_000))} for at in range(4)]
    batches = [Batch(pa.RecordBatch.from_pydict(part, schema), 0) for part in parts]
    folder, least_s = Path(tempfile.mkdtemp(prefix="barrier-state-")), dict[str, float]()
    given = Emit(lambda batch: None, {"side": [lambda batch: None]})
    try:
        operators = {
            "main output, returned": ProcessOperator("returns", ["k"], _Returns, output=schema),
            "main output, yielded": ProcessOperator("yields", ["k"], _Yields, output=schema),
            "side output": ProcessOperator("emits", ["k"], _Emits, output=schema, side={"side": schema}),
        }
        for name, operator in operators.items():
            operator.open(Surroundings(folder, 0, 1).context(name))
        for _ in range(rounds):
            for name, operator in operators.items():
                began_s = time.process_time()
                for number in range(rows // 10_000):
                    operator.process(batches[number % len(batches)], given)
                least_s[name] = min(least_s.get(name, 1e9), time.process_time() - began_s)
        for operator in operators.values():
            operator.close()
    finally:
        shutil.rmtree(folder)
    for name, spent_s in least_s.items():
        print(f"  {'a row of a ' + name:<44} {spent_s / rows * 1e9:7,.0f} ns", flush=True)


def _sweep(entries: int) -> None:
    """A sweep over entries that have all expired."""
    folder, later, clock = Path(tempfile.mkdtemp(prefix="barrier-state-")), list[Callable[[], None]](), [0]
    current = CurrentKey()
    current.timing = timing = Timing(lambda: clock[0], lambda: 0)
    backend = opened(folder, "first", _MEMORY_MB)
    try:
        value: ValueState[int] = _bound(backend, current, ValueState(int, ttl=TTL(timedelta(1), clock="processing")))
        for number in range(entries):
            current.key = (f"key-{number}",)
            value.value = number
        checkpoint(backend, 1)
        clock[0] = 2 * 86_400_000
        timing.wall.read()
        sweep = ExpirySweep(timing.tables, time.perf_counter, lambda _, slice: later.append(slice), lambda: None)
        sweep.look()
        slices_ms = []
        while later:
            began_s = time.thread_time()
            later.pop()()
            slices_ms.append((time.thread_time() - began_s) * 1e3)
    finally:
        backend.close()
        shutil.rmtree(folder)
    slices_ms.sort()
    p99_ms = slices_ms[len(slices_ms) * 99 // 100]
    print(
        f"  a slice of a sweep, {len(slices_ms)} of them: p99 {p99_ms:.2f} ms, longest {slices_ms[-1]:.2f} ms",
        flush=True,
    )


def _restores(entries: int, rounds: int) -> None:
    """Processor time until the state is open, and then of the first and the second look at each entry."""
    folder, current = Path(tempfile.mkdtemp(prefix="barrier-state-")), CurrentKey()
    backend, keys = opened(folder, "first", _MEMORY_MB), [(f"key-{number}",) for number in range(entries)]
    kinds = {"as they are": ValueState(int), "made new": ValueState(int, migrate=lambda old: old + 1)}
    spent_s: dict[str, list[float]] = {name: [1e9] * 3 for name in kinds}
    try:
        value: ValueState[int] = _bound(backend, current, ValueState(int))
        for number, current.key in enumerate(keys):
            value.value = number
        restored = (OperatorSnapshot("timers", 0, 1, keyed=checkpoint(backend, 1)),)
        backend.close()
        for number, (name, declared) in enumerate([*kinds.items()] * rounds):
            began_s = time.process_time()
            backend = opened(folder, f"restored-{number}", _MEMORY_MB, restored)
            value = _bound(backend, current, declared)
            times_s = [time.process_time()]
            for _ in range(2):
                for current.key in keys:
                    value.value  # noqa: B018
                times_s.append(time.process_time())
            backend.close()
            found = [times_s[0] - began_s, times_s[1] - times_s[0], times_s[2] - times_s[1]]
            spent_s[name] = [min(pair) for pair in zip(spent_s[name], found, strict=True)]
    finally:
        shutil.rmtree(folder)
    for name, (open_s, *looks_s) in spent_s.items():
        looks = ", ".join(f"{each / entries * 1e9:,.0f}" for each in looks_s)
        print(
            f"  a restore of {entries:,} entries {name}: {open_s * 1e3:.1f} ms, then two looks {looks} ns", flush=True
        )


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
    others: dict[str, Callable[[], None]] = {
        "outputs": lambda: _outputs(given.calls, given.rounds),
        "sweep": lambda: _sweep(given.calls),
        "restores": lambda: _restores(given.calls, given.rounds),
    }
    for name, measure in others.items():
        if given.kind is None or given.kind in name:
            measure()


if __name__ == "__main__":
    main()
