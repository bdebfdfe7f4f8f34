"""A simulated run from a seed: a program on a cluster, faults, and the checkers that watch.

The world plays everything around the product: Spark, which restarts tasks whose process is gone and kills tasks at the
driver's request; the supervisor of the embedded coordinator; the user who restarts the program; readers of the target.
Slots, channels, coordinators, sinks and log are the production code, on simulated loops, sockets, threads and stores.
See `schedule` for the faults and `checkers` for the invariants.
"""

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
from checkers import CHECKERS, HOOKS, PROTOCOL_CHECKERS, QUEUE_CHECKERS, TARGET_CHECKERS, Checker, MessagesOnce
from event_checkers import EVENT_CHECKERS, WallTimersFireOnce, WatermarksMove, WholeWallWindows
from events import EventWorkload
from facts import Facts
from hanging import PROGRESS_TIMEOUT_MS, HangingJsonlSink, HangingOpens
from join_checkers import JOIN_CHECKERS
from joins import JoinWorkload
from kafka_broker import Broker
from late_commits import LateCommits
from lookups import Owners
from move_checkers import BANK_MOVE_CHECKERS, MOVE_CHECKERS
from near_misses import counted
from open_checkpoints import HearsInSteps
from postgres_server import PostgresServer
from rabbit_broker import RabbitQueue, stream_of
from redis_server import RedisServer
from released import watched
from restores import restored_in_turn
from rule_checkers import RulesAgree, RulesSwitchAtBarriers
from schedule import START_NS, Action, Schedule
from servers import Doorway
from sinks import Ledger, LedgerSink
from stalls import StallsAtMoves
from starts import START_CHECKERS, NewSlotsStart
from token_target import TokenSink, TokenTarget
from upsert_checkers import STABLE_CHECKERS, UPSERT_CHECKERS, LastValues, StableRows
from workload import ROW, RULED, Row, Workload
from zombie_checkers import ZOMBIE_CHECKERS

from barrier_runtime.connectors.files.sink import commit_blocks, commit_record
from barrier_runtime.connectors.files.sink.commit_log import CommitRecord
from barrier_runtime.connectors.files.sink.commit_reader import Reading, StoredRecords, commits_prefix
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.coordinator import savepoint_files
from barrier_runtime.coordinator.checkpoints.retention import Retention
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.phases import retaining
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log import manifest, records
from barrier_runtime.coordinator.log.manifest import manifest_data
from barrier_runtime.coordinator.log.records import Complete, Fence, Lead
from barrier_runtime.coordinator.log.savepoint import Savepoint, SavepointCopy
from barrier_runtime.coordinator.server import store_effects
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.messages import (
    CheckpointOptions,
    Deploy,
    EndSources,
    JobSpec,
    RestartOptions,
    ToSlot,
    Trigger,
)
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.operators import stable as stable_module
from barrier_runtime.operators.aggregation import partials as combiner_module
from barrier_runtime.operators.aggregation.partials import Combiner
from barrier_runtime.operators.joins.stored_runs import RunsOnDisk
from barrier_runtime.operators.keyed import timers as timers_module
from barrier_runtime.operators.windows import aggregate as aggregate_module
from barrier_runtime.operators.windows import firing as firing_module
from barrier_runtime.operators.windows import operator as windows_module
from barrier_runtime.runtime import in_flight
from barrier_runtime.runtime import scheduler as scheduler_module
from barrier_runtime.runtime import subtask as subtask_module
from barrier_runtime.runtime.network import channels, frames
from barrier_runtime.runtime.network.control_link import ControlLink, TcpControlLink
from barrier_runtime.runtime.sinks import pending_set
from barrier_runtime.runtime.slot import Slot
from barrier_runtime.state.backend import backend_snapshots
from barrier_runtime.state.backend.restore import BACKENDS
from barrier_runtime.state.columns import column_table, stored_entries
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob
from barrier_runtime.state.store import open as open_module
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.testing.flows.run import silent
from barrier_runtime.testing.simulation.cluster import (
    POLL_US,
    PORT,
    RESPAWN_US,
    ClusterOptions,
    Program,
    SimCluster,
    SimCoordinator,
    SlotTask,
    WatchedStore,
    in_one_thread,
)
from barrier_runtime.testing.simulation.loop import SimProcess, Simulation
from barrier_runtime.testing.simulation.lsm_kv import LsmBackend
from barrier_runtime.testing.simulation.store import StoreFaults

JOB = "bank"
_BEHIND_TURN_US = 300_000  # time of a turn of a slot that falls behind: rows and watermarks arrive faster
_BEHIND_US = 4_000_000  # how long the slot falls behind
_APART_MS = 250  # lag of the event time of a slot that fell behind
_LONGEST_HANG_S = 200.0
_RETRY_US = 20_000
_NAMES_OF_ONE = 5_000  # number of the first process of the second of two jobs
HOUR_NS = 3_600_000_000_000
HEALED_WITHIN_S = 90.0  # liveness: time from the last fault to a new committed checkpoint
FINISHED_WITHIN_S = 120.0  # … and to the end of a bounded job
_SAVEPOINTS_EVERY_S = 5.0  # if only savepoints make rows visible
TROUBLE_OF_THE_STORE = {  # rates of a burst, by variant
    0: {"fail_before": 0.3},
    1: {"apply_then_fail": 0.3},
    2: {"land_late": 0.2},
    3: {"conflict": 0.4},
    4: {"slow": 0.1},
    5: {"truncated_read": 0.05, "flipped_byte": 0.05},
    6: {"stale_list": 0.5},
    7: {"fail_before": 0.1, "apply_then_fail": 0.1, "land_late": 0.1, "conflict": 0.1, "slow": 0.02},
}


