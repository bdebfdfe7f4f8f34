"""A soak: a job under load for hours, with a kill every minute; then slopes of all resources, and the verdict.

    python -m tests.soak.run --hours 2 [--rate 1000] [--seed 7] [--kill-every 60]

Without `--rate` the job takes 70 % of the rows per second that the job takes at most, measured before. Exits with 0
only if no output lost, doubled or changed a row, nothing grows, and no process, port or file is left behind. A signal
ends the soak early, with a summary. Needs Java for Kafka. Writes all below `build/soak/<time>`.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.machine import describe
from examples.servers.kafka import KafkaServer, kafka_server
from tests.integration.chaos.processes import Listener, all_listeners, family, listeners_of, send
from tests.integration.chaos.supervisor import Supervisor
from tests.soak.judge import Judge
from tests.soak.plan import Victim, victims
from tests.soak.program import SoakSettings
from tests.soak.samples import Minute, processes, stored
from tests.soak.summary import Result, figures, minute_line, table
from tests.soak.workload import JOB, PARTITIONS, counted_topic, joined_topic

ROOT = Path("build/soak")
_SHARE = 0.7
_FLOOD = 2_000_000.0  # rows per second that no machine takes
_WARM_S, _MEASURED_S = 20.0, 30.0
_START_S = _END_S = 900.0  # on a machine that has much else to do
_LOOK_S = 0.2
_MOST_ENDS = 2  # of the program by itself: a program that cannot start ends again and again
_LATE_S = 180.0  # of windows
_KEPT_BYTES = 512 << 20  # of a partition: enough for a judge that is late
_SEGMENT_BYTES = 64 << 20


@dataclass(frozen=True)
class Chosen:
    hours: float
    rate: float | None
    seed: int
    slots: int = 3
    kill_every_s: float = 60.0
    sample_every_s: float = 60.0

    @property
    def warm_up_s(self) -> float:
        return min(600.0, self.hours * 3600 * 0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0, help="fractions are allowed")
    parser.add_argument("--rate", type=float, help="rows per second; default: 70 %% of the most that the job takes")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--sample-every", type=float, default=60.0, help="seconds")
    given = parser.parse_args()
    chosen = Chosen(given.hours, given.rate, given.seed, given.slots, given.kill_every, given.sample_every)
    folder = (ROOT / time.strftime("%d-%H%M%S")).resolve()
    result = soak(chosen, folder, _say)
    told = table(result, chosen.warm_up_s)
    (folder / "result.txt").write_text(told + "\n")
    print(told, f"{folder}/result.json", sep="\n")
    return 0 if result.clean else 1


def soak(chosen: Chosen, folder: Path, say: Callable[[str], None]) -> Result:
    """Runs with all files below `folder`, which must not exist yet. Leaves the result and logs there."""
    for name in ("logs", "tmp", "local", "checkpoints", "output"):
        (folder / name).mkdir(parents=True)
    run = Run(chosen, folder, f"soak-{folder.name}-{os.getpid()}", say)
    with contextlib.ExitStack() as stack:
        stack.callback(run.end_family)
        server = stack.enter_context(kafka_server(transaction_max_timeout_ms=900_000))
        result = run.through(server)
    (folder / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    if result.clean:
        for name in ("tmp", "local", "checkpoints", "output"):
            shutil.rmtree(folder / name)
    return result


@dataclass
class Run:
    chosen: Chosen
    folder: Path
    name: str
    say: Callable[[str], None]
    minutes: list[Minute] = field(default_factory=list)
    kills: Counter[Victim] = field(default_factory=Counter)
    capacity: float | None = None
    rate: float = 0.0
    stopped: bool = False  # by a signal

    def __post_init__(self) -> None:
        self._generations = set[int]()
        self._listeners = set[Listener]()
        self._trouble: list[str] = []

    def through(self, server: KafkaServer) -> Result:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        if self.chosen.rate is None:
            self.capacity = self._measured(server)
            self.rate = self.capacity * _SHARE
            self.say(f"the job takes {self.capacity:,.0f} rows a second; the soak has {self.rate:,.0f}")
        else:
            self.rate = self.chosen.rate
        _create_topics(server, JOB)
        rows = round(self.rate * self.chosen.hours * 3600)
        supervisor = self._supervisor(JOB, server.bootstrap, self.rate, rows)
        judge = Judge(JOB, server.bootstrap, self.folder / "output")
        with contextlib.closing(judge):
            try:
                self._soak(supervisor, judge, rows)
                self._end(supervisor, judge)
            except Exception as error:  # any error: the figures so far are evidence
                traceback.print_exc()
                self._trouble.append(f"{type(error).__name__}: {error}")
            return self._result(supervisor, judge, rows)

    def end_family(self) -> None:
        for process in family(self.name):
            send(process, signal.SIGKILL)

    # ------------------------------------------------------------ before

    def _measured(self, server: KafkaServer) -> float:
        """Most rows per second from the source to committed rows in Kafka."""
        job = f"{JOB}-capacity"
        _create_topics(server, job)
        supervisor = self._supervisor(job, server.bootstrap, _FLOOD, None)
        judge = Judge(job, server.bootstrap, self.folder / "output")
        supervisor.start()

        def rows_until(at: float) -> int:
            while time.monotonic() < at and not self.stopped:
                self._look(supervisor, judge)
            return judge.rows

        with contextlib.closing(judge):
            deadline = time.monotonic() + _START_S
            while not rows_until(time.monotonic() + _LOOK_S):
                if time.monotonic() > deadline or self.stopped:
                    raise TimeoutError(f"nothing was committed {_START_S:.0f} s after the start")
            before = rows_until(time.monotonic() + _WARM_S)
            after = rows_until(time.monotonic() + _MEASURED_S)
        for start in supervisor.starts:
            start.killed = True
        while family(self.name):
            self.end_family()
            time.sleep(_LOOK_S)
        shutil.rmtree(self.folder / "checkpoints" / job)
        return (after - before) / _MEASURED_S

    def _supervisor(self, job: str, bootstrap: str, rate: float, rows: int | None) -> Supervisor:
        def settings(number: int) -> SoakSettings:
            return SoakSettings(
                job=job,
                bootstrap=bootstrap,
                checkpoints=str(self.folder / "checkpoints"),
                target=str(self.folder / "output"),
                status_file=str(self.folder / f"status-{job}-{number}.json"),
                stop_file=str(self.folder / f"stop-{job}-{number}"),
                rows_per_second=rate,
                rows=rows,
                late_s=min(_LATE_S, max(_LATE_S / 3, self.chosen.hours * 3600 * 0.2)),
                parallelism=self.chosen.slots,
            )

        environment = {"TMPDIR": str(self.folder / "tmp"), "SPARK_LOCAL_DIRS": str(self.folder / "local")}
        return Supervisor(self.name, self.folder, environment, settings, "tests.soak.program")

    # ------------------------------------------------------------ on the way

    def _soak(self, supervisor: Supervisor, judge: Judge, rows: int) -> None:
        """Until all rows are visible in all outputs, or a signal."""
        supervisor.start()
        self._until(supervisor, judge, lambda: judge.rows > 0, time.monotonic() + _START_S, "the first row")
        began = time.monotonic()
        self.say("the job runs")
        judge.latency()
        plan = victims(self.chosen.seed)
        length_s = self.chosen.hours * 3600
        kills, samples = (itertools.count(1) for _ in range(2))
        kill_at = began + next(kills) * self.chosen.kill_every_s
        sample_at = began + next(samples) * self.chosen.sample_every_s
        while not self.stopped and not self._all_visible(judge, rows):
            self._look(supervisor, judge)
            now = time.monotonic()
            if now > began + length_s + _END_S:
                raise TimeoutError(
                    f"{_END_S:.0f} s after the last row was due, rows are missing: {judge.missing(rows)}"
                )
            if now >= kill_at:
                kill_at = began + next(kills) * self.chosen.kill_every_s
                if now < began + length_s:
                    self._kill(supervisor, *next(plan))
            if now >= sample_at:
                sample_at = began + next(samples) * self.chosen.sample_every_s
                self._sample(now - began, judge)

    def _all_visible(self, judge: Judge, rows: int) -> bool:
        return judge.rows >= rows and not any(judge.missing(rows).values())

    def _until(
        self, supervisor: Supervisor, judge: Judge, done: Callable[[], object], deadline: float, what: str
    ) -> None:
        while not done() and not self.stopped:
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited too long for {what}")
            self._look(supervisor, judge)

    def _look(self, supervisor: Supervisor, judge: Judge) -> None:
        supervisor.tick()
        if len(supervisor.unexpected) > _MOST_ENDS:
            raise ChildProcessError(supervisor.unexpected[-1].tail)
        judge.look()
        status = supervisor.status()
        if status is not None and status.token:
            self._generations.add(status.token)
        time.sleep(_LOOK_S)

    def _kill(self, supervisor: Supervisor, victim: Victim, choice: float) -> None:
        role = {"program": "driver", "coordinator": "coordinator"}.get(victim, "slot")
        status = supervisor.status()
        first = next((slot.pid for slot in status.slots if slot.slot == 0), 0) if status is not None else 0
        found = [each for each in family(self.name, supervisor.current.number) if each.role == role]
        if role == "slot":
            found = [each for each in found if (each.pid == first) == (victim == "slot 0")]
        if not found:
            self.say(f"no {victim} is there to kill")
            return
        if victim == "program":
            supervisor.current.killed = True
        if send(found[min(int(choice * len(found)), len(found) - 1)], signal.SIGKILL):
            self.kills[victim] += 1

    def _sample(self, at_s: float, judge: Judge) -> None:
        local = [self.folder / "local", self.folder / "tmp"]
        minute = Minute(
            at_s,
            processes(self.name),
            stored(self.folder / "checkpoints", JOB, local, self.folder / "output"),
            judge.latency(),
            self.kills.total(),
            judge.rows,
            os.getloadavg()[0],
        )
        self._listeners |= listeners_of({process.pid for process in family(self.name)})
        self.minutes.append(minute)
        self.say(minute_line(minute))

    def _stop(self, *_: object) -> None:
        self.stopped = True

    # ------------------------------------------------------------ the end

    def _end(self, supervisor: Supervisor, judge: Judge) -> None:
        early, self.stopped = self.stopped, False
        self.say("a signal ends the soak" if early else "all rows are visible")
        supervisor.ending = True
        supervisor.stop()
        deadline = time.monotonic() + _END_S
        self._until(supervisor, judge, lambda: supervisor.ended, deadline, "the end of the program")
        judge.look()
        left: Callable[[], object] = lambda: family(self.name) or self._listeners & all_listeners()  # noqa: E731
        self._until(supervisor, judge, lambda: not left(), deadline, "the end of all processes and ports")
        files = [each.name for place in ("tmp", "local") for each in (self.folder / place).rglob("*") if each.is_file()]
        if files:
            self._trouble.append(f"{len(files)} files are left behind: {files[:5]}")

    def _result(self, supervisor: Supervisor, judge: Judge, rows: int) -> Result:
        findings = judge.findings()
        why_not = [*self._trouble, *(f"{name}: {number}" for name, number in findings.items() if number)]
        why_not += judge.figures.examples[:3] if why_not else []
        why_not += [f"start {end.start} ended with {end.code}: {end.tail[-500:]}" for end in supervisor.unexpected]
        grow = [each.name for each in figures(self.minutes, self.chosen.warm_up_s) if each.verdict == "grows"]
        why_not += [f"{name} grows" for name in grow]
        return Result(
            clean=not why_not,
            why_not=tuple(why_not),
            hours=self.chosen.hours,
            rate=self.rate,
            capacity=self.capacity,
            seed=self.chosen.seed,
            kills=dict(self.kills),
            starts_of_the_program=len(supervisor.starts),
            generations=len(self._generations),
            rows={"counted rows": judge.rows, "joined rows": judge.joined.seen, "windows": judge.windows},
            findings=findings,
            minutes=tuple(self.minutes),
            output_files=self.minutes[-1].stored.output_files if self.minutes else 0,
            told=(describe(),),
        )


def _create_topics(server: KafkaServer, job: str) -> None:
    for topic in (counted_topic(job), joined_topic(job)):
        server.create_topic(topic, PARTITIONS, retention_bytes=_KEPT_BYTES, segment_bytes=_SEGMENT_BYTES)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
