"""Uploads of undecided, ended checkpoints are deleted, also while their generation lives; no other file is."""

import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import pytest
from coordinator_world import SINK, SOURCE, Coordinator, keys_of, options, spec, started

from barrier_runtime.coordinator.checkpoints.failures import FailureCounter
from barrier_runtime.coordinator.checkpoints.retention import MIN_AGE_MS, Kept, Retention, SweepPlan, UnderWay
from barrier_runtime.coordinator.job import status_view
from barrier_runtime.coordinator.job.events import Tick
from barrier_runtime.coordinator.job.generation import Generation
from barrier_runtime.coordinator.job.phases import retaining
from barrier_runtime.coordinator.job.phases.retaining import under_way
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.manifest import (
    DecidedManifest,
    Manifest,
    load_manifest,
    own_files,
)
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    Ack,
    CheckpointComplete,
    Registered,
    SubtaskId,
    Trigger,
)
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo, get_or_none
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex
from tests.drawn import some

PATHS = Paths("flights")


def data_of(store):
    return {key for key in keys_of(store) if key.startswith(PATHS.data_prefix)}


def acked(slot, checkpoint, names):
    for name in names.split():
        if slot.data_key(name) not in keys_of(slot.coordinator.store):
            slot.upload(name)
    slot.ack(checkpoint, files=names)


def uploads(slot, *names):
    return {slot.data_key(name) for name in names}


def test_what_a_declined_checkpoint_uploaded_goes_and_what_it_took_over_stays(store):
    """S1, S4"""
    coordinator, a, b = started(store, spec(checkpoints=options(tolerable_failures=100)))
    coordinator.trigger()
    acked(a, 1, "base")
    acked(b, 1, "base")
    coordinator.settle()
    coordinator.trigger()
    acked(a, 2, "base own")
    b.decline(2)
    coordinator.settle()
    assert data_of(store) == uploads(a, "base") | uploads(b, "base")


def test_acks_that_come_after_the_end_of_their_checkpoint_name_what_goes(store):
    coordinator, a, b = started(store, spec(checkpoints=options(tolerable_failures=100, timeout_ms=500)))
    coordinator.trigger()
    acked(a, 1, "early")
    coordinator.later(600)
    coordinator.settle()
    assert coordinator.status.checkpoints.failed == 1
    assert data_of(store) == set()
    acked(b, 1, "late")
    coordinator.settle()
    assert data_of(store) == set()


def test_a_repeated_ack_of_a_decided_checkpoint_deletes_nothing(store):
    """S1"""
    coordinator, a, b = started(store)
    for slot in (a, b):
        slot.upload("f")
    number = coordinator.checkpoint(a, b, files="f")
    before = data_of(store)
    a.ack(number, files="f")
    coordinator.settle()
    assert data_of(store) == before


def test_what_a_subsumed_checkpoint_uploaded_goes_but_for_what_the_newer_one_names(store):
    """C13"""
    coordinator, a, b = started(store, spec(checkpoints=options(max_concurrent=2)))
    coordinator.trigger()
    coordinator.trigger()
    acked(a, 1, "old shared")
    for slot in (a, b):
        acked(slot, 2, "shared new")
    coordinator.settle()
    assert data_of(store) == uploads(a, "shared", "new") | uploads(b, "shared", "new")


def patient(**changes):
    """Returns the spec of a job without timeouts or periodic checkpoints during a test."""
    long_ms = 100 * MIN_AGE_MS
    return spec(slot_timeout_ms=long_ms, checkpoints=options(interval_ms=long_ms, timeout_ms=long_ms, **changes))


def test_sweep_takes_unacknowledged_uploads_once_every_open_checkpoint_is_younger(monkeypatch):
    """S9"""
    monkeypatch.setattr(retaining, "SWEEP_EVERY_MS", 0)
    clock = [1_000_000]
    store = MemoryStore(now_ms=lambda: clock[0])
    coordinator, a, b = started(store, patient(tolerable_failures=100))
    coordinator.checkpoint(a, b)
    coordinator.trigger()
    a.upload("never-named")
    b.decline(2)
    coordinator.settle()
    assert data_of(store) == uploads(a, "never-named")
    coordinator.trigger()  # open while the sweep looks
    clock[0] += MIN_AGE_MS + 1
    coordinator.now_ms += MIN_AGE_MS + 1
    a.upload("under-way")
    coordinator.settle()
    assert data_of(store) == uploads(a, "never-named", "under-way"), "nothing tells that it is older than checkpoint 3"
    for slot in (a, b):
        acked(slot, 3, "under-way")
    coordinator.settle()
    coordinator.checkpoint(a, b, files="under-way")
    assert data_of(store) == uploads(a, "under-way") | uploads(b, "under-way")


