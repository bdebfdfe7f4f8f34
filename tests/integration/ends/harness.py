"""Runs a job through an end under kills of all parts, watches all the time, and judges at the end.

    report = run_under_kills(
        Path(__file__).with_name("kafka_job.py"),        # has `build(settings) -> Dataflow`
        {"bootstrap": kafka.bootstrap, "rate": 2000},    # what `build` is given (JSON), "rows" too
        folder=tmp_path,
        open_reader=lambda: TopicReader(...).look,       # a fresh reader: called for the watch and for the last rescan
        make_audit=lambda: Numbers(keys=50),             # judges a reader
        server=kafka,
        kills=8,
        seed=7,
        outage_s=8,                                      # the longest outage; the others up to 1.5 s
    )
    assert report.clean, report

A reader's `look` returns all rows visible at the call (or, as `Seen(whole=False)`, the new rows since the last look, as
many as the reader can read within the time limit), and raises on a failure: looks may fail while the server is down.

How a run ends, so that the test knows all rows that must be visible:
- A test that feeds a topic or queue by itself gives `drain`: called when the strikes are over, it stops the feeding and
  returns how many rows there are in all. When they are visible the job is asked to stop.
- Otherwise the job makes rows with `flow.rate(…, settings["rate"], settings["rows"], keys=…)`. `rows` is None until
  the last strike, which is at the program: it is started again with so many `rows` that it ends by itself, at once.

The start of a program costs more processor time than all other strikes together, so no run has more than it needs.

With `moves` the job is rescaled and the program replaced instead, and some of the strikes come meanwhile; it is asked
to stop at the end (see moves.py).

A strike waits until the job progresses: a checkpoint begun since the previous strike is complete, and more rows are
visible. plan.py chooses the strikes, audit.py judges the rows.
"""

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from examples.servers import Server
from tests.integration.chaos.processes import Found, family, send
from tests.integration.chaos.supervisor import Supervisor
from tests.integration.chaos.verdict import Figures
from tests.integration.ends.audit import Audit
from tests.integration.ends.moves import Done, Move, Moved, Order, Orders
from tests.integration.ends.plan import Action, Kind, plan
from tests.integration.ends.program import JobSettings
from tests.integration.ends.several import InTurn
from tests.integration.ends.watch import Watch

PATIENCE_S = 300.0  # for the job to get on after a strike, with the server running
_TICK_S = 0.05
_VICTIM_S = 5.0
_LEAVE_S = 120.0
_EXCUSED_S = 60.0  # after an outage: a program started during the outage may end because of it
_REPORTS = Path("build/ends")
OPTIONS: dict[str, Any] = {
    "master": "local[4,16]",
    "parallelism": 2,
    "checkpoint_interval": 0.2,
    "checkpoint_timeout": 10.0,
    "tolerable_failures": 3,
    "retained": 2,
    "slot_timeout": 4.0,
    "restart_attempts": None,
    "state_memory_mb": 64,
    "spark_conf": {"spark.python.task.killTimeout": "1s", "spark.ui.enabled": "false"},
}


@dataclass(frozen=True)
class Strike:
    kind: Kind
    hold_s: float  # of the server's outage
    got_on_s: float | None  # from the strike (or the server's return) to progress; None: struck again before


