"""Environment of a scenario (docs/design/certify-and-check.md).

Rows are written again from the newest decided checkpoint's position; the next generation reuses ids of undecided
checkpoints.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.operators.base import Capture
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.testing.crash_points import Crash, CrashPoints, Lines, Point
from barrier_runtime.testing.judge import Broken, Judge, Promise, Rule, Written
from barrier_runtime.testing.sink_process import SINK, Place, Process

T = TypeVar("T")
_ATTEMPTS = 6


# late: commits wait for a later checkpoint; expire: the checkpoint is aborted and the next covers the rows;
# half: only subtask 0 has rows.
Round = Literal["commit", "late", "expire", "half", "empty"]
Form = Literal["rows", "batches", "lists"]  # of a subtask's rows: batches of a row, or a batch of all


@dataclass(frozen=True)
class Target:
    make_sink: Callable[[], TwoPhaseCommitSink]
    read: Callable[[int], Iterable[Mapping[str, Any]]]  # rows with this or a higher id
    make_row: Callable[[int], dict[str, Any]]
    schema: pa.Schema
    promise: Promise
    make_store: Callable[[str], ObjectStore]
    job_store: ObjectStore
    parallelism: int
    rows: int  # of a subtask per checkpoint
    files: frozenset[str]
    every_line: bool
    kill: Callable[[TwoPhaseCommitSink], None] | None
    leftovers: Callable[[], Collection[object]] | None


@dataclass(frozen=True)
class Decision:
    checkpoint: int
    manifest: tuple[OperatorSnapshot, ...]
    position: int
    rounds: int


class _Denied(Exception):
    """A zombie requested a decision."""


def _die() -> NoReturn:
    raise Crash


class Environment:
    def __init__(
        self,
        target: Target,
        job: str,
        first_id: int,
        plan: Sequence[Round],
        seed: int = 0,
        sink: str = SINK,
        form: Form = "rows",
    ) -> None:
        self.target = target
        self.job = job
        self.sink = sink
        self.form = form
        self.first_id = first_id
        self.plan = list(plan)
        self.random = random.Random(seed)
        self.judge = Judge(target.promise, first_id)
        self.steps: list[str] = []
        self.observations = 0
        self.crashes = 0
        self.lineage = f"{job}-lineage-1"
        self.lineages = 1
        self.floor = 0  # checkpoint ids of this lineage begin above
        self.decisions: list[Decision] = []
        self.decided_ever = 0
        self.first: Process | None = None
        self._token = 0
        self._transactions: dict[bytes, list[Written]] = {}
        self._started_at = 0
        self._rounds_before = 0

    def start(self, parallelism: int = 0, at: Point | None = None, at_call: Callable[[], None] = _die) -> Process:
        """Makes an unopened generation that dies at point `at`; at a "call" `at_call` runs instead."""
        self._token += 1
        place = Place(
            self.job,
            self.sink,
            self.lineage,
            self.target.make_sink,
            self.target.make_store,
            self.target.job_store,
            self.steps.append,
            self.judge.transactions.append,
            self._committed,
        )
        points = CrashPoints(at)
        lines = Lines(points, self.target.files, every_line=self.target.every_line)
        process = Process(place, self._token, parallelism or self.target.parallelism, points, lines, at_call)
        self.first = self.first or process
        return process

    def beside(self, job: str, sink: str) -> "Environment":
        """Another sink on this target, of this or another job."""
        ids = self.first_id + len(self.plan) * self.target.rows * self.target.parallelism
        other = Environment(self.target, job, ids, self.plan, sink=sink)
        other.steps = self.steps
        if job == self.job:
            other.lineage = self.lineage
        return other

    def leave(self, process: Process) -> None:
        """Closes the sinks in order, as when another process of the job has died."""
        self.steps.append(f"generation {process.token} closes its sinks")
        self.must_not_raise("close", process.close)
        process.drop(None)

    def crash(self, process: Process) -> None:
        self.steps.append(f"generation {process.token} dies")
        self.crashes += 1
        process.drop(self.target.kill)

    def begin_lineage(self, *, token: int | None = None, keep: Decision | None = None) -> None:
        """Restarts the job, without state or (`keep`) from an older checkpoint.

        Tokens begin above `token`, as with a new storage; None: tokens continue.
        """
        self._started_at, self._rounds_before = self._position, self._rounds_done
        self.lineages += 1
        self.lineage = f"{self.job}-lineage-{self.lineages}"
        self.floor = 0
        self.decisions = []
        if keep is not None:
            self.decisions.append(Decision(keep.checkpoint, keep.manifest, self._started_at, self._rounds_before))
        if token is not None:
            self._token = token
        self.steps.append(f"the job is started anew: {self.lineage}, tokens from {self._token + 1}")

    @property
    def newest(self) -> Decision | None:
        return self.decisions[-1] if self.decisions else None

    @property
    def _position(self) -> int:
        return self.newest.position if self.newest else self._started_at

    @property
    def _rounds_done(self) -> int:
        return self.newest.rounds if self.newest else self._rounds_before

    @property
    def lived(self) -> Counter[str]:
        return Counter() if self.first is None else self.first.crash_points.reached

    def live(self, process: Process, rounds: int | None = None, *, flush: bool = True) -> Iterator[bool]:
        """Opens, recovers, plays `rounds` rounds of the plan (default all), and commits at the end (`flush`).

        Yields, after each step, whether to look at the target.
        """
        yield from self.open(process)
        index, position = self._rounds_done, self._position
        last = len(self.plan) if rounds is None else min(len(self.plan), index + rounds)
        owed = False
        while index < last:
            kind = self.plan[index]
            position = yield from self.write(process, kind, position)
            index += 1
            if kind == "expire":
                yield from self.expire(process)
            else:
                yield from self.checkpoint(process, position, index)
                owed = kind == "late"
                if not owed:
                    yield from self.commit(process)
        if owed and flush:
            yield from self.commit(process)

    def open(self, process: Process) -> Iterator[bool]:
        restored = self.newest
        manifest = restored.manifest if restored is not None else ()
        process.last_checkpoint = restored.checkpoint if restored is not None else self.floor
        for subtask in range(process.parallelism):
            rule: Rule = "lost" if restored is not None else "raises"
            self._tried(process, rule, f"open and recover of subtask {subtask}", process.open_next, manifest)
            yield True
        if restored is not None:
            yield from self.commit(process, restored)

    def write(self, process: Process, kind: Round, position: int) -> Generator[bool, None, int]:
        target = self.target
        count = {"half": target.rows, "empty": 0}.get(kind, target.rows * target.parallelism)
        writers = 1 if kind == "half" else process.parallelism
        for subtask in range(writers):
            ids = [self.first_id + position + k for k in range(subtask, count, writers)]
            rows = pa.RecordBatch.from_pylist([target.make_row(number) for number in ids], schema=target.schema)
            for number, row in zip(ids, rows.to_pylist(), strict=True):
                self.judge.wrote(number, row)
            for batch, numbers in self._batches(rows, ids):
                self._tried(process, "raises", "write", process.write, subtask, batch, numbers, attempts=1)
            yield False
        return position + count

    def _batches(self, rows: pa.RecordBatch, ids: list[int]) -> list[tuple[pa.RecordBatch | FewRows, list[int]]]:
        if not ids:
            return []
        if self.form == "lists":
            return [(FewRows.of(rows) or rows, ids)]
        if self.form == "batches":
            return [(rows, ids)]
        return [(rows.slice(index, 1), [number]) for index, number in enumerate(ids)]

    def checkpoint(self, process: Process, position: int, rounds: int) -> Iterator[bool]:
        """Takes a checkpoint. After a failed pre-commit the next checkpoint covers the rows."""
        for _ in range(_ATTEMPTS):
            checkpoint, captures = self.barrier(process)
            try:
                manifest = []
                for subtask in self.order(process):
                    manifest += process.seal(subtask, captures[subtask])
                    yield True
            except Exception as error:
                if process.is_zombie:
                    raise
                failed = error
                self.steps.append(f"generation {process.token}: pre-commit raised {type(error).__name__}: {error}")
                self.abort(process, checkpoint)
                continue
            self.decide(process, checkpoint, manifest, position, rounds)
            return
        raise Broken(
            "raises", f"pre_commit raised {_ATTEMPTS} times, last {type(failed).__name__}: {failed}"
        ) from failed

    def barrier(self, process: Process) -> tuple[int, list[dict[str, Capture]]]:
        process.last_checkpoint += 1
        checkpoint = process.last_checkpoint
        return checkpoint, [process.capture(subtask, checkpoint) for subtask in range(process.parallelism)]

    def expire(self, process: Process) -> Iterator[bool]:
        checkpoint, captures = self.barrier(process)
        self.sealed(process, captures[:1])
        yield True
        self.abort(process, checkpoint)

    def sealed(self, process: Process, captures: Sequence[dict[str, Capture]]) -> list[OperatorSnapshot]:
        return [
            snapshot
            for subtask, capture in enumerate(captures)
            for snapshot in self._tried(process, "raises", "pre_commit", process.seal, subtask, capture)
        ]

    def abort(self, process: Process, checkpoint: int) -> None:
        self.steps.append(f"checkpoint {checkpoint} is aborted")
        for hand in process.hands:
            hand.chain.aborted(checkpoint)

    def decide(
        self, process: Process, checkpoint: int, manifest: Sequence[OperatorSnapshot], position: int, rounds: int
    ) -> None:
        process.moment(f"decision of checkpoint {checkpoint}")
        if process.is_zombie:
            raise _Denied(f"checkpoint {checkpoint} of generation {process.token} is refused")
        self.decided_ever += 1
        for each in process.written:
            if 0 < each.checkpoint <= checkpoint and each.decision is None:
                each.decision = self.decided_ever
                # rows without a committable are visible already, or (`after_decision`) once released
                each.must_be_seen = each.committable is None and not self.target.promise.after_decision
                if each.committable is not None:
                    self._transactions.setdefault(each.committable, []).append(each)
        ordered = tuple(sorted(manifest, key=lambda snapshot: snapshot.subtask))
        self.decisions.append(Decision(checkpoint, ordered, position, rounds))
        process.moment(f"checkpoint {checkpoint} is decided")

    def commit(self, process: Process, decision: Decision | None = None) -> Iterator[bool]:
        decision = decision or self.newest
        assert decision is not None
        for subtask in self.order(process):
            process.hands[subtask].chain.completed(decision.checkpoint)
            for _ in process.settle(subtask, decision.checkpoint):
                yield True
        if self.target.promise.global_committer:
            process.hands[0].operator.on_commit_globally(decision.checkpoint, lambda: decision.manifest)
            for _ in process.settle(0, decision.checkpoint, globally=True):
                yield True
            process.moment(f"everybody hears that checkpoint {decision.checkpoint} is visible")
            for hand in process.hands:
                hand.operator.on_visible(decision.checkpoint)
        if self.target.promise.after_decision and not process.is_zombie:
            for each in self.judge.transactions:
                each.must_be_seen = each.must_be_seen or each.decision is not None

    def order(self, process: Process) -> list[int]:
        subtasks = list(range(process.parallelism))
        self.random.shuffle(subtasks)
        return subtasks

    def run(self, steps: Iterator[bool], most: int | None = None) -> bool:
        """Runs `most` steps (default all), and looks. Returns whether the steps ended."""
        done = 0
        while most is None or done < most:
            look = next(steps, None)
            if look is None:
                return True
            done += 1
            if look:
                self.look()
        return False

    def run_as_zombie(self, steps: Iterator[bool]) -> None:
        """Ignores the zombie's errors: only effects matter."""
        try:
            self.run(steps)
        except Exception as error:
            self.steps.append(f"the zombie stops: {type(error).__name__}: {error}")

    def run_to_crash(self, parallelism: int = 0, at: Point | None = None) -> bool:
        """Runs a generation that dies at point `at`. False: the generation ended."""
        process = self.start(parallelism, at)
        try:
            self.run(self.live(process))
        except Crash as crash:
            self.steps.extend(f"inside that call, before {line}" for line in crash.args)
            self.crash(process)
            self.look()
            return True
        self.end(process)
        return False

    def look(self) -> None:
        self.observations += 1
        try:
            seen = list(self.target.read(self.first_id))
        except Exception as error:
            what = f"the reader cannot read what is there: it raised {type(error).__name__}: {error}"
            raise Broken("torn", what) from error
        self.judge.observe(seen)

    def end(self, process: Process) -> None:
        process.close()
        process.drop(None)
        assert self._rounds_done == len(self.plan), "a generation ended before the plan was done"
        self.look()

    def recover_once_more(self, parallelism: int = 0, *, clean_up: bool = True) -> None:
        """Starts a generation that finds all work done. `clean_up`: no staged data may remain."""
        process = self.start(parallelism)
        self.run(self.live(process))
        self.end(process)
        if clean_up and self.target.leftovers is not None:
            left = list(self.target.leftovers())
            if left:
                raise Broken("left over", f"{len(left)} staged things that nobody needs", left[:10])

    def must_not_raise(self, what: str, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:
            raise Broken("raises", f"{what} raised {type(error).__name__}: {error}") from error
        self.look()

    def _tried(
        self,
        process: Process,
        rule: Rule,
        what: str,
        call: Callable[..., T],
        *arguments: object,
        attempts: int = _ATTEMPTS,
    ) -> T:
        """A zombie's call may raise; any other call must succeed within `attempts`."""
        for attempt in range(attempts):
            try:
                return call(*arguments)
            except Exception as error:
                if process.is_zombie:
                    raise
                self.steps.append(f"raised {type(error).__name__}: {error}")
                if attempt == attempts - 1:
                    raise Broken(rule, f"{what} raised {type(error).__name__}: {error}") from error
            time.sleep(0.01 * 2**attempt)
        raise AssertionError("the last attempt returned or raised")

    def _committed(self, committables: Sequence[bytes]) -> None:
        for committable in committables:
            for each in self._transactions.get(committable, ()):
                each.must_be_seen = True