class World(SimCluster):
    """A job and the environment. `beside`: the world of the other job that writes into the same target."""

    def __init__(self, schedule: Schedule, beside: "World | None" = None) -> None:
        self.schedule = schedule
        super().__init__(
            JOB,
            Simulation(schedule.seed, max_steps=3_000_000) if beside is None else beside.sim,
            ClusterOptions(
                schedule.standby,
                schedule.turn_ms * 1000,
                schedule.window_bytes,
                unreached=0.3,
                no_cores=0.1 if schedule.rescales or schedule.replaces else 0.0,
                mark="" if beside is None else "twin-",
                first_name=0 if beside is None else _NAMES_OF_ONE,
                max_drift_ms=None if schedule.events is None else schedule.events.max_drift_ms,
                begins_us=schedule.begins_us,
                latency_target_s=schedule.latency_ms / 1_000,
                inline_bytes=0 if schedule.shares_files else 300,
            ),
        )
        self.violations: list[tuple[str, str]] = [] if beside is None else beside.violations
        self.twin: World | None = None
        self.near_misses: Counter[str] = Counter()
        self.recoveries = 0
        self.actions_done = 0
        self._calm = False
        self._busy_until_us = 0  # end of faults that end by themselves
        self._sink_trouble_until_us = 0
        self._when_deleting: Action | None = None  # aimed at the next coordinator that drops a checkpoint
        self._when_apart: tuple[Program, int] | None = (
            None  # restarts at this parallelism, from a checkpoint with different event times
        )
        self._when_in_flight: list[Action] = []  # aimed at the next checkpoints with a batch of several rows in flight
        self._named_files: dict[str, bytes] = {}
        self._committed: dict[str, CommitRecord] = {}  # by key of the target
        self._moved_away: set[str] = set()  # keys of commit records that are in blocks
        self._staged_by: dict[str, World] = {}  # file of the target -> world of the job that staged the file
        self.facts = Facts(self.paths)
        self.target = WatchedStore("target", self.now_ms, self._target_wrote, self._target_dropped)
        self.store_faults.ignore_conditions = schedule.conditions_ignored
        troubled = lambda: self.sim.now_us < self._sink_trouble_until_us  # noqa: E731
        self.queue = RabbitQueue(
            self.sim,
            schedule.count,
            500_000,
            schedule.period_ms * 1000,
            lambda: troubled() and self.sim.chance(0.02),
        )
        self.hanging = None if schedule.hang is None else HangingOpens(self.sim, schedule.hang, self._wrong, self._note)
        self.workload = self._make_workload()
        if isinstance(self.workload, Workload) and not schedule.queue:
            splits = [(source, split) for source in self.workload.sources for split in range(schedule.splits)]
            self.facts.counts = dict.fromkeys(splits, schedule.count)
        self.ledger = Ledger(self._ledger_visible, self.workload.row_of)
        doorway = Doorway(self.sim, troubled)
        self.broker = Broker(doorway, lambda rows: self._visible([ROW.decode(row) for row in rows]))
        self.tokens = TokenTarget(doorway, lambda rows: self._visible([self.workload.row_of(row) for row in rows]))
        self.redis = RedisServer(doorway, self._upserted, self._note, self.sim.chance)
        self.postgres = PostgresServer(self.sim, troubled, self._moved, self._note)
        bank = (*CHECKERS, *TARGET_CHECKERS, *BANK_MOVE_CHECKERS)
        if schedule.queue:
            bank = QUEUE_CHECKERS
        if schedule.target == "upserts":
            bank = STABLE_CHECKERS if schedule.stable else UPSERT_CHECKERS
        if schedule.graph == RULED:
            bank = (*bank, RulesAgree, *((RulesSwitchAtBarriers,) if schedule.at_barriers else ()))
        kinds = bank
        if schedule.events is not None:
            kinds = (*PROTOCOL_CHECKERS, *(EVENT_CHECKERS if schedule.joined is None else JOIN_CHECKERS))
        self.checkers: list[Checker] = [
            make(self.facts, self.workload, self._wrong)
            for make in (*kinds, *MOVE_CHECKERS, *ZOMBIE_CHECKERS, *START_CHECKERS)
        ]
        self._wishes: list[SavepointRequest] = []  # requested savepoints
        self._drain_struck: set[str] = set()
        self._last_wish: SavepointRequest | None = None  # requested savepoint of a stop
        self._stalls = StallsAtMoves(schedule, self.sim)
        self._late_commits = LateCommits(schedule, self.sim, self.facts, self._wrong, self._note)
        self._steps = HearsInSteps(self.sim, self._hears_now, self._hold_up_another, self._note)
        self._rescales = 0  # number of requested rescales and replaces
        self._starts = next(each for each in self.checkers if isinstance(each, NewSlotsStart))
        self._hooks = {name: _hooks(self.checkers, name) for name in HOOKS}
        if beside is not None:
            self.target, self.target_faults = beside.target, beside.target_faults
        elif schedule.twins:
            self.twin = World(replace(schedule, actions=()), self)

    def _make_workload(self) -> Any:
        schedule = self.schedule
        out = self._make_out
        side = lambda: LedgerSink(self.ledger, self._weather)  # noqa: E731
        if schedule.events is not None:
            now_ms = lambda: self.now_ms()  # noqa: E731 - a method would be copied with its object, the whole world
            if schedule.joined is not None:
                return JoinWorkload(schedule.joined, schedule.events, now_ms, out, side, schedule.unaligned)
            return EventWorkload(schedule.graph, schedule.events, now_ms, out, side, schedule.unaligned)
        return Workload(
            schedule.graph,
            schedule.splits,
            schedule.count,
            START_NS,
            schedule.period_ms * 1_000_000,
            schedule.bounded,
            out,
            side,
            schedule.aggregated,
            schedule.burst_ms * 1_000_000,
            schedule.batch_rows,
            self.world_ns if schedule.clocks_jump else None,
            schedule.target in ("files", "staged"),
            partial(stream_of, rabbit=self.queue) if schedule.queue else None,
            _opens_at_once if self.hanging is None else self.hanging.opening,
            schedule.collected,
            None if schedule.lookups is None else Owners(*schedule.lookups, self.sim).completed,
            schedule.rolls and schedule.target == "files",
            "barrier" if schedule.at_barriers else "row",
            schedule.stable,
            schedule.latest,
        )

    def _make_out(self) -> TwoPhaseCommitSink:
        if self.schedule.target == "topic":
            return self.broker.sink()
        if self.schedule.target == "tokens":
            return TokenSink(self.tokens)
        if self.schedule.target == "upserts":
            return self.redis.sink(deterministic=not self.schedule.latest)
        if self.schedule.target == "staged":
            return self.postgres.sink()
        if self.hanging is not None:
            return HangingJsonlSink("sim://target", self.hanging.opening)
        if self.schedule.rolls and self.schedule.events is None:
            return JsonlSink("sim://target", roll_bytes=4_000, roll_age=timedelta(seconds=2))
        return JsonlSink("sim://target")

    # ------------------------------------------------------------ the run

    def run(self) -> None:
        """Runs everything and collects `violations`."""
        BACKENDS["lsm"] = LsmBackend(lambda: self.sim.chance(0.02 if self.schedule.shares_files else 0.2))
        tuned = patch.object(subtask_module, "_ELEMENTS_PER_STEP", self.schedule.elements_per_step)
        slices = patch.object(timers_module, "_SLICE_TIMERS", self.schedule.elements_per_step)
        rounds = patch.object(scheduler_module, "_MOST_ROUNDS", self.schedule.rounds)
        chunks, sweeps, encoding, packing = (
            self._small_chunks(),
            self._sweeps(),
            self._early_encoding(),
            self._packing(),
        )
        with (
            self.sim,
            tuned,
            slices,
            self._few_timers(),
            self._few_entries(),
            self._slow_merging(),
            rounds,
            in_one_thread(),
            silent(),
            chunks,
            sweeps,
            encoding,
            packing,
            self._manifests(),
            counted(self.near_misses),
            self._servers(),
            self._savepoints(),
            self._reads(),
            self._watching(),
        ):
            for world in self._both:
                world._start_program(self.schedule.parallelism)
            for action in self.schedule.actions:
                self.sim.at(action.at_ms * 1000, self._both[action.variant % len(self._both)]._act, action)
            for at_ms in self.schedule.savepoints:
                self.sim.at(at_ms * 1000, self._ask_for_savepoint)
            for at_ms, parallelism in self.schedule.rescales:
                self.sim.at(at_ms * 1000, self._ask_for_rescale, parallelism)
            for at_ms, kind in self.schedule.replaces:
                self.sim.at(at_ms * 1000, self._ask_for_replace, kind)
            if self.schedule.drained_ms is not None:
                self.sim.at(self.schedule.drained_ms * 1000, self._drain)
            if self.schedule.stopped_ms is not None:
                self.sim.at(self.schedule.stopped_ms * 1000, self._begin_to_stop)
            for world in self._both:
                self.sim.after(POLL_US, world._poll)
            self._watch_to(self.schedule.chaos_ms * 1000)
            if self.schedule.conditions_ignored:
                self._expect_refusal()
                return
            for world in self._both:
                world._calm_down()
            if self.hanging is not None:
                self._until(lambda: self.hanging is None or not self.hanging.anybody, _LONGEST_HANG_S)
            for world in self._both:
                world._expect_progress()
            self._expect_savepoints()
            self._expect_rescales()
            self._expect_event_time()
            self._expect_wall_timers()
            self._expect_messages()
            for world in self._both:
                world._expect_the_end()
            self._expect_restores()

    @property
    def _both(self) -> tuple["World", ...]:
        return (self,) if self.twin is None else (self, self.twin)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        with (
            self._starts.watching(),
            watched(self._released),
            self._compaction(),
            patch.object(Combiner, "mode", self.schedule.combiner),
            patch.object(combiner_module, "FEWEST", 2),
            patch.object(channels, "WIDE", random.Random(f"wide {self.schedule.seed}").choice([2, 2, channels.WIDE])),
        ):
            yield

    @contextlib.contextmanager
    def _servers(self) -> Iterator[None]:
        with self.broker.installed(), self.redis.small_lots(), self.postgres.installed():
            yield

    @contextlib.contextmanager
    def _few_timers(self) -> Iterator[None]:
        """In most runs memory holds as few stored timers and windows as possible, and a turn fires a single timer."""
        if random.Random(f"timers {self.schedule.seed}").random() < 0.3:
            yield
            return
        with (
            patch.object(timers_module, "_HELD", 0),
            patch.object(timers_module, "_HELD_OF_GROUP", 0),
            patch.object(timers_module, "_SLICE_TIMERS", 1),
            patch.object(windows_module, "SLICE_STEPS", 1),
            patch.object(firing_module, "FEW", 1),
            patch.object(firing_module, "FEW_TUPLES", 1),
            patch.object(firing_module, "PART", 1),
        ):
            yield

    @contextlib.contextmanager
    def _slow_merging(self) -> Iterator[None]:
        """Side-by-side databases merge entry by entry, so that checkpoints happen during merges."""
        pause_s = random.Random(f"merging {self.schedule.seed}").choice([0.01, 0.1, 0.3])
        with (
            patch.object(backend_snapshots, "_AT_ONCE", 1),
            patch.object(backend_snapshots, "_MOST_AT_ONCE", 1),
            patch.object(backend_snapshots, "_PAUSE_S", pause_s),
        ):
            yield

    @contextlib.contextmanager
    def _few_entries(self) -> Iterator[None]:
        """Evicts, reads, deletes and writes entries singly."""
        if self.schedule.held is None:
            yield
            return
        with (
            patch.object(ColumnTable, "_entry_limit", self.schedule.held),
            patch.object(column_table, "SPILLED_AT_ONCE", 1),
            patch.object(column_table, "_MOST_REMOVED", 1),
            patch.object(stored_entries, "_AT_ONCE", 1),
            patch.object(aggregate_module, "_ROWS_ON_DISK", 1),
            patch.object(RunsOnDisk, "most_bytes", self.schedule.held * 150),
            patch.object(stable_module, "_IN_MEMORY_BYTES", self.schedule.held * 4_000),
            patch.object(RunsOnDisk, "most_merged_bytes", 1 << 20),
        ):
            yield

    @contextlib.contextmanager
    def _small_chunks(self) -> Iterator[None]:
        """Cuts even small batches into chunks."""
        if not self.schedule.chunk_rows:
            yield
            return
        rows = patch.object(in_flight, "_ROWS_AT_ONCE", self.schedule.chunk_rows)
        with rows, patch.object(frames, "MAX_PAYLOAD", 1_500):
            yield

    @contextlib.contextmanager
    def _early_encoding(self) -> Iterator[None]:
        """Encodes rows of a file into chunks although the rows are few."""
        if self.schedule.encoded_rows is None:
            yield
            return
        with patch.object(encoders, "_ROWS_AT_ONCE", self.schedule.encoded_rows):
            yield

    @contextlib.contextmanager
    def _packing(self) -> Iterator[None]:
        """In half of all runs sinks pack the list of pending transactions although the list is short."""
        if random.Random(f"packing {self.schedule.seed}").random() < 0.5:
            yield
            return
        with patch.object(pending_set, "_PACKED_FROM", 1):
            yield

    @contextlib.contextmanager
    def _manifests(self) -> Iterator[None]:
        """In a third of all runs each manifest is an object of its own, as in large jobs."""
        if random.Random(f"manifests {self.schedule.seed}").random() > 0.35:
            yield
            return
        with patch.object(manifest, "INLINE_BYTES", 0):
            yield

    @contextlib.contextmanager
    def _compaction(self) -> Iterator[None]:
        """In half of all runs the log is compacted all the time."""
        if random.Random(f"compaction {self.schedule.seed}").random() < 0.5:
            yield
            return
        with (
            patch.object(records, "MILESTONE_STEP", 4),
            patch.object(commit_blocks, "RECORDS", 4),
            patch.object(commit_blocks, "FAN", 2),
            patch.object(commit_record, "FIRST_RECORDS", 2),
        ):
            yield

    @contextlib.contextmanager
    def _sweeps(self) -> Iterator[None]:
        """Sweeps often and deletes young orphans: a run is shorter than the minimum age in production."""
        if self.schedule.sweeps is None:
            yield
            return
        every_ms, min_age_ms = self.schedule.sweeps
        defaults = (None, min_age_ms)  # of `under_way`, `min_age_ms`
        with (
            patch.object(retaining, "SWEEP_EVERY_MS", every_ms),
            patch.object(Retention.sweep, "__defaults__", defaults),
        ):
            yield

    def _watch_to(self, end_us: int) -> None:
        while self.sim.now_us < end_us and not self.violations:
            self.sim.run_to(min(end_us, self.sim.now_us + 100_000))
            self._notice_problems()

    @property
    def _damage_was_read(self) -> bool:
        seen = (self.store_faults.seen, self.target_faults.seen)
        return any(fault in each for each in seen for fault in ("truncated_read", "flipped_byte"))

    def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        end_us = self.sim.now_us + int(within_s * 1e6)
        while not condition():
            if self.sim.now_us >= end_us or self.violations:
                return False
            self.sim.run_to(self.sim.now_us + 50_000)
            self._notice_problems()
        return True

    def _until_shown(self, condition: Callable[[], bool]) -> bool:
        """Waits for visible rows. If commits are delayed forever, savepoints make rows visible."""
        if not self._late_commits.held_for_ever:
            return self._until(condition, HEALED_WITHIN_S)
        for _ in range(int(HEALED_WITHIN_S / _SAVEPOINTS_EVERY_S)):
            self._ask_for_savepoint()
            if self._until(condition, _SAVEPOINTS_EVERY_S):
                return True
        return False

    def _calm_down(self) -> None:
        """Ends all faults: stalled processes continue or end, and a program runs."""
        self._calm = True
        if self.hanging is not None:
            self.hanging.calm = True
        self.sim.trace("calm")
        self.sim.network.heal()
        self.store_faults.heal()
        self.target_faults.heal()
        self._sink_trouble_until_us = 0
        for process in self.sim.processes:
            process.resume()
        if self._current().outcome not in ("", "finished", "cancelled"):
            self._start_program(self.schedule.parallelism)

    def _expect_progress(self) -> None:
        """Liveness: a checkpoint that completes from now on becomes visible soon, or the job ends."""
        position = len(self.facts.records)

        def progressed() -> bool:
            if self._current().outcome in ("finished", "cancelled"):
                return True
            new = [each for each in self.facts.records[position:] if isinstance(each, Complete)]
            return bool(new) and self._committed_through() >= new[0].checkpoint

        if not self._until(progressed, HEALED_WITHIN_S) and not self.violations:
            what = f"no checkpoint completed and was committed within {HEALED_WITHIN_S} s of calm: {self._state()}"
            self._wrong("Liveness", what)

    def _expect_event_time(self) -> None:
        """Liveness: event time passes the present time soon, whatever splits are silent, or the job ends."""
        judge = next((each for each in self.checkers if isinstance(each, WatermarksMove)), None)
        if self.violations or judge is None or self.schedule.bounded or not self.workload.shows_event_time:
            return
        now_ms = self.world_ns() // 1_000_000
        progressed = lambda: judge.reached_ms >= now_ms or not self._current().active  # noqa: E731
        if not self._until_shown(progressed) and not self.violations:
            judge.judge(now_ms, HEALED_WITHIN_S, self._state())

    def _expect_wall_timers(self) -> None:
        """Liveness: wall-clock timers fire and windows are emitted without any other event."""
        kinds = (WallTimersFireOnce, WholeWallWindows)
        judge = next((each for each in self.checkers if isinstance(each, kinds) and each.is_shown), None)
        if self.violations or judge is None or self.schedule.bounded or self.schedule.clocks_jump:
            return
        now_ms = self.world_ns() // 1_000_000
        fired = lambda: not judge.waiting(now_ms) or not self._current().active  # noqa: E731
        if not self._until_shown(fired) and not self.violations:
            judge.judge(now_ms, HEALED_WITHIN_S, self._state())

    def _expect_messages(self) -> None:
        """Liveness without early acknowledgements: each published message becomes visible, also after redelivery."""
        if self.violations or not self.schedule.queue:
            return
        judge = next(each for each in self.checkers if isinstance(each, MessagesOnce))
        if not self._until_shown(lambda: not judge.lost(range(self.queue.count))) and not self.violations:
            judge.judge(self.queue.count, self.queue.acknowledged, self._state())

    def _expect_the_end(self) -> None:
        if self.violations:
            return
        if not self.schedule.bounded:
            self._begin_to_stop()
        if not self._until(lambda: not self._current().active, FINISHED_WITHIN_S):
            if not self.violations:
                self._wrong("Liveness", f"the job did not end within {FINISHED_WITHIN_S} s of calm: {self._state()}")
            return
        self._until(lambda: False, 2.0)  # zombies may still send something
        outcome = self._current().outcome
        if outcome not in ("finished", "cancelled"):
            self._wrong("Liveness", f"the job ended as {outcome}: {self._current().reason}")
            return
        self._expect_last_savepoint(outcome)
        self._expect_commit_logs()
        for checker in self.checkers:
            checker.at_end(outcome == "finished" and self.schedule.drained_ms is None)

    def _expect_commit_logs(self) -> None:
        """Readers of a commit log see each record once, in order, also those that are in blocks."""
        for job, sink in {(record.job, record.sink) for record in self._committed.values()}:
            prefix = commits_prefix(job, sink)
            wanted = [self._committed[key].files for key in sorted(self._committed) if key.startswith(prefix)]
            try:
                reading = Reading(StoredRecords(self.target, job, sink), SimpleNamespace(map=map), 0)
                found = [record.files for record in reading.all()]
            except Corrupt as error:
                self._wrong("CommitLogs", str(error))
                return
            if found != wanted:
                self._wrong("CommitLogs", f"the log of {sink} has {len(found)} records, {len(wanted)} were put")

    def _expect_last_savepoint(self, outcome: str) -> None:
        """A job that was stopped with a savepoint has the savepoint, of its very last checkpoint."""
        if self._last_wish is None or not self.facts.decisions:
            return
        found, last = savepoint_files.find_savepoint(self._last_wish.url), self.facts.decisions[-1].record.checkpoint
        of = "none" if found is None else f"one of checkpoint {found.taken.checkpoint}"
        if outcome == "finished":
            self._expect_drained_savepoint(found, of)
            return
        self.near_misses["stopped with a savepoint"] += 1
        if found is None or not found.final or found.taken.checkpoint != last:
            self._wrong("StoppedWithIt", f"the job was stopped with a savepoint; there is {of}, the last is {last}")

    def _expect_drained_savepoint(self, found: Savepoint | None, of: str) -> None:
        """The savepoint has the positions at which the job ended. It is missing only if the copy failed."""
        self.near_misses["drained with a savepoint"] += found is not None
        if found is None or not found.taken.drained_by:
            if found is not None or not self.near_misses["savepoints not copied"]:
                self._wrong("DrainedWithIt", f"the job was drained with a savepoint; there is {of}, not drained")
            return
        taken = next(each for each in self.facts.decisions if each.record.checkpoint == found.taken.checkpoint)
        if not found.final or taken.positions != self.facts.decisions[-1].positions:
            at = f"{taken.positions}; the job ended at {self.facts.decisions[-1].positions}"
            self._wrong("DrainedWithIt", f"the job was drained with a savepoint; there is {of}, at {at}")

    def _expect_refusal(self) -> None:
        """O9: a store that ignores conditions is refused, as it cannot hold a decision log."""
        refused = [each.refused for program in self.programs for each in program.coordinators if each.refused]
        if not refused or self.facts.records:
            what = f"a store that ignores conditions was accepted; the log has {len(self.facts.records)} records"
            self._wrong("Refusal", what)

    # ------------------------------------------------------------ programs

    def _job(self, number: int, parallelism: int) -> tuple[JobGraph, JobSpec]:
        graph = compile_plan(self.workload.flow(JOB).plan, parallelism, 16)
        s = self.schedule
        spec = JobSpec(
            job=JOB,
            run_id=f"run-{number}",
            submitter=f"sim pid {number}",
            parallelism=parallelism,
            max_parallelism=16,
            allow_drained=True,
            chains=self._late_commits.holding(graph.chain_specs()),
            checkpoints=CheckpointOptions(
                interval_ms=s.interval_ms,
                min_pause_ms=s.min_pause_ms,
                timeout_ms=s.timeout_ms,
                max_concurrent=1 if s.unaligned else s.max_concurrent,
                tolerable_failures=s.tolerable_failures,
                retained=s.retained,
                unaligned=s.unaligned,
                aligned_timeout_ms=s.aligned_timeout_ms,
                max_commits_behind=self._late_commits.bound,
            ),
            slot_timeout_ms=s.slot_timeout_ms,
            resource_wait_timeout_ms=3_600_000,
            restart=RestartOptions(initial_ms=100, max_ms=2_000),
            progress_timeout_ms=0 if self.hanging is None else PROGRESS_TIMEOUT_MS,
            preflight_ms=random.Random(f"preflight {s.seed}").choice((0, 0, 2_000)),
        )
        return graph, spec

    def _failed(self, program: Program, reason: str) -> None:
        if self._damage_was_read and "restore" in reason:
            # The job stops at damaged data: the user examines the data and restarts the program.
            self.sim.after(
                1_000_000, lambda _: program is self._current() and self._start_again(program.spec.parallelism)
            )
        else:
            self._wrong("JobFailed", reason)

    def _refused(self, program: Program, coordinator: SimCoordinator, error: InvalidJob) -> bool:
        if self.schedule.conditions_ignored:
            coordinator.refused = str(error)
            return True
        return not self._damage_was_read and super()._refused(program, coordinator, error)

    def _told(self, runner: JobRunner) -> None:
        """A process that reports another leader must not name itself."""
        assert runner.outcome is not None
        leads = [record for record in self.facts.records if isinstance(record, Fence | Lead)]
        leader = leads[-1].put_id.rpartition("-")[0] if leads else ""
        if runner.outcome.outcome in ("replaced", "fenced") and leader == runner.status().leader:
            self._wrong("OneLeader", f"{leader} leads, and stopped because it was {runner.outcome.outcome}")

    def _look_after(self) -> None:
        if self._calm and self._current().outcome not in ("", "finished", "cancelled"):
            self._start_program(self.schedule.parallelism)  # no program runs: the user starts it

    def _look(self, program: Program, runner: JobRunner) -> None:
        if self.hanging is not None and program is self._current():
            self.hanging.look(runner, self.schedule.slot_timeout_ms)
        if program is self._current():
            ends = self.schedule.bounded or bool(self._stopping)
            self._late_commits.look(runner, asked=len(self._wishes) + self._rescales, ends=ends)

    def _hears(self, process: SimProcess, slot: Slot, message: ToSlot) -> None:
        if not self._steps.takes(process, slot, message):
            self._hears_now(process, slot, message)

    def _hears_now(self, process: SimProcess, slot: Slot, message: ToSlot) -> None:
        if isinstance(message, Trigger):
            for on_trigger in self._hooks["on_trigger"]:
                on_trigger(process.name, message.token, message.checkpoint, message.triggered_at_ms)
        if isinstance(message, Deploy):
            self._deploys(process, slot, message)
        if isinstance(message, EndSources):
            self._ends_sources(process)
        super()._hears(process, slot, message)
        if not self._calm and self._stalls.heard(process, message):
            self._note("slots that stalled before the commits of a move")
        if isinstance(message, Deploy) and self._starts.is_unwell(slot.identity.program):
            slot.failed(None, "", RuntimeError("this program cannot open what it has"))

    def _ends_sources(self, process: SimProcess) -> None:
        if self.schedule.last_savepoint and not any(record.stops_with for record in self.facts.records):
            self._wrong("StopsAreLogged", f"{process.name} ends its sources, and no log record names the stop")
        if self._strikes("told"):
            self._cut_all_but(process)

    def _link(self, process: SimProcess, link: TcpControlLink) -> ControlLink:
        task = next(task for program in self.programs for task in program.tasks if task.process is process)
        return self._starts.link(task.program, link)

    def _deploys(self, process: SimProcess, slot: Slot, message: Deploy) -> None:
        """Checks that a slot runs the program that the log names for its generation."""
        fence = self.facts.records[message.token - 1]
        assert isinstance(fence, Fence)
        if fence.spec.program != slot.identity.program:
            what = f"{process.name} runs program {slot.identity.program!r} in generation {message.token}"
            self._wrong("RightProgram", f"{what}, which has {fence.spec.program!r}")

    def _born(self, process: SimProcess) -> None:
        if self.schedule.clocks_jump:
            process.skew_ns = self.sim.rng.choice((0, 0, -HOUR_NS, HOUR_NS))
            self.sim.after(self.sim.between_us(1, 20_000_000), self._set_clock, process)

    def _set_clock(self, process: SimProcess) -> None:
        """Sets the wall clock of a host, also during the calm."""
        process.skew_ns = self.sim.rng.choice((-HOUR_NS, HOUR_NS, 0, 5_000_000_000))
        self.sim.trace("clock", process.name, process.skew_ns)

    # ------------------------------------------------------------ faults

    def _act(self, action: Action) -> None:
        if self._calm:
            return
        self.actions_done += 1
        self.sim.trace("action", action.kind, action.victim, action.length_ms, action.variant)
        _ACTS[action.kind](self, action)

    def _living(self, program: Program) -> list[SlotTask]:
        return [task for task in program.tasks if task.process.running]

    def _victim(self, action: Action) -> tuple[Program, SlotTask] | None:
        program = self._current()
        living = self._living(program)
        return (program, living[action.victim % len(living)]) if living else None

    def _crash_slot(self, action: Action) -> None:
        found = self._victim(action)
        if found is not None:
            self._lose_slot(*found, kill=True)

    def _crash_two(self, action: Action) -> None:
        self._crash_slot(action)
        self._crash_slot(action)

    def _stall_slot(self, action: Action) -> None:
        found = self._victim(action)
        if found is not None:
            found[1].process.stall(action.length_ms / 1000)

    def _replace_twice(self, action: Action) -> None:
        """Spark starts two attempts of a task while the old process still lives."""
        found = self._victim(action)
        if found is not None:
            program, task = found
            self._lose_slot(program, task, kill=action.variant % 3 == 0)
            self.sim.after(
                self.sim.between_us(*RESPAWN_US), lambda _: self._start_slot(program, task.index, task.program)
            )

    def _crash_coordinator(self, action: Action) -> None:
        program = self._current()
        if program.active:
            alive = [each for each in program.coordinators if each.process.alive]
            if alive:
                alive[action.victim % len(alive)].process.crash()
            self.sim.after(self.sim.between_us(50_000, 1_500_000), lambda _: self._restart_coordinator(program))

    def _stall_coordinator(self, action: Action) -> None:
        program = self._current()
        alive = [each for each in program.coordinators if each.process.running]
        if program.active and alive:
            alive[action.victim % len(alive)].process.stall(action.length_ms / 1000)
            if (
                action.variant % 2 and not self.schedule.standby
            ):  # the supervisor considers it dead and starts another coordinator
                self.sim.after(
                    300_000, lambda _: program.active and self._start_coordinator(program, program.listening[0])
                )

    def _second_coordinator(self, action: Action) -> None:
        """Starts another coordinator of the same run, at the second address that slots know."""
        program = self._current()
        if program.active and not self.schedule.standby:  # two daemons at one address would share a lease
            if len(program.listening) == 1:  # nobody listened there before, and slots were refused at once
                place = self._addresses(program.number)[1]
                program.listening.append(self.sim.network.listen(place, PORT, place=place))
            self._start_coordinator(program, program.listening[1 - action.variant % 2])

    def _restart_program(self, action: Action) -> None:
        program = self._current()
        self._kill_program(program, leave_zombies=action.variant % 2 == 0)
        parallelism = self.schedule.parallelism
        every = self.schedule.rescaled_every
        if action.variant % every == 0:
            parallelism = 1 + (action.variant // every) % 5  # rescaled
        self.sim.after(self.sim.between_us(100_000, 1_000_000), lambda _: self._start_again(parallelism))

    def _second_program(self, action: Action) -> None:
        self._start_program(self.schedule.parallelism)

    def _crash_everything(self, action: Action) -> None:
        program = self._current()
        for coordinator in program.coordinators:
            coordinator.process.crash()
        for task in program.tasks:
            if task.process.alive:
                self._lose_slot(program, task, kill=True)
        self.sim.after(self.sim.between_us(50_000, 1_500_000), lambda _: self._restart_coordinator(program))

    def _cut(self, action: Action) -> None:
        connections = self.sim.network.connections
        if connections:
            self.sim.network.cut(connections[action.victim % len(connections)])

    def _half_open(self, action: Action) -> None:
        connections = self.sim.network.connections
        if connections:
            connection = connections[action.victim % len(connections)]
            self.sim.network.half_open(connection, connection.ends[action.variant % 2])

    def _clog(self, action: Action) -> None:
        places = self._places()
        if len(places) > 1:
            one = places[action.victim % len(places)]
            other = places[(action.victim + 1 + action.variant % (len(places) - 1)) % len(places)]
            self.sim.network.clog(one, other)
            self.sim.after(min(action.length_ms, 20_000) * 1000, lambda _: self.sim.network.unclog(one, other))

    def _unclog(self, action: Action) -> None:
        clogged = self.sim.network.clogged
        if clogged:
            self.sim.network.unclog(*clogged[action.victim % len(clogged)])

    def _places(self) -> list[str]:
        places = [task.process.place for task in self._living(self._current())]
        return [*places, *(each.process.place for each in self._current().coordinators if each.process.alive)]

    def _store_faults(self, action: Action) -> None:
        self._trouble(self.store_faults, action)

    def _sink_faults(self, action: Action) -> None:
        self._trouble(self.target_faults, action)
        self._sink_trouble_until_us = self.sim.now_us + action.length_ms * 1000

    def _trouble(self, faults: StoreFaults, action: Action) -> None:
        rates = TROUBLE_OF_THE_STORE[action.variant % len(TROUBLE_OF_THE_STORE)]
        for name, rate in rates.items():
            setattr(faults, name, rate)
        until = self.sim.now_us + min(action.length_ms, 10_000) * 1000
        self.sim.at(until, lambda _: self._calm or [setattr(faults, name, 0.0) for name in rates])

    def _outage(self, action: Action) -> None:
        faults = self.store_faults if action.variant % 3 else self.target_faults
        faults.outage_until_s = self.sim.now_s + min(action.length_ms, 10_000) / 1000

    def _trigger(self, action: Action) -> None:
        runner = self._runner(self._current())
        if runner is not None:
            self._on(self._current(), runner, runner.trigger)

    def _drain(self, _: Any = None) -> None:
        self._stopping = "drain"

    def _begin_to_stop(self, _: Any = None) -> None:
        self._stopping = self._stopping or "checkpoint"

    def _stop(self, runner: JobRunner) -> None:
        """Stops the job, in some runs with a savepoint; requests another savepoint if the first failed."""
        if self._stopping == "drain" and self._strikes("checkpointing"):
            runner.trigger()
        if self._stopping == "drain" and self._strikes("asked"):
            self.sim.after(0, self._cut_all_but, None)
        if not self.schedule.last_savepoint:
            super()._stop(runner)
            return
        wish = self._last_wish
        failed = wish is not None and any(each.id == wish.id and each.error for each in runner.status().savepoints)
        if wish is None or failed:
            number = 0 if wish is None else int(wish.id.rpartition("-")[2]) + 1
            wish = self._last_wish = SavepointRequest(f"last-{number}", f"memory://last-{number}", stops=True)
        logged = self.facts.records[-1].stops_with if self.facts.records else None
        if self.schedule.seed % 2 and logged is not None and logged.savepoint == wish.id:
            return  # the requester is gone; the log has the request
        with contextlib.suppress(InvalidJob):  # the job is just ending
            runner.stop(self._stopping, wish)

    def _strikes(self, moment: str) -> bool:
        """Returns whether to strike a drain at `moment`, once per moment."""
        if moment not in self.schedule.drain_struck or moment in self._drain_struck:
            return False
        self._drain_struck.add(moment)
        return True

    def _cut_all_but(self, told: SimProcess | None) -> None:
        """Loses the messages to the other slots that tell the end of sources."""
        coordinators = {each.process for each in self._current().coordinators}
        for connection in self.sim.network.connections:
            ends = {end.process for end in connection.ends}
            if ends & coordinators and told not in ends:
                self.sim.network.cut(connection)

    def _strike_drained(self, _: Any) -> None:
        """Strikes between decision and commit of the last checkpoint: slots restore it or a new coordinator leads."""
        program = self._current()
        living, leader = self._living(program), self._leader(program)
        if not program.active:
            return
        if living and self.sim.chance(0.4 if self.schedule.last_savepoint else 0.7):
            self._lose_slot(program, self.sim.rng.choice(living), kill=True)
        elif leader is not None:
            leader.process.crash()
            self.sim.after(self.sim.between_us(10_000, 1_000_000), lambda _: self._restart_coordinator(program))

    # ------------------------------------------------------------ savepoints

    @contextlib.contextmanager
    def _savepoints(self) -> Iterator[None]:
        """Savepoints go to stores of their own without faults; checkers hear of each written savepoint."""

        def watched(store: Any, url: str, copy: SavepointCopy, *more: Any) -> int:
            try:
                size = savepoint_files.write_savepoint(store, url, copy, *more)
            except (BarrierRuntimeError, OSError):
                self.near_misses["savepoints not copied"] += 1
                raise
            try:
                for on_savepoint in self._hooks["on_savepoint"]:
                    on_savepoint(savepoint_files.read_savepoint(url), savepoint_files.open_store(url).get)
            except BarrierRuntimeError as error:
                self._wrong("Savepoints", f"what was written to {url} cannot be read: {error}")
            self.near_misses["savepoints"] += 1
            return size

        with (
            patch.dict(open_module._memory_stores, clear=True),
            patch.object(store_effects, "write_savepoint", watched),
        ):
            yield

    @contextlib.contextmanager
    def _reads(self) -> Iterator[None]:
        """Checkers hear of each row that a source returns, except with two jobs, whose reads look alike."""
        step, heard = subtask_module.Subtask._step_source, self._hooks["on_read"]

        def stepped(subtask: Any, source: Any) -> bool:
            worked: bool = step(subtask, source)
            read = source.last_rows() if worked else None
            if read is not None:
                for on_read in heard:
                    on_read(subtask.token, read[0], read[2] + 1)
            return worked

        with contextlib.nullcontext() if self.twin else patch.object(subtask_module.Subtask, "_step_source", stepped):
            yield

    def _ask_for_savepoint(self, _: Any = None) -> None:
        runner, number = self._runner(self._current()), len(self._wishes)
        if runner is not None:
            self._wishes.append(SavepointRequest(f"wish-{number}", f"memory://savepoint-{number}"))
            self._on(self._current(), runner, partial(_ask, runner.savepoint, self._wishes[-1]))

    def _expect_savepoints(self) -> None:
        """Every requested savepoint of a healthy running job ends."""
        runner = self._runner(self._current())
        if runner is None or not self._wishes:
            return
        for wish in self._wishes:
            self._on(self._current(), runner, partial(_ask, runner.savepoint, wish))

        def all_over() -> bool:
            known = self._runner(self._current())
            return known is None or all(each.ended_ms is not None for each in known.status().savepoints)

        if not self._until(all_over, HEALED_WITHIN_S):
            self._wrong("Liveness", f"savepoints do not come to an end: {runner.status().savepoints}")

    def _expect_restores(self) -> None:
        """An ended job continues from any of its savepoints, in a copy of the store."""
        found = [(wish.url, savepoint_files.find_savepoint(wish.url)) for wish in self._wishes]
        whole = {each.taken.checkpoint: url for url, each in found if each is not None}
        if self.violations or len(whole) < 2:
            return
        copy = MemoryStore("restored", self.now_ms)
        for info in self.store.list(""):
            copy.put(info.key, self.store.get(info.key))
        wrong = restored_in_turn(copy, self._current().spec, (whole[min(whole)], whole[max(whole)]))
        self.near_misses["jobs put on one savepoint, on another, and on the first again"] += 1
        if wrong:
            self._wrong("RestoredInTurn", wrong)

    # ------------------------------------------------------------ rescales

    def _ask_for_rescale(self, parallelism: int) -> None:
        runner = self._runner(self._current())
        if runner is not None:
            self._rescales += 1
            wish = RescaleRequest(f"rescale-{self._rescales}", parallelism, self.sim.rng.choice((300, 2_000, 5_000)))
            self._on(self._current(), runner, partial(_ask, runner.rescale, wish))

    def _ask_for_replace(self, kind: str) -> None:
        """Requests a replace by a program of the same flow, whose results the checkers know."""
        program = self._current()
        runner = self._runner(program)
        if runner is not None:
            self._rescales += 1
            name = f"replace-{self._rescales}"
            program.others[name], spec = self._job(program.number, program.spec.parallelism)
            spec = self._starts.program(name, kind, spec)
            wish = RescaleRequest(name, 1, self.sim.rng.choice((300, 2_000, 5_000)), spec)
            self._on(program, runner, partial(_ask, runner.replace, wish))

    def _expect_rescales(self) -> None:
        """Every requested rescale ends, whatever faults happened."""

        def all_over() -> bool:
            known = self._runner(self._current())
            return known is None or all(each.ended_ms is not None for each in known.status().rescales)

        if self._rescales and not self._until(all_over, HEALED_WITHIN_S):
            self._wrong("Liveness", "a rescale does not come to an end")

    # ------------------------------------------------------------ faults at a certain moment

    def _leader(self, program: Program) -> SimCoordinator | None:
        runner = self._runner(program)
        for coordinator in program.coordinators:
            directory = coordinator.directory
            if directory is not None and runner is not None and directory.run(JOB, program.spec.run_id) is runner:
                return coordinator
        return None

    def _take_over(self, action: Action) -> None:
        """Ends the leader while all slots live; the next leader is there at once."""
        program = self._current()
        leader = self._leader(program)
        if program.active and leader is not None:
            leader.process.crash()
            self.sim.after(self.sim.between_us(10_000, 100_000), lambda _: self._restart_coordinator(program))

    def _take_over_from_who_deletes(self, action: Action) -> None:
        self._when_deleting = action

    def _stall_who_deletes(self, name: str, action: Action) -> None:
        """Stalls a coordinator during a delete; another coordinator leads when the stall ends."""
        program = self._current()
        coordinator = next((each for each in program.coordinators if each.process.name == name), None)
        if self._calm or not program.active or coordinator is None or not coordinator.process.running:
            return
        coordinator.process.stall(max(3.0, action.length_ms / 1000))
        for connection in self.sim.network.connections:
            if any(end.process is coordinator.process for end in connection.ends):
                self.sim.network.cut(connection)
        if not self.schedule.standby:
            delay_us = self.sim.between_us(20_000, 300_000)
            self.sim.after(
                delay_us, lambda _: program.active and self._start_coordinator(program, coordinator.listening)
            )

    def _deaf_slot(self, action: Action) -> None:
        """Delays the leader's messages to a slot; messages from the slot arrive."""
        found, leader = self._victim(action), self._leader(self._current())
        if found is not None and leader is not None:
            one, other = leader.process.place, found[1].process.place
            self.sim.network.clog(one, other)
            length_ms = min(action.length_ms, self.schedule.slot_timeout_ms * 4 // 5)
            self.sim.after(length_ms * 1000, lambda _: self.sim.network.unclog(one, other))

    def _uploads_hang(self, action: Action) -> None:
        """For a while, uploads of a slot after the other take as long as several checkpoints."""
        self._let_uploads_hang(self.sim.now_us + max(1_000, action.length_ms) * 1000)

    def _let_uploads_hang(self, until_us: int) -> None:
        living = self._living(self._current())
        if self._calm or self.sim.now_us >= until_us:
            return
        if living:
            self._hold_uploads(self.sim.rng.choice(living), self.sim.between_us(30_000, 250_000))
        self.sim.after(self.sim.between_us(20_000, 120_000), self._let_uploads_hang, until_us)

    def _uploads_are_slow(self, action: Action) -> None:
        """Rows that sinks begin to stage during the action are staged only after its end."""
        self.target_faults.held, self.target_faults.held_until_s = "_staging/", self.sim.now_s + action.length_ms / 1000

    def _hold_uploads(self, task: SlotTask, length_us: int) -> None:
        if task.slot is not None and self.facts.token:
            faults, uuid = self.store_faults, task.slot.identity.uuid
            faults.held = f"{self.paths.data_token_prefix(self.facts.token)}{uuid}/"
            faults.held_until_s = (self.sim.now_us + length_us) / 1e6

    def _hold_up_another(self, process: SimProcess) -> None:
        others = [task for task in self._living(self._current()) if task.process is not process]
        if others and not self._calm:
            self._hold_uploads(self.sim.rng.choice(others), self.sim.between_us(70_000, 150_000))

    def _hears_in_steps(self, action: Action) -> None:
        """Lets a slot receive in steps, as soon as the sources of a slot have ended."""
        ended = [(task.process, task.slot) for task in self._living(self._current()) if task.slot and task.slot._ended]
        if ended:
            length_ms = min(max(600, action.length_ms), self.schedule.slot_timeout_ms * 4 // 5)
            self._steps.begin(*ended[action.victim % len(ended)], length_ms * 1000)
        elif not self._calm:
            self.sim.after(_RETRY_US, self._hears_in_steps, action)

    def _committer_outlives(self, action: Action) -> None:
        """Delays global commits; then the whole program stalls and is considered gone.

        When the program continues, its successor has already committed the program's pending commits."""
        program = self._current()
        length_ms = 800 + action.length_ms // 4
        self.target_faults.held, self.target_faults.held_until_s = "_commits/", self.sim.now_s + length_ms / 1000
        self.sim.after((length_ms - 10) * 1000, lambda _: self._leave_the_committer(program, action))

    def _leave_the_committer(self, program: Program, action: Action) -> None:
        led = any(coordinator.process.running for coordinator in program.coordinators)
        if not self._calm and program.active and led:  # otherwise the slots would wait for a lease of minutes
            program.outcome = "killed"
            for process in [each.process for each in (*program.coordinators, *program.tasks)]:
                if process.running:
                    process.stall(3 + action.variant % 4)
            delay_us = self.sim.between_us(100_000, 500_000)
            self.sim.after(delay_us, lambda _: self._start_again(program.spec.parallelism))

    def _rescale_behind(self, action: Action) -> None:
        """A slot falls behind the others until a decided checkpoint contains the lag.

        The program continues from that checkpoint at another parallelism, again with a slow slot: event time waits for
        the rows of the slow slot, while other slots process theirs."""
        found = self._victim(action)
        if found is not None:
            self._slow_down(found[1])
            self._when_apart = (found[0], 2 + action.variant % 2)

    def _crash_with_rows_in_flight(self, action: Action) -> None:
        """The job restores the next checkpoint with rows in flight."""
        self._when_in_flight.append(action)

    def _slow_down(self, task: SlotTask) -> None:
        task.process.turn_us = _BEHIND_TURN_US
        usual_us = self.schedule.turn_ms * 1000
        self.sim.after(_BEHIND_US, lambda _: setattr(task.process, "turn_us", usual_us))

    def _rescale_from(self, program: Program, parallelism: int) -> None:
        def start() -> None:
            self._start_again(parallelism)
            found = self._victim(Action(0, "", self.sim.between_us(0, 9), 0, 0))
            if found is not None:
                self._slow_down(found[1])

        if not self._calm and program.active:
            self._kill_program(program, leave_zombies=False)
            self.sim.after(self.sim.between_us(100_000, 500_000), lambda _: start())

    # ------------------------------------------------------------ stores and readers

    def _wrong(self, checker: str, what: str) -> None:
        self.sim.trace("VIOLATION", checker, what)
        self.violations.append((checker, f"{self.sim.now_s:.3f} s: {what}"))

    def _notice_problems(self) -> None:
        for problem in self.sim.problems:
            self._wrong("Problem", str(problem))
        self.sim.problems.clear()

    def requested(self, actor: str, operation: str, key: str) -> None:
        for on_request in self._hooks["on_request"]:
            on_request(actor, operation, key)
        aimed = self._when_deleting
        if aimed is not None and operation == "delete" and self.paths.checkpoint_of(key) is not None:
            self._when_deleting = None
            self.sim.after(self.sim.between_us(0, 2_000), lambda _: self._stall_who_deletes(actor, aimed))

    def answered(self, actor: str, operation: str, key: str, data: bytes, outcome: PutOutcome) -> None:
        position = self.facts.position_of(key)
        if position is not None:
            for on_log_put_answered in self._hooks["on_log_put_answered"]:
                on_log_put_answered(actor, position, outcome)

    def got(self, actor: str, key: str, there: bool | None) -> None:
        position = self.facts.position_of(key)
        if position is not None:
            for on_log_get_answered in self._hooks["on_log_get_answered"]:
                on_log_get_answered(actor, position, there)

    def _wrote(self, actor: str, key: str, data: bytes) -> None:
        for on_put in self._hooks["on_put"]:
            on_put(actor, key, data, self.store.peek)
        position = self.facts.position_of(key)
        if position is None or position != len(self.facts.records) + 1:
            return
        record = self.facts.appended(key, data)
        if isinstance(record, Lead):
            self.recoveries += 1
        for on_record in self._hooks["on_record"]:
            on_record(position, record)
        if isinstance(record, Complete):
            manifest = manifest_data(record, self.store.peek)
            if manifest is not None:
                decision = self.facts.decided(position, record, manifest, self.store.peek)
                for on_decision in self._hooks["on_decision"]:
                    on_decision(decision)
                if decision.manifest.drained_by and self._strikes("decided"):
                    self.sim.after(self.sim.between_us(0, 3_000), self._strike_drained)
                if self._when_apart is not None and decision.apart_ms > _APART_MS:
                    aimed, self._when_apart = self._when_apart, None
                    self.sim.after(self.sim.between_us(0, 20_000), lambda _: self._rescale_from(*aimed))
                if self._when_in_flight and len(decision.in_flight) > 1:
                    strike = self._when_in_flight.pop(0)
                    self.sim.after(
                        self.sim.between_us(0, 20_000), lambda _: self._act(replace(strike, kind="crash slot"))
                    )

    def _dropped(self, actor: str, key: str) -> None:
        for on_delete in self._hooks["on_delete"]:
            on_delete(actor, key)

    def _of(self, actor: str) -> "World":
        return next(world for world in self._both if actor in world._processes)

    def _target_wrote(self, actor: str, key: str, data: bytes) -> None:
        world = self._of(actor)
        if key.startswith("_commits/"):
            name = key.split("/", 3)[3].removesuffix(".json")
            if not name.isdigit() or key in self._moved_away:  # blocks and hints; gaps, which nobody reads
                return
            self._committed[key] = msgspec.json.decode(data, type=CommitRecord)
        if key.startswith("_staging/"):
            self._staged_by[key] = world
        else:
            world._shown(key, data)

    def _target_dropped(self, actor: str, key: str) -> None:
        """Checks that neither of two jobs drops staged rows of the other, which may be decided."""
        if key in self._committed:
            self._moved_away.add(key)
            self._note("a commit record moved into a block")
        owner = self._staged_by.pop(key, None)
        if owner is not None and owner is not self._of(actor):
            decided = any(key.encode() in each for each in owner.facts.committables)
            what = "a decided" if decided else "an undecided"
            self._wrong("OthersRowsStay", f"{actor}, of another job of that name, dropped {key}, {what} file")

    def _shown(self, key: str, data: bytes) -> None:
        if key.startswith("_commits/"):
            record = msgspec.json.decode(data, type=CommitRecord)
            rows = []
            for file in record.files:
                found = self.target.peek(file.name)
                if found is None:
                    self._wrong("OneCut", f"the commit log names {file.name}, which is not there")
                    return
                rows += self.workload.rows_in(found)
            for on_visible in self._hooks["on_visible"]:
                on_visible(record.sink, record.checkpoint, (), rows)
        elif not key.startswith("_"):
            for on_published in self._hooks["on_published"]:
                on_published(key)

    def _visible(self, rows: list[Any]) -> None:
        """Reports visible rows of sink "out" if readers do not see whole checkpoints."""
        for on_visible in self._hooks["on_visible"]:
            on_visible("out", 0, (), rows)

    def _moved(self, checkpoint: int, rows: list[Row]) -> None:
        """Reports rows moved into a table. The rest of an abandoned lineage counts for the next decision."""
        decided = sorted(each.record.checkpoint for each in self.facts.decisions)
        whole = next((each for each in decided if each >= checkpoint > 0), checkpoint)
        for on_visible in self._hooks["on_visible"]:
            on_visible("out", whole, (), rows)

    def _upserted(self, token: int, rows: list[Row]) -> None:
        for checker in self.checkers:
            if isinstance(checker, LastValues):
                checker.on_upserts(token, rows)

    def _released(self, token: int, rows: Sequence[Row]) -> None:
        for checker in self.checkers:
            if isinstance(checker, StableRows):
                checker.on_released(token, rows)

    def _note(self, what: str) -> None:
        self.near_misses[what] += 1

    def _ledger_visible(self, handle: bytes, rows: list[Any]) -> None:
        for on_visible in self._hooks["on_visible"]:
            on_visible("side", 0, (handle,), rows)

    def _weather(self) -> Any:
        return _LedgerWeather(self)

    def _committed_through(self) -> int:
        runner = self._runner(self._current())
        if runner is None:
            return 0
        return self._late_commits.reached(runner.status().commits.through)


def _hooks(checkers: list[Checker], name: str) -> list[Callable[..., None]]:
    return [getattr(each, name) for each in checkers if getattr(type(each), name) is not getattr(Checker, name)]


def _opens_at_once(operator: str) -> None:
    """Opens without delay."""


class _LedgerWeather:
    def __init__(self, world: World) -> None:
        self._world = world

    def request(self, what: str) -> str:
        world = self._world
        sim = world.sim
        troubled = sim.now_us < world._sink_trouble_until_us
        sim.jobs.block(sim.between_us(200, 3_000))
        if troubled and sim.chance(0.05):
            sim.jobs.block(sim.between_us(1_000_000, 20_000_000))
        if troubled and sim.chance(0.5):
            return "fail before" if sim.chance(0.5) else "fail after"
        return "ok"


_ACTS: dict[str, Callable[[World, Action], None]] = {
    "crash slot": World._crash_slot,
    "crash two slots": World._crash_two,
    "stall slot": World._stall_slot,
    "crash coordinator": World._crash_coordinator,
    "stall coordinator": World._stall_coordinator,
    "second coordinator": World._second_coordinator,
    "restart program": World._restart_program,
    "second program": World._second_program,
    "replace slot twice": World._replace_twice,
    "cut connection": World._cut,
    "half-open connection": World._half_open,
    "clog": World._clog,
    "unclog": World._unclog,
    "store faults": World._store_faults,
    "store outage": World._outage,
    "sink faults": World._sink_faults,
    "trigger": World._trigger,
    "crash everything": World._crash_everything,
    "take over": World._take_over,
    "take over from who deletes": World._take_over_from_who_deletes,
    "deaf slot": World._deaf_slot,
    "committer outlives its program": World._committer_outlives,
    "rescale behind": World._rescale_behind,
    "crash with rows in flight": World._crash_with_rows_in_flight,
    "uploads hang": World._uploads_hang,
    "uploads are slow": World._uploads_are_slow,
    "hears in steps": World._hears_in_steps,
}


def _ask(ask: Callable[[Any], object], wish: SavepointRequest | RescaleRequest) -> None:
    with contextlib.suppress(InvalidJob):  # the job is just ending, has too many requests, or is moving
        ask(wish)