@dataclass
class Report:
    seed: int
    strikes: list[Strike]
    seconds: float
    rows: int  # that the job read in all
    looks: int
    blind: int
    observed: Figures  # while the program ran
    rescanned: Figures  # at the end, with a fresh reader
    starts: int
    unexpected: list[str]  # the program ended by itself although the server ran
    left_processes: list[str]
    why_not: list[str] = field(default_factory=list)
    moves: list[Moved] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return len(self.strikes)

    @property
    def clean(self) -> bool:
        return not self.why_not

    def by_kind(self) -> dict[str, int]:
        return {kind: sum(s.kind == kind for s in self.strikes) for kind in sorted({s.kind for s in self.strikes})}

    def moved(self) -> dict[str, int]:
        """Number of completed changes of the running job, by kind."""
        return {
            kind: sum(m.kind == kind and m.done for m in self.moves) for kind in sorted({m.kind for m in self.moves})
        }

    def got_on_s(self) -> dict[str, list[float]]:
        """Seconds until the job progressed again, ascending, by the kind of the last strike."""
        times: dict[str, list[float]] = {}
        for strike in self.strikes:
            if strike.got_on_s is not None:
                times.setdefault(strike.kind, []).append(round(strike.got_on_s, 2))
        return {kind: sorted(each) for kind, each in sorted(times.items())}

    def __str__(self) -> str:
        figures = "; ".join(
            f"{title}: {f.rows} rows, lost {f.lost}, duplicated {f.duplicated}, out of order {f.out_of_order}, "
            f"wrong state {f.wrong_state}, torn {f.torn}, wrong observations {f.wrong_observations} of {f.observations}"
            for title, f in (("observed", self.observed), ("rescanned", self.rescanned))
        )
        figures += "".join(f"; {count} {kind}s" for kind, count in self.moved().items())
        why = "".join(f"\n  {line}" for line in self.why_not)
        return (
            f"seed {self.seed}: {self.kills} strikes {self.by_kind()} in {self.seconds:.0f} s, {self.rows} rows, "
            f"{self.looks} looks ({self.blind} failed), {self.starts} starts of the program\n"
            f"  got on after (s): {self.got_on_s()}\n  {figures}{why}"
        )


class StuckJob(Exception):
    """The job did not progress in time although no strike prevented progress."""


