"""A run of an engine: starts, feeds, watches and stops the engine's process, and computes the results.

The measured interval begins a warm-up after the first output. Rows are chosen by their *due* time, so late rows of a
stalled engine are included. After the interval the engine continues for some seconds, so that these rows can come
out.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from benchmarks.broker import PARTITIONS, LoadedKafka
from benchmarks.counted_s3 import CountedS3, counted_s3
from benchmarks.engines import ENGINES
from benchmarks.engines.words import PREFIX
from benchmarks.spec import BoundedRun, Facts, RunResult, RunSpec
from benchmarks.stamps import Stamps, checkpoint_figures, gaps_ms, held, percentiles, read_stamps, timeline
from benchmarks.usage import Usage
from benchmarks.visible import Watcher, emitted_in_key, emitted_in_value
from benchmarks.workloads import workload

_START_S = 180.0
_END_S = 120.0
_BOUNDED_S = 1200.0
_AFTER_S = 4.0
_LAST_LINES = 15


class EngineFailed(RuntimeError):
    """An engine's process ended or hung. The message has its last log lines."""


class Engine:
    """The process of an engine, and the words from the process so far."""

    def __init__(self, spec: RunSpec, environment: Mapping[str, str]) -> None:
        self.folder = Path(spec.folder)
        file = self.folder / "spec.json"
        file.write_bytes(msgspec.json.encode(spec))
        self._log = self.folder / "engine.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", ENGINES[spec.engine].module, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment},
            )
        self.said: dict[str, int] = {}
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._listen, name="engine-words", daemon=True)
        self._reader.start()

    def wait_for(self, word: str, patience_s: float) -> int:
        """Waits for the word; returns when the engine sent the word (ns)."""
        with self._changed:
            self._changed.wait_for(lambda: word in self.said or "end" in self.said, patience_s)
        if word not in self.said:
            raise EngineFailed(f"never said {word!r}: {self.last_words()}")
        return self.said[word]

    def stop(self) -> None:
        """Closes the process's standard input and waits for the end. Raises `EngineFailed` on a bad exit."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"does not stop: {self.last_words()}") from None
        if code != 0:
            raise EngineFailed(f"ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Exception" in line or "Error" in line]
        return "\n".join([*errors[:3], *lines[-_LAST_LINES:]])

    def kill(self) -> None:
        """Kills the process and all processes below it."""
        import psutil

        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            for process in [*root.children(recursive=True), root]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.wait()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(PREFIX):
                word, at_ns = line[len(PREFIX) :].split()
                self._note(word, int(at_ns))
        self._note("end", time.time_ns())

    def _note(self, word: str, at_ns: int) -> None:
        with self._changed:
            self.said.setdefault(word, at_ns)
            self._changed.notify_all()


def run(spec: RunSpec, kafka: LoadedKafka | None) -> RunResult:
    """Never raises for a failure of the engine; the result then has `error`."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(counted_s3()) if spec.storage == "s3" else None
        if store is not None:
            spec = msgspec.structs.replace(spec, storage_url=f"{store.url}/bench?endpoint={store.endpoint}")
        return _run(prepared(spec, kafka), store)


def _run(spec: RunSpec, store: CountedS3 | None) -> RunResult:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    engine = Engine(spec, store.for_clients if store is not None else {})
    try:
        with Usage(engine.process.pid) as usage:
            found = _bounded(spec, engine, usage) if spec.rows else _endless(spec, engine, usage, store)
    except EngineFailed as error:
        found = {"error": str(error)}
    finally:
        engine.kill()
    facts = _facts(spec)
    shutil.rmtree(Path(spec.folder, "checkpoints"), ignore_errors=True)
    return RunResult(
        engine=spec.engine,
        version=facts.version if facts else "",
        settings=facts.settings if facts else {},
        workload=spec.workload,
        measure=spec.measure,
        source=spec.source,
        sink=spec.sink,
        round=spec.round,
        rate=spec.rate,
        rows=spec.rows,
        keys=spec.keys,
        parallelism=spec.parallelism,
        interval_ms=spec.interval_ms,
        latency_target_ms=spec.latency_target_ms,
        guarantee=spec.guarantee,
        seconds=spec.seconds,
        started=started,
        **found,  # type: ignore[arg-type]
    )