def test_what_is_being_uploaded_for_an_open_checkpoint_stays_however_old_it_is(monkeypatch):
    """S9, I7: the checkpoint was triggered before every object from which the sweep takes the time."""
    monkeypatch.setattr(retaining, "SWEEP_EVERY_MS", 0)
    clock = [1_000_000]
    store = MemoryStore(now_ms=lambda: clock[0])
    coordinator, a, b = started(store, patient(tolerable_failures=100, max_concurrent=2))
    coordinator.trigger()
    a.upload("slow")
    clock[0] += 2 * MIN_AGE_MS
    coordinator.now_ms += 2 * MIN_AGE_MS
    coordinator.trigger()
    b.decline(2)
    coordinator.settle()
    assert data_of(store) == uploads(a, "slow")
    for slot in (a, b):
        acked(slot, 1, "slow")
    coordinator.settle()
    assert coordinator.status.checkpoints.completed == 1
    assert data_of(store) == uploads(a, "slow") | uploads(b, "slow")


def test_uploads_of_open_checkpoints_before_another_decision_stay_however_old(monkeypatch):
    """S9, I7: the other checkpoint's manifest is younger than this upload, but proves nothing about the upload."""
    monkeypatch.setattr(retaining, "SWEEP_EVERY_MS", 0)
    clock = [1_000_000]
    store = MemoryStore(now_ms=lambda: clock[0])
    coordinator, a, b = started(store, patient(max_concurrent=2))
    coordinator.trigger()
    coordinator.trigger()
    a.upload("for-2")
    clock[0] += 2 * MIN_AGE_MS
    coordinator.now_ms += 2 * MIN_AGE_MS
    for slot in (a, b):
        acked(slot, 1, "for-1")
    coordinator.settle()
    assert coordinator.status.checkpoints.completed == 1
    for slot in (a, b):
        acked(slot, 2, "for-2")
    coordinator.settle()
    assert coordinator.status.checkpoints.completed == 2
    assert uploads(a, "for-2") <= data_of(store)


def test_file_in_an_ack_of_an_open_checkpoint_stays_whoever_else_named_the_file():
    """S4, I7: both kinds of deletes check acks; neither relies on the behaviour of slots."""
    key, manifest = PATHS.data_file(5, "u", "f"), PATHS.manifest(3, 5)
    open_ones = UnderWay(frozenset({key}), frozenset({manifest}))
    assert Retention(1).abandoned([key], open_ones) == SweepPlan()
    objects = [ObjectInfo(key, 1, 0), ObjectInfo(manifest, 1, 10 * MIN_AGE_MS)]
    kept = [Kept(3, manifest, frozenset())]
    assert Retention(1, kept).sweep(PATHS, objects, 5, 20 * MIN_AGE_MS, open_ones) == SweepPlan()
    nothing_open = UnderWay(frozenset(), frozenset({manifest}))
    assert Retention(1, kept).sweep(PATHS, objects, 5, 20 * MIN_AGE_MS, nothing_open).files == (key,)
    assert Retention(1, kept).sweep(PATHS, objects, 5, 20 * MIN_AGE_MS) == SweepPlan(), "who does not lead"


def test_manifest_in_decision_is_spared_whatever_the_clock_of_the_store_says():
    """S4"""
    manifest = Manifest(
        job="flights", lineage="l", checkpoint=4, token=5, created_wall_ms=0, parallelism=1, max_parallelism=128,
        operators=(), parent_position=1, parent_sha256="",
    )  # fmt: skip
    written = DecidedManifest(PATHS.manifest(4, 5), "00", manifest)
    deciding = under_way(
        Generation(FailureCounter(0), written=written, appended=deque([(frozenset({PATHS.manifest(3, 5)}), 3)]))
    )
    objects = [ObjectInfo(written.key, 1, 0), ObjectInfo(PATHS.manifest(3, 5), 1, 10 * MIN_AGE_MS)]
    kept = [Kept(3, PATHS.manifest(3, 5), frozenset())]
    assert Retention(1, kept).sweep(PATHS, objects, 5, 20 * MIN_AGE_MS, deciding) == SweepPlan()