def run_under_kills(
    program: Path,
    settings: dict[str, Any],
    *,
    folder: Path,
    open_reader: Callable[[], Callable[[], Any]],
    make_audit: Callable[[], Audit],
    server: Server | InTurn,
    servers: int = 1,
    kills: int = 8,
    seed: int = 1,
    outage_s: float = 5.0,
    drain: Callable[[], int] | None = None,
    options: dict[str, Any] | None = None,
    moves: Sequence[Move] = (),
    say: Callable[[str], None] = print,
) -> Report:
    """Runs a job under kills and returns the report. `servers`: the number of servers that `server` represents.
    `options`: of `flow.start`, over OPTIONS. With `moves`, `kills` is ignored. Raises `StuckJob`, with the end of
    the program's log, or a reader's exception. Writes the report to build/ends/<program>-<seed>.json too.
    """
    run = _Run(program, settings, folder, open_reader, make_audit, server, seed, {**OPTIONS, **(options or {})}, say)
    with run.ended_at_last():
        if moves:
            report = run.through(moves)
        else:
            report = run.to_the_end(plan(seed, kills, servers, outage_s), kills, drain)
    _REPORTS.mkdir(parents=True, exist_ok=True)
    (_REPORTS / f"{program.stem}-{seed}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    say(str(report))
    return report


class _Run:
    def __init__(
        self,
        program: Path,
        settings: dict[str, Any],
        folder: Path,
        open_reader: Callable[[], Callable[[], Any]],
        make_audit: Callable[[], Audit],
        server: Server | InTurn,
        seed: int,
        options: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        for name in ("logs", "tmp", "local"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._open_reader = open_reader
        self._make_audit = make_audit
        self._server = server
        self._seed = seed
        self._rate = settings.get("rate", 0)
        self._say = say
        self._name = f"{program.stem}-{os.getpid()}-{time.monotonic_ns()}"
        self._draw = random.Random(seed)
        self._began = time.monotonic()
        self._outages: list[tuple[float, float]] = []  # wall clock
        self._strikes: list[Strike] = []
        self._audit = make_audit()
        self._watch = Watch(open_reader(), self._audit, server)
        environment = {"TMPDIR": str(folder / "tmp"), "SPARK_LOCAL_DIRS": str(folder / "local")}

        self._rows: int | None = None
        self._orders = Orders(folder / "moves")
        self._moves: list[Moved] = []

        def numbered(number: int) -> JobSettings:
            return JobSettings(
                program=str(program),
                job={"rows": self._rows, **settings},
                options=options,
                checkpoints=str(folder / "checkpoints"),
                status_file=str(folder / f"status-{number}.json"),
                stop_file=str(folder / f"stop-{number}"),
                moves=str(folder / "moves"),
            )

        self._supervisor = Supervisor(self._name, folder, environment, numbered, "tests.integration.ends.program")

    @contextlib.contextmanager
    def ended_at_last(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._watch.stop()
            for process in family(self._name):
                send(process, signal.SIGKILL)
            for start in self._supervisor.starts:
                start.process.wait()

    def _begin(self) -> float:
        """Waits until the job runs. Returns a time before which no row was due: slots had not all registered."""
        self._watch.start()
        self._supervisor.start()
        self._wait(lambda: self._supervisor.status() is not None, "the program had a status")
        due_from = time.monotonic()
        self._get_on(0.0, 0)
        self._tell("the job runs")
        return due_from

    def through(self, moves: Sequence[Move]) -> Report:
        """All of them, and as many more as were not carried out."""
        self._begin()
        for move in moves:
            self._move(move)
        again = [move.kind for move, moved in zip(moves, list(self._moves), strict=True) if not moved.done]
        for kind in again:
            self._move(Move(kind, 0.1))
        undone = [moved for moved in self._moves[len(moves) :] if not moved.done]
        self._stop_program()
        rows = self._rescanned(0).rows
        self._wait(lambda: self._audit.rows >= rows, f"all {rows} rows were seen")
        self._watch.stop()
        report = self._judged(rows)
        report.why_not += [f"a {each.kind} to {each.parallelism}, with nothing struck: {each.error}" for each in undone]
        return report

    def to_the_end(self, actions: list[Action], kills: int, drain: Callable[[], int] | None) -> Report:
        due_from = self._begin()
        *others, last = actions
        for action in others:
            self._carry_out(action)
        while len(self._strikes) < kills - 1:  # some found no victim
            self._carry_out(Action("slot", self._draw.uniform(0.0, 0.4)))
        if drain is not None:
            self._carry_out(last)
            rows = drain()
            self._wait(lambda: self._audit.rows >= rows, f"all {rows} rows were visible")
            self._stop_program()
        else:
            rows = self._strike_for_the_end(last, due_from)
            self._wait(lambda: self._supervisor.ended, f"the job had ended with all {rows} rows")
            self._look_twice()
        self._watch.stop()
        return self._judged(rows)

    def _strike_for_the_end(self, action: Action, due_from: float) -> int:
        """Strikes the program, whose next start ends by itself.

        Returns the rows of that start: the rows due at the strike, and the rows of two seconds more. No job reads a row
        before the row is due.
        """
        self._pause(action.gap_s)
        assert action.kind == "program"
        self._strike(action.kind)
        rows = self._rows = math.ceil((time.monotonic() - due_from + 2.0) * self._rate)
        self._strikes.append(Strike(action.kind, 0.0, None))
        starts = len(self._supervisor.starts)
        self._wait(lambda: len(self._supervisor.starts) > starts, "the program was started again")
        self._supervisor.ending = True
        self._tell("program: the next start is the last")
        return rows

    def _stop_program(self) -> None:
        """After a last checkpoint; whatever is visible then has been seen."""
        self._supervisor.ending = True
        self._supervisor.stop()
        self._wait(lambda: self._supervisor.ended, "the program had stopped as asked")
        self._look_twice()

    def _look_twice(self) -> None:
        looks = self._watch.looks
        self._wait(lambda: self._watch.looks >= looks + 2, "there were two looks more")

    # ------------------------------------------------------------ strikes

    def _carry_out(self, action: Action) -> None:
        self._pause(action.gap_s)
        rows = self._audit.rows
        if not self._strike(action.kind):
            return
        away = action.kind.startswith("server")
        left, hold_s = time.time(), time.monotonic() + action.hold_s
        last = action.kind
        if action.then is not None:
            self._pause(action.then_gap_s)
            rows = self._audit.rows
            if self._strike(action.then):
                self._strikes.append(Strike(last, action.hold_s, None))
                last = action.then
        if away:
            self._pause(hold_s - time.monotonic())
            rows = self._audit.rows
            self._server.start()
            self._outages.append((left, time.time()))
        since = time.time()
        self._get_on(since, rows)
        got_on_s = time.time() - since
        self._strikes.append(Strike(last, action.hold_s, got_on_s))
        doubled = f", then {action.then}" if action.then else ""
        held = f" for {action.hold_s:.1f} s" if away else ""
        self._tell(f"{action.kind}{held}{doubled}: on again after {got_on_s:.1f} s")

    def _move(self, move: Move) -> None:
        self._pause(move.gap_s)
        status = self._supervisor.status()
        before = 2 if status is None else status.parallelism
        parallelism = self._draw.choice([each for each in (1, 2, 3, 4) if each != before])
        start = self._supervisor.current.number
        number = self._orders.give(Order(move.kind, parallelism))
        left = 0.0
        if move.strike is not None:
            self._pause(move.strike_gap_s)
            if self._strike(move.strike):
                self._strikes.append(Strike(move.strike, move.hold_s, None))
            left = time.time()
            if move.hold_s:
                self._pause(move.hold_s)
                self._server.start()
                self._outages.append((left, time.time()))

        def over() -> bool:
            return self._orders.answer(number) is not None or self._supervisor.current.number > start

        self._wait(over, f"the {move.kind} was over")
        self._get_on(time.time(), self._audit.rows)
        done = self._orders.answer(number) or Done(error="the program that was asked is gone")
        moved = Moved(move.kind, parallelism, move.strike, done.pause_ms, done.error, done.unexpected)
        self._moves.append(moved)
        to = f" from {before} to {parallelism}" if move.kind == "rescale" else ""
        struck = f", {move.strike} struck" if move.strike else ""
        self._tell(f"{move.kind}{to}{struck}: {moved.error or f'{moved.pause_ms} ms'}")

    def _strike(self, kind: Kind) -> bool:
        """False if there was no victim."""
        if kind == "server kill":
            self._server.kill()
        elif kind == "server stop":
            self._server.stop()
        elif kind == "program":
            self._supervisor.current.killed = True
            for process in family(self._name):
                send(process, signal.SIGKILL)
        elif kind == "driver":
            self._supervisor.current.killed = True
            self._supervisor.current.process.kill()
        else:
            return self._kill_one(kind)
        return True

    def _kill_one(self, role: str) -> bool:
        """Kills a process of the current run; waits a moment until there is a candidate."""
        deadline = time.monotonic() + _VICTIM_S
        while True:
            found = [each for each in family(self._name, self._supervisor.current.number) if each.role == role]
            if found and send(self._draw.choice(found), signal.SIGKILL):
                return True
            if time.monotonic() > deadline:
                self._tell(f"there is no {role} to kill")
                return False
            self._tick()

    # ------------------------------------------------------------ waiting

    def _get_on(self, since: float, rows: int) -> None:
        """Waits until a checkpoint begun after `since` (wall clock) is complete, and over `rows` rows are visible."""

        def gets_on() -> bool:
            status = self._supervisor.status()
            last = None if status is None else status.checkpoints.last_completed
            return last is not None and last.triggered_ms > since * 1000 and self._audit.rows > rows

        self._wait(gets_on, "the job got on")

    def _wait(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            self._tick()
            if time.monotonic() > deadline:
                start = self._supervisor.current
                status = self._supervisor.status()
                watch = self._watch
                known = f"{self._audit.rows} rows are visible ({self._audit}) in {watch.looks} looks\n"
                if status is None:
                    known += "the program has published no status for a while\n"
                else:
                    last = status.checkpoints.last_completed
                    known += (
                        f"phase {status.phase}: {status.reason or status.error}; last completed checkpoint: {last}\n"
                        f"{status.condition}: {status.condition_reason}; committed: {status.commits.through}\n"
                    )
                troubles = "" if status is None else "\n".join(str(each) for each in status.commits.troubles)
                tail = start.log.read_text(errors="replace")[-3000:]
                stuck = f"gave up waiting until {what}, {patience_s:.0f} s\n{known}{troubles}\n{watch.where}\n{tail}"
                self._say(stuck)  # before all servers have stopped, which takes time
                raise StuckJob(stuck)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick()

    def _tick(self) -> None:
        self._supervisor.tick()
        if self._watch.error is not None:
            raise self._watch.error
        if not self._audit.figures.right:
            raise AssertionError(f"wrong, {self._tell('')}: {self._audit.figures.examples[:5]}")
        time.sleep(_TICK_S)

    def _tell(self, text: str) -> str:
        elapsed = time.monotonic() - self._began
        line = f"{elapsed:6.1f} s  {len(self._strikes):3} strikes  {self._audit.rows:7} rows  {text}"
        self._say(line)
        return line

    # ------------------------------------------------------------ the end

    def _rescanned(self, rows: int) -> Audit:
        """Reads all with a fresh reader. On a slow machine a single look may miss rows of a large target, or fail."""
        again, look = self._make_audit(), self._open_reader()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                seen = look()
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_TICK_S)
                continue
            again.observe("rescan", seen)
            if again.rows >= rows or time.monotonic() > deadline:
                return again

    def _judged(self, rows: int) -> Report:
        again = self._rescanned(rows)
        deadline = time.monotonic() + _LEAVE_S
        while (left := family(self._name)) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        report = Report(
            seed=self._seed,
            strikes=self._strikes,
            seconds=time.monotonic() - self._began,
            rows=rows,
            looks=self._watch.looks,
            blind=self._watch.blind,
            observed=self._audit.figures,
            rescanned=again.figures,
            starts=len(self._supervisor.starts),
            unexpected=[
                f"start {end.start} ended with {end.code}: {end.tail[-1500:]}"
                for end in self._supervisor.unexpected
                if not any(left <= end.at <= back + _EXCUSED_S for left, back in self._outages)
            ],
            left_processes=[f"{each.pid} {each.role} of start {each.mark.rpartition('/')[2]}" for each in left],
            moves=self._moves,
        )
        for title, audit in (("observed", self._audit), ("rescanned", again)):
            if not audit.figures.right:
                report.why_not.append(f"{title}: {audit.figures.examples[:5]}")
            if audit.rows != rows:
                report.why_not.append(f"{title}: the job read {rows} rows, {audit.rows} are visible")
        report.why_not += [f"the program ended by itself: {each}" for each in report.unexpected]
        report.why_not += [f"a {each.kind} raised {each.error}" for each in report.moves if each.unexpected]
        report.why_not += [f"left behind: process {each}" for each in report.left_processes]
        report.why_not += self._told_by(left)
        return report

    def _told_by(self, left: list[Found]) -> list[str]:
        """Stack traces of the Python processes that are still alive: their fault handlers write into the log."""
        python = [each for each in left if each.role in ("slot", "worker daemon") and send(each, signal.SIGABRT)]
        deadline = time.monotonic() + _VICTIM_S
        while family(self._name) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        starts = sorted({int(each.mark.rpartition("/")[2]) for each in python})
        return [self._supervisor.starts[number - 1].log.read_text(errors="replace")[-5000:] for number in starts]