def prepared(spec: RunSpec, kafka: LoadedKafka | None) -> RunSpec:
    """The run with an empty folder and, for Kafka, with new topics, unless the topic is filled already."""
    if not spec.folder:
        raise ValueError("a run empties its folder: give RunSpec.folder, or the current directory would be emptied")
    folder = Path(spec.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spec = msgspec.structs.replace(spec, folder=str(folder))
    if "kafka" not in (spec.source, spec.sink):
        return spec
    assert kafka is not None, "this run reads or writes Kafka and there is no broker"
    if spec.topic_in:
        return msgspec.structs.replace(spec, bootstrap=kafka.bootstrap)
    topics = {"topic_in": f"in-{time.monotonic_ns()}", "topic_out": f"out-{time.monotonic_ns()}"}
    kafka.create_topic(topics["topic_in"], PARTITIONS)
    kafka.create_topic(topics["topic_out"], PARTITIONS, message_timestamp_type="LogAppendTime")
    return msgspec.structs.replace(spec, bootstrap=kafka.bootstrap, **topics)


def _endless(spec: RunSpec, engine: Engine, usage: Usage, store: CountedS3 | None) -> dict[str, object]:
    feeder = None
    with contextlib.ExitStack() as stack:
        watcher = None
        if spec.sink == "kafka":
            watcher = stack.enter_context(watching(spec))
        engine.wait_for("running", _START_S)
        if spec.source == "kafka":
            feeder = stack.enter_context(Feeder(spec))
        folder = Path(spec.folder)
        wait_for_output(engine, lambda: _stamped(folder) or (watcher is not None and bool(watcher.rows)))
        first_ns = time.time_ns() + int(spec.warm_up_s * 1e9)
        last_ns = first_ns + int(spec.seconds * 1e9)
        go_on(engine, first_ns)
        requests = store.requests() if store is not None else 0
        go_on(engine, last_ns)
        requests = store.requests() - requests if store is not None else 0
        go_on(engine, last_ns + int(_AFTER_S * 1e9))
        engine.stop()
    stamps, appended = watcher.both(first_ns) if watcher is not None else (read_stamps(Path(spec.folder)), None)
    found = _latency(spec, stamps, usage, first_ns, last_ns, requests)
    if appended is not None:
        found["appended"] = percentiles(appended.due_in(first_ns, last_ns).latency_ns)
    return {**found, "feeder_late_ms": feeder.late_ms if feeder is not None else None}


def watching(spec: RunSpec) -> Watcher:
    emitted = emitted_in_key if workload(spec.workload).input == "records" else emitted_in_value
    return Watcher(spec.bootstrap, spec.topic_out, PARTITIONS, emitted)


def go_on(engine: Engine, until_ns: int) -> None:
    while (left_ns := until_ns - time.time_ns()) > 0:
        if "end" in engine.said:
            raise EngineFailed(f"ended by itself: {engine.last_words()}")
        time.sleep(min(left_ns / 1e9, 0.1))


def _stamped(folder: Path) -> bool:
    return any(file.stat().st_size for file in folder.glob("rows-*")) or any(folder.glob("first-*"))


def wait_for_output(engine: Engine, seen: Callable[[], bool]) -> None:
    """Waits for the first output row, however late: the warm-up begins with this row."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if "end" in engine.said:
            raise EngineFailed(f"ended before any output: {engine.last_words()}")
        if seen():
            return
        time.sleep(0.05)
    raise EngineFailed(f"no output within {_START_S:.0f} s: {engine.last_words()}")


def _latency(
    spec: RunSpec, stamps: Stamps, usage: Usage, first_ns: int, last_ns: int, requests: int
) -> dict[str, object]:
    due = stamps.due_in(first_ns, last_ns)
    if not len(due.arrived):
        raise EngineFailed("no row that was due in the measured interval came out")
    facts = _facts(spec)
    checkpoints = [one for one in (facts.checkpoints if facts else []) if first_ns <= one.at_ns < last_ns]
    kept_up = held(due, first_ns, last_ns)
    cpu_s = usage.cpu_between(first_ns, last_ns)
    gap_ms, around_ms = gaps_ms(stamps, first_ns, last_ns, checkpoints)
    return {
        "visible" if spec.sink == "kafka" else "processed": percentiles(due.latency_ns),
        "held": kept_up,
        "cpu_s": round(cpu_s, 2),
        "cores": round(cpu_s * 1e9 / (last_ns - first_ns), 3),
        "cpu_s_per_million": round(cpu_s / (spec.rate * spec.seconds) * 1e6, 3) if kept_up else None,
        "peak_mb": round(usage.peak_mb()),
        "gap_ms": round(gap_ms, 2),
        "checkpoint_gap_ms": round(around_ms, 2) if around_ms is not None else None,
        "checkpoints": checkpoint_figures(
            checkpoints, requests / len(checkpoints) if requests and checkpoints else None
        ),
        "checkpoint_times_s": [round((one.at_ns - first_ns) / 1e9, 3) for one in checkpoints],
        "timeline": timeline(due, first_ns),
    }


def _bounded(spec: RunSpec, engine: Engine, usage: Usage) -> dict[str, object]:
    began_ns = engine.wait_for("began", _START_S)
    finished_ns = engine.wait_for("finished", _BOUNDED_S)
    usage.look()
    engine.stop()
    facts = _facts(spec)
    cpu_s = usage.cpu_between(began_ns, finished_ns)
    seconds = (finished_ns - began_ns) / 1e9
    return {
        "bounded": [BoundedRun(spec.rows, round(seconds, 3), round(cpu_s, 2))],
        "rows_per_s": round(spec.rows / seconds),
        "cpu_s": round(cpu_s, 2),
        "cores": round(cpu_s / seconds, 3),
        "cpu_s_per_million": round(cpu_s / spec.rows * 1e6, 3),
        "peak_mb": round(usage.peak_mb()),
        "checkpoints": checkpoint_figures(facts.checkpoints if facts else []),
    }


def _facts(spec: RunSpec) -> Facts | None:
    file = Path(spec.folder, "facts.json")
    return msgspec.json.decode(file.read_bytes(), type=Facts) if file.exists() else None


class Feeder:
    """The feeder's process while the block runs. `late_ms`, afterwards: the feeder's own lateness."""

    def __init__(self, spec: RunSpec) -> None:
        arguments = [spec.bootstrap, spec.topic_in, str(PARTITIONS), repr(spec.rate), str(spec.keys)]
        if workload(spec.workload).input == "records":
            arguments.append("records")
        self.late_ms: float | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.feeder", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> "Feeder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            said, _ = self._process.communicate(timeout=_END_S)
            self.late_ms = float(said) if said.strip() else None
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
