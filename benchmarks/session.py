"""The commands' work: runs, searches and grids, with each result into results.json."""

import dataclasses
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks import machine, plan
from benchmarks.backlog import is_wide, smaller
from benchmarks.backlog_rows import fill, folder_of
from benchmarks.broker import PARTITIONS, LoadedKafka, broker
from benchmarks.checkpoint_cost import cost, size
from benchmarks.engines import ENGINES
from benchmarks.plan import Wanted
from benchmarks.progress import Progress
from benchmarks.rates import highest_held, next_rate
from benchmarks.real_time_kills import counted_kills
from benchmarks.recovery import Setting, Victim, recoveries
from benchmarks.report import write_report
from benchmarks.runner import run
from benchmarks.spec import RateHeld, Results, RunResult, RunSpec, decoded, encoded
from benchmarks.throughput import of_both, throughput

FOLDER = Path("build/bench")
_LOWEST, _HIGHEST = 1_000.0, 5_000_000.0


class Store:
    """results.json, written after every run, so that an interrupted benchmark keeps the results so far."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "results.json"
        kept = self._file.exists() and not fresh
        self.results = decoded(self._file.read_bytes()) if kept else Results()
        if not kept:
            self.results.machine = machine.facts()
            self.results.started = time.strftime("%Y-%m-%d %H:%M:%S")
        self.results.command = "; ".join(filter(None, [self.results.command, machine.command()]))

    def save(self) -> None:
        part = self._file.with_suffix(".part")
        part.write_bytes(encoded(self.results))
        part.replace(self._file)

    def report(self) -> None:
        self.save()
        for path in write_report(self.results, self._folder):
            print(path)


def there(store: Store, engines: Sequence[str]) -> list[str]:
    """Engines that can run here; the results record why the others cannot."""
    unknown = set(engines) - set(ENGINES)
    if unknown:
        raise KeyError(f"no engine {', '.join(sorted(unknown))}: {', '.join(ENGINES)}")
    setups = {setup for engine in engines if (setup := ENGINES[engine].setup) is not None}
    reasons = {setup: importlib.import_module(setup).missing() for setup in sorted(setups)}
    left_out = {
        engine: reason
        for engine in engines
        if (setup := ENGINES[engine].setup) is not None and (reason := reasons[setup]) is not None
    }
    for engine, reason in left_out.items():
        store.results.left_out[engine] = reason
        print(f"{engine} is left out: {reason}", file=sys.stderr)
    return [engine for engine in engines if engine not in left_out]


def measure(store: Store, wanted: Wanted) -> None:
    wanted = dataclasses.replace(wanted, engines=there(store, wanted.engines))
    specs = list(plan.runs(wanted))
    if not specs:
        return
    minutes = plan.estimated_s(specs) / 60
    with ExitStack() as stack:
        kafka = stack.enter_context(broker()) if any(_needs_kafka(spec) for spec in specs) else None
        progress = stack.enter_context(Progress(len(specs), f"about {minutes:.0f} min"))
        for spec in specs:
            progress.say(spec.name)
            placed = _placed(spec, wanted.folder)
            result = throughput(placed, FOLDER / "input") if spec.rows else run(placed, kafka)
            if result.error is not None:
                progress.note(f"failed: {spec.name}: {result.error.splitlines()[0]}")
            store.results.runs.append(result)
            store.save()
            progress.step()


def search(store: Store, engines: Sequence[str], picked: Sequence[str], sizes: Sequence[int], rounds: int) -> None:
    engines = there(store, engines)
    cells = [
        RunSpec(
            engine=engine,
            workload=workload,
            measure="latency",
            source="generator",
            sink="measure",
            keys=keys,
            seconds=15.0,
            warm_up_s=8.0,
            round=number,
        )
        for number in range(rounds)
        for workload in picked
        for keys in sizes
        for engine in engines
    ]
    cells = [cell for cell in cells if plan.can(cell.engine, cell)]
    with Progress(len(cells), "highest rate held") as progress:
        for cell in cells:
            tried: list[tuple[float, bool]] = []
            while (rate := next_rate(tried, 50_000.0, _LOWEST, _HIGHEST)) is not None:
                spec = msgspec.structs.replace(cell, rate=rate)
                progress.say(spec.name)
                result = run(_placed(spec, str(FOLDER / "run")), None)
                tried.append((rate, bool(result.held)))
            store.results.rates.append(
                RateHeld(
                    engine=cell.engine,
                    workload=cell.workload,
                    keys=cell.keys,
                    source=cell.source,
                    round=cell.round,
                    rate=highest_held(tried),
                    tried=tried,
                )
            )
            store.save()
            progress.step()


def recover(
    store: Store, victims: Sequence[Victim], kills: int, rate: float, pause_s: float, setting: Setting = Setting()
) -> None:
    with Progress(len(victims) * kills, "recovery") as progress:
        for victim in victims:
            try:
                store.results.recoveries.extend(recoveries([victim], kills, rate, 10_000, pause_s, progress, setting))
            except RuntimeError as error:
                progress.note(f"failed: SIGKILL of {victim}: {error}")
                store.results.left_out[f"SIGKILL of {victim}"] = str(error)
            store.save()


def grid(store: Store, costs: Sequence[RunSpec], sizes: Sequence[RunSpec]) -> None:
    with Progress(len(costs) + len(sizes), "checkpoints") as progress:
        for spec in costs:
            progress.say(f"{spec.name}, every {spec.interval_ms} ms")
            found = cost(spec, FOLDER / "input", progress)
            store.results.grid.extend([found] if found is not None else [])
            store.save()
            progress.step()
        for spec in sizes:
            progress.say(f"{spec.keys:,} keys, {spec.rate:g} changed per second, {spec.storage}")
            store.results.sizes.append(size(spec))
            store.save()
            progress.step()


def latency_targets(store: Store, specs: Sequence[RunSpec], folder: Path) -> None:
    _one_by_one(
        store, specs, folder, store.results.targets, lambda spec: f"latency_target {spec.latency_target_ms:g} ms, "
    )


def growth(store: Store, specs: Sequence[RunSpec], folder: Path) -> None:
    _one_by_one(store, specs, folder, store.results.growth, lambda spec: f"parallelism {spec.parallelism}, ")


def real_time(store: Store, specs: Sequence[RunSpec], folder: Path) -> None:
    with broker() as kafka:
        _one_by_one(store, specs, folder, store.results.real_time, lambda spec: f"{spec.guarantee}, ", kafka)


def backlog(store: Store, specs: Sequence[RunSpec], folder: Path, inputs: Path) -> None:
    """Runs each spec over a part of the rows and over all rows; topics and files are filled once."""
    with ExitStack() as stack:
        kafka = stack.enter_context(broker()) if any(_needs_kafka(spec) for spec in specs) else None
        rows = _Backlogs(kafka, inputs)
        progress = stack.enter_context(Progress(len(specs), f"about {plan.estimated_s(specs) * 2 / 60:.0f} min"))
        for spec in specs:
            progress.say(spec.name)
            placed = _placed(spec, str(folder))
            result = run(rows.of(smaller(placed)), kafka)
            if result.error is None:
                result = of_both(result, run(rows.of(placed), kafka))
            if result.error is not None:
                progress.note(f"failed: {spec.name}: {result.error.splitlines()[0]}")
            store.results.backlogs.append(msgspec.structs.replace(result, rows=spec.rows))
            store.save()
            progress.step()


class _Backlogs:
    """Filled topics and files, by number and kind of their rows."""

    def __init__(self, kafka: LoadedKafka | None, inputs: Path) -> None:
        self._kafka = kafka
        self._inputs = inputs
        self._topics: dict[tuple[int, bool], str] = {}

    def of(self, spec: RunSpec) -> RunSpec:
        """`spec` with the topic or folder of the run's input."""
        if spec.source != "kafka":
            return msgspec.structs.replace(spec, input=str(folder_of(spec.source, spec.rows, self._inputs)))
        return msgspec.structs.replace(spec, topic_in=self._topic(spec.rows, is_wide(spec.workload)))

    def _topic(self, rows: int, wide: bool) -> str:
        assert self._kafka is not None
        if (rows, wide) not in self._topics:
            topic = self._topics[(rows, wide)] = f"backlog-{rows}{'-wide' if wide else ''}"
            self._kafka.create_topic(topic, PARTITIONS)
            fill(self._kafka.bootstrap, topic, PARTITIONS, rows, wide)
        return self._topics[(rows, wide)]