def test_uploads_older_than_the_last_decision_before_open_checkpoints_are_swept():
    """S4: a long run has many decisions, and orphans may lie between any two of them."""
    first, second = PATHS.manifest(1, 5), PATHS.manifest(2, 5)
    between, after = PATHS.data_file(5, "u", "between"), PATHS.data_file(5, "u", "after")
    ages = {first: 10, between: 20, second: 30, after: 40}
    objects = [ObjectInfo(key, 1, age * MIN_AGE_MS) for key, age in ages.items()]
    retention = Retention(2, [Kept(1, first, frozenset()), Kept(2, second, frozenset())])
    nothing_open = UnderWay(frozenset(), frozenset({first, second}))
    assert retention.sweep(PATHS, objects, 5, 50 * MIN_AGE_MS, nothing_open).files == (between,)


# ---------------------------------------------------------------- any order


@dataclass
class Process:
    """A subtask's state: a set of files that grows and shrinks. The test decides when messages arrive."""

    slot: object
    confirmed: frozenset[str] = frozenset()  # files of the newest checkpoint that the process knows as decided
    live: set[str] = field(default_factory=set)  # files that are not merged away; a removed file never returns
    taken: dict[int, frozenset[str]] = field(default_factory=dict)  # unresolved snapshots
    heard: int = 0
    snapshotted: int = 0

    def hear(self):
        inbox = self.slot.inbox
        while self.heard < len(inbox):
            message = inbox[self.heard]
            self.heard += 1
            if isinstance(message, Registered):
                self.completed(message.last_completed)
            elif isinstance(message, CheckpointComplete):
                self.completed(message.checkpoint)
            elif isinstance(message, AbortCheckpoint):
                self.taken.pop(message.checkpoint, None)

    def completed(self, checkpoint):
        self.confirmed = self.taken.get(checkpoint, self.confirmed)
        self.taken = {number: files for number, files in self.taken.items() if number > checkpoint}


_WRITES = ("put", "put_if_absent", "delete", "publish")
_MOVES = ("trigger", "decline", *("snapshot", "hear") * 2, *("ack", "effect") * 3)


