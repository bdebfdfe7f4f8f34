"""Random interleavings of processes that read, append, stall and compact: none takes a record in a gap for its own."""

import random
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.log import records
from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign, LogView, ReadBack, Repeat
from barrier_runtime.coordinator.log.reader import LogReader
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import Record
from barrier_runtime.coordinator.log.restore_choice import Lineage, RestoreFrom, continue_run
from barrier_runtime.coordinator.server.store_effects import StoreEffects, StoreThreads
from barrier_runtime.coordinator.store_calls import compact_log
from barrier_runtime.coordinator.wire.messages import ManifestRef
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import PutOutcome, get_or_none
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

PATHS = Paths("flights")


class LossyStore(MemoryStore):
    """Store that loses answers of puts, and lands some puts late. `first`: the first record put at each position."""

    requests_at_once = 1  # no threads: the seed alone decides the order

    def __init__(self, chance: random.Random) -> None:
        super().__init__("lossy")
        self.chance = chance
        self.first: dict[int, bytes] = {}
        self.late: list[tuple[str, bytes]] = []

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        luck = self.chance.random()
        if luck < 0.08:
            self.land(key, data)
        elif luck < 0.12:
            self.late.append((key, data))
        if luck < 0.15:
            return PutOutcome.UNKNOWN
        return self.land(key, data)

    def land(self, key: str, data: bytes) -> PutOutcome:
        outcome = super().put_if_absent(key, data)
        position = PATHS.log_position(key)
        if outcome is PutOutcome.CREATED and position is not None:
            self.first.setdefault(position, data)
        return outcome


class Process:
    """A process that reads the log, takes over, appends, and may stall between any two calls of the store."""

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.store, self.chance = world, world.store, world.chance
        self.run_id = f"run-{self.chance.randrange(1, 3)}"
        self.build = RecordBuilder(spec(run_id=self.run_id), Identity(f"leader-{number}", "host"))
        self.reader = LogReader(self.store, PATHS)
        unused = partial(pytest.fail, "never called")
        self.effects = StoreEffects("flights", self.store, StoreThreads("flights"), unused, unused, unused, unused)
        self.leads = self.dead = False
        self.next_call = self.read

    def read(self) -> None:
        newest = max(self.store.first, default=0)
        view = self.reader.read(completes=2, run_id=self.run_id, kept=True)
        if view.head is None:
            assert newest == 0, "the reader found no log"
        else:
            assert view.head.position >= newest, "the reader took a gap for the end"
            assert view.head.sha256 == sha256_hex(self.store.first[view.head.position]), "a record in a gap was read"
        self.log = DecisionLog("flights", view)
        self.propose(self.first_record(view))

    def first_record(self, view: LogView) -> Record:
        fence, complete = self.log.fence, next(iter(view.completes), None)
        same_run = fence is not None and fence.spec.run_id == self.run_id
        if same_run and self.chance.random() < 0.6:
            return self.build.lead(self.log, 0)
        choice = RestoreFrom(complete, Lineage.INHERIT if complete else Lineage.NEW)
        if same_run:
            choice = continue_run(self.log)
        elif len(view.kept_entries) > 1 and self.chance.random() < 0.3:
            choice = RestoreFrom(self.chance.choice(view.kept_entries), Lineage.NEW)
        self.log.choose_restore(choice.entry)
        return self.build.fence(self.log, choice, "takes over", 0, 0)

    def propose(self, record: Record) -> None:
        self.take(self.log.propose(record))

    def put(self) -> None:
        key = PATHS.log_record(self.position)
        outcome, overtaken = self.effects._put_record(self.position, key, self.data)
        self.world.overtaken += overtaken is not None
        self.take(self.log.on_put(self.position, outcome, overtaken))

    def read_back(self) -> None:
        key = PATHS.log_record(self.position)
        self.take(self.log.on_read_back(self.position, key, get_or_none(self.store, key)))

    def lead(self) -> None:
        luck = self.chance.random()
        if luck < 0.05:
            self.dead = True
        elif luck < 0.09:
            self.propose(self.build.fence(self.log, continue_run(self.log), "again", 0, 0))
        elif luck < 0.12:
            self.propose(self.build.stop(self.log, 0))
        else:
            checkpoint, fence = self.log.checkpoint_floor + 1, self.log.fence
            assert fence is not None
            ref = ManifestRef(PATHS.manifest(checkpoint, fence.token), "0" * 64)
            committed = self.log.completed if self.chance.random() < 0.8 else 0
            self.propose(self.build.complete(self.log, checkpoint, fence.lineage, ref, 0, b"", committed))

    def take(self, answer: Appended | Foreign | Repeat | ReadBack | None) -> None:
        if isinstance(answer, Repeat):
            self.position, self.data, self.next_call = answer.position, answer.data, self.put
        elif isinstance(answer, ReadBack):
            self.next_call = self.read_back
        elif isinstance(answer, Foreign):
            self.dead, self.next_call = self.leads, self.read
        else:
            assert isinstance(answer, Appended)
            assert self.store.first[self.position] == self.data, "a process took a record in a gap for its own"
            self.leads, self.next_call = True, self.lead
            if answer.compacts:
                self.world.due.append((self.log.base, frozenset(self.log.kept), self.log.first_sha256))


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = LossyStore(self.chance)
        self.due: list[tuple[int, frozenset[int], str]] = []  # compactions that have not run
        self.overtaken = self.compactions = 0

    def run(self, steps: int) -> None:
        living: list[Process] = []
        favoured = 0
        for step in range(steps):
            if not living or self.chance.random() < 0.03:
                living = [*living[-5:], Process(self, step)]
            if self.chance.random() < 0.04:
                favoured = self.chance.randrange(len(living))
            stalls = self.chance.random() < 0.93  # all but the favoured process
            process = living[favoured % len(living)] if stalls else self.chance.choice(living)
            process.next_call()
            living = [each for each in living if not each.dead]
            self.in_the_background()

    def in_the_background(self) -> None:
        if self.store.late and self.chance.random() < 0.05:
            self.store.land(*self.store.late.pop(self.chance.randrange(len(self.store.late))))
        if self.due and self.chance.random() < 0.2:
            compact_log(self.store, PATHS, *self.due.pop(self.chance.randrange(len(self.due))), set())
            self.compactions += 1


@pytest.fixture
def tiny_steps() -> Iterator[None]:
    with patch.object(records, "MILESTONE_STEP", 4):
        yield


def test_random_interleavings_leave_one_log_that_every_process_agrees_on(tiny_steps: None) -> None:
    overtaken = compactions = 0
    for seed in range(25):
        world = World(seed)
        world.run(700)
        overtaken, compactions = overtaken + world.overtaken, compactions + world.compactions
    assert overtaken
    assert compactions > 25