def real_time_kills(store: Store, specs: Sequence[RunSpec], folder: Path, kills: int, pause_s: float) -> None:
    with broker() as kafka, Progress(len(specs), "kills") as progress:
        for spec in specs:
            progress.say(f"kills, {spec.guarantee}, {spec.name}")
            found = counted_kills(_placed(spec, str(folder)), kafka, kills, pause_s)
            if found.error is not None:
                progress.note(f"failed: {spec.guarantee}, {spec.name}: {found.error.splitlines()[0]}")
            store.results.kill_counts.append(found)
            store.save()
            progress.step()


def _one_by_one(
    store: Store,
    specs: Sequence[RunSpec],
    folder: Path,
    into: list[RunResult],
    special: Callable[[RunSpec], str],
    kafka: LoadedKafka | None = None,
) -> None:
    minutes = plan.estimated_s(specs) / 60
    with Progress(len(specs), f"about {minutes:.0f} min") as progress:
        for spec in specs:
            progress.say(f"{special(spec)}{spec.name}")
            result = run(_placed(spec, str(folder)), kafka)
            if result.error is not None:
                progress.note(f"failed: {special(spec)}{spec.name}: {result.error.splitlines()[0]}")
            into.append(result)
            store.save()
            progress.step()


def _needs_kafka(spec: RunSpec) -> bool:
    return "kafka" in (spec.source, spec.sink)


def _placed(spec: RunSpec, folder: str) -> RunSpec:
    return msgspec.structs.replace(spec, folder=f"{folder}/{spec.engine}")