class Story:
    """Random moves of a coordinator, successors and two slots, over one store."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.clock = [1_000_000]
        self.store = MemoryStore(now_ms=lambda: self.clock[0])
        choice = self.random.choice
        self.timeout_ms = choice((3_000, 10_000 * MIN_AGE_MS))
        concurrent, retained = choice((1, 1, 2, 3)), choice((1, 1, 2))
        self.job = spec(
            slot_timeout_ms=10_000 * MIN_AGE_MS,
            checkpoints=options(
                max_concurrent=concurrent,
                retained=retained,
                tolerable_failures=1_000,
                timeout_ms=self.timeout_ms,
                interval_ms=10_000 * MIN_AGE_MS,
            ),
        )
        self.coordinator, a, b = started(self.store, self.job)
        self.processes = [Process(a), Process(b)]
        self.files = 0
        self.leaders = 0
        self.checked: list[int] = []

    @property
    def checkpoints(self):
        """Returns the part of the status that every move needs; the complete status takes twenty times as long."""
        return status_view._checkpoints(self.coordinator.protocol._job)

    def step(self):
        process = self.random.choice(self.processes)
        rare = ("later", "takeover", "orphan")[: self.random.randrange(4)]
        move = self.random.choice((*_MOVES, *rare))
        getattr(self, move)(process)

    def trigger(self, process):
        if len(self.checkpoints.in_progress) < self.job.checkpoints.max_concurrent:
            self.coordinator.trigger()

    def snapshot(self, process):
        """Takes a snapshot for a barrier from a data channel; messages of the coordinator may still be unread."""
        wanted = [each.checkpoint for each in process.slot.got(Trigger) if each.checkpoint > process.snapshotted]
        if wanted:
            checkpoint = process.snapshotted = min(wanted)
            self.files += 1
            process.live -= {name for name in sorted(process.live) if self.random.random() < 0.2}
            own = f"{checkpoint}-{self.files}"
            process.slot.upload(own)
            process.taken[checkpoint] = frozenset((*(process.confirmed & process.live), own))
            process.live.add(own)

    def ack(self, process, checkpoint=None):
        if process.taken:
            checkpoint = checkpoint or self.random.choice(sorted(process.taken))
            slot = process.slot
            refs = tuple(
                FileRef(f"{number:06d}.sst", 3, sha256_hex(b"sst"), slot.data_key(name))
                for number, name in enumerate(sorted(process.taken[checkpoint]), start=1)
            )
            keyed = KeyedSnapshot("rocksdb", 128, 0, 127, {"count": 1}, refs, 3, 3)
            slot.say(Ack(slot.token, checkpoint, SubtaskId(SOURCE, slot.index), ()))
            counted = OperatorSnapshot("count", slot.index, 2, keyed=keyed)
            slot.say(Ack(slot.token, checkpoint, SubtaskId(SINK, slot.index), (counted,)))

    def hear(self, process):
        process.hear()

    def decline(self, process):
        open_ids = self.checkpoints.in_progress
        if open_ids:
            process.slot.decline(self.random.choice(open_ids))

    def orphan(self, process):
        """Uploads a file for a checkpoint that is aborted before the ack."""
        open_ids = self.checkpoints.in_progress
        if open_ids and process.snapshotted < max(open_ids):
            self.files += 1
            process.slot.upload(f"orphan-{self.files}")
            process.slot.decline(max(open_ids))

    def effect(self, process):
        if self.coordinator.todo:
            self.coordinator.step()

    def later(self, process):
        """Advances time by a second or, if checkpoints have a long timeout, until every object is old."""
        passed_ms = 1_000 if self.timeout_ms == 3_000 else 2 * MIN_AGE_MS
        self.clock[0] += passed_ms
        self.coordinator.now_ms += passed_ms
        self.coordinator.post(Tick())

    def takeover(self, process):
        """Appends a LEAD of another process; the old leader's pending effects are executed or lost."""
        old = self.coordinator
        if self.random.random() < 0.5:
            old.settle()
        self.leaders += 1
        new = Coordinator(self.store, self.job, leader=f"leader-{self.leaders}", now_ms=old.now_ms).begin().settle()
        for each in self.processes:
            slot = each.slot
            slot.coordinator = new
            slot.highest = max([slot.highest, *each.taken])
            slot.connect()
        new.settle()
        assert new.phase == "running", new.protocol.reason
        self.coordinator = new

    def check(self):
        """I7: all files of retained checkpoints exist. Moves without a write need no new check."""
        reasons = [each.reason for each in self.checkpoints.history]
        assert not [reason for reason in reasons if "already deleted" in reason], "an open checkpoint lost a file"
        writes = [self.store.calls.get(each, 0) for each in _WRITES]
        if writes == self.checked:
            return
        self.checked = writes
        view = read_log(self.store, PATHS, completes=self.job.checkpoints.retained, kept=True)
        there = set(keys_of(self.store))
        assert len(view.kept_entries) == len(view.kept)
        assert {entry.position for entry in view.completes[:1]} <= set(view.kept), "the newest one is kept"
        for entry in view.kept_entries:
            record = complete_of(entry)
            assert record.inline or record.manifest in there
            assert self._files(entry) <= there

    def _files(self, entry):
        manifest = load_manifest(complete_of(entry), partial(get_or_none, self.store))
        return frozenset() if manifest is None else own_files(manifest, PATHS.data_prefix)

    def end(self):
        """Takes three complete checkpoints, with all messages delivered, and sweeps when all objects are old."""
        for checkpoint in self.checkpoints.in_progress:
            self.processes[0].slot.decline(checkpoint)
        self.coordinator.settle()
        for _ in range(3 + self.job.checkpoints.retained):
            self.clock[0] += 2 * MIN_AGE_MS
            self.coordinator.now_ms += 2 * MIN_AGE_MS
            self.coordinator.settle()
            for process in self.processes:
                process.hear()
            self.coordinator.trigger()
            while self.checkpoints.in_progress:
                for process in self.processes:
                    process.hear()
                    while any(each.checkpoint > process.snapshotted for each in process.slot.got(Trigger)):
                        self.snapshot(process)
                    self.ack(process, max(process.taken))
                self.coordinator.settle()
        most = self.job.checkpoints.retained + 2
        assert len([key for key in keys_of(self.store) if PATHS.checkpoint_of(key)]) <= most
        view = read_log(self.store, PATHS, completes=most, kept=True)
        kept, named = (set().union(*map(self._files, each)) for each in (view.kept_entries, view.completes))
        assert kept <= data_of(self.store) <= named


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize("inside", [True, False])
def test_whatever_the_order_nothing_needed_goes_and_nothing_else_stays(monkeypatch, request, inside):
    """S1, S9, I7: acks are late, duplicated or missing, notices are late, and coordinators change.

    `inside`: manifests are in their log records, as small manifests are."""
    if not inside:
        request.getfixturevalue("manifests_are_objects")
    monkeypatch.setattr(retaining, "SWEEP_EVERY_MS", 0)
    for seed in some(120):
        story = Story(seed)
        for _ in range(120):
            story.step()
            story.check()
        story.end()
        story.check()
