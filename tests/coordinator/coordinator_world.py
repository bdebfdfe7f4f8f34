"""A small world around `JobProtocol`: an in-memory store, a clock set by the test, slots that send messages.

Store effects run singly, in the requested order, when the test calls `step` or `settle`, so a test can stop a
coordinator between any two effects.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from barrier_runtime.coordinator.checkpoints.retention import discarded
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.effects import (
    Append,
    CloseLink,
    Compact,
    CopySavepoint,
    Delete,
    DeleteAll,
    Effect,
    JobEnded,
    KillSlotTask,
    ListForSweep,
    ReadLog,
    ReadManifest,
    ReadRecord,
    SendTo,
    WriteManifest,
)
from barrier_runtime.coordinator.job.events import (
    AppendResult,
    Begin,
    Deleted,
    DeletedAll,
    Event,
    Listed,
    LogRead,
    ManifestFailed,
    ManifestRead,
    ManifestWritten,
    RecordRead,
    SavepointCopied,
    SavepointNotCopied,
    SlotLost,
    SlotMessage,
    SlotMessages,
    SlotRegistered,
    StoreRefused,
    Tick,
    UserSavepoint,
    UserStop,
    UserTrigger,
)
from barrier_runtime.coordinator.job.facts import Origin
from barrier_runtime.coordinator.job.protocol import JobProtocol
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.log.manifest import decided_data, manifest_data
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.record_builder import Identity, Predecessor
from barrier_runtime.coordinator.log.records import FIRST_POSITION, Record, decode_record
from barrier_runtime.coordinator.savepoint_files import write_savepoint
from barrier_runtime.coordinator.store_calls import check_permit, compact_log, delete_in_order
from barrier_runtime.coordinator.wire.messages import (
    GLOBAL_COMMITTER,
    Ack,
    CancelGeneration,
    ChainSpec,
    CheckpointComplete,
    CheckpointOptions,
    Committed,
    Decline,
    Deploy,
    EndSources,
    Heartbeat,
    JobSpec,
    Prefetch,
    Register,
    Restored,
    Shutdown,
    SlotFacts,
    Start,
    SubtaskEnded,
    SubtaskFailed,
    SubtaskId,
    ToSlot,
    Trigger,
)
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectNotFound
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

SOURCE, SINK = 0, 1
FILE = b"sst"  # content of every snapshot file
CHAINS = (
    ChainSpec(chain=SOURCE, operators=("numbers", "double"), stateful=("numbers",), is_source=True),
    ChainSpec(chain=SINK, operators=("count", "out"), stateful=("count",), sinks=("out",)),
)


def spec(**changes: object) -> JobSpec:
    base = JobSpec(
        job="flights",
        run_id="run-1",
        submitter="ann@host pid 1",
        parallelism=2,
        max_parallelism=128,
        chains=CHAINS,
        checkpoints=CheckpointOptions(interval_ms=1_000),
    )
    return msgspec.structs.replace(base, **changes)


def options(**changes: object) -> CheckpointOptions:
    return CheckpointOptions(**{"interval_ms": 1_000, **changes})


@dataclass
class FakeSlot:
    coordinator: "Coordinator"
    index: int
    uuid: str
    attempt: int = 0
    link: int = 0
    token: int = 0
    phase: str = "idle"
    highest: int = 0
    committed: dict[str, int] = field(default_factory=dict)
    inbox: list[ToSlot] = field(default_factory=list)
    died: dict[int, str] = field(default_factory=dict)
    drained: bool = False
    closed: bool = False
    program: str = ""
    broken: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: SlotFacts | None = None
    host: str = "worker"
    succeeds: bool = False
    prefetches: bool = True  # at once
    prefetched: int = 0
    started_as: int = -1  # once a deployment has given the process another number

    def connect(self) -> "FakeSlot":
        self.link = self.coordinator.new_link(self)
        self.closed = False
        self.coordinator.post(SlotRegistered(self.link, self.register()))
        return self

    def register(self) -> Register:
        return Register(
            slot=self.index if self.started_as < 0 else self.started_as,
            uuid=self.uuid,
            pid=1000 + self.index,
            host=self.host,
            task_attempt=self.attempt,
            data_host="127.0.0.1",
            data_port=5000 + self.index,
            token=self.token,
            phase=self.phase,
            highest_checkpoint=self.highest,
            committed=dict(self.committed),
            died=dict(self.died),
            drained=self.drained,
            program=self.program,
            broken=self.broken,
            versions=dict(self.versions),
            facts=self.facts,
            succeeds=self.succeeds,
            seat=self.index if self.started_as >= 0 else -1,
        )

    def cut(self) -> None:
        """The connection breaks; the process may live."""
        self.coordinator.post(SlotLost(self.link))

    def say(self, message: object) -> None:
        self.coordinator.post(SlotMessages((SlotMessage(self.link, message),)))

    def receive(self, message: ToSlot) -> None:
        self.inbox.append(message)
        if isinstance(message, Deploy):
            self.token, self.phase, self.drained = message.token, "restoring", message.drained
            if message.slot >= 0:
                self.started_as, self.index = self.index if self.started_as < 0 else self.started_as, message.slot
        elif isinstance(message, EndSources):
            self.drained = True
        elif isinstance(message, Start):
            self.phase = "running"
        elif isinstance(message, CancelGeneration):
            self.phase = "idle"
        elif isinstance(message, Trigger):
            self.highest = max(self.highest, message.checkpoint)
        elif isinstance(message, Prefetch) and self.prefetches:
            self.coordinator.answers.append(lambda: self.fetched(message.checkpoint))

    def fetched(self, checkpoint: int) -> None:
        self.prefetched = checkpoint
        self.beat()

    def beat(self) -> None:
        now_ms = self.coordinator.now_ms
        self.say(Heartbeat(token=self.token, sent_at_ms=now_ms, metrics={}, prefetched=self.prefetched))

    def restored(self) -> None:
        self.say(Restored(self.token))

    def ack(
        self, checkpoint: int, *chains: int, ended: bool = False, token: int | None = None, files: str = ""
    ) -> None:
        for chain in chains or (SOURCE, SINK):
            self.say(
                Ack(
                    token=self.token if token is None else token,
                    checkpoint=checkpoint,
                    subtask=SubtaskId(chain, self.index),
                    operators=self.snapshots(chain, checkpoint, files),
                    ended=ended,
                )
            )

    def snapshots(self, chain: int, checkpoint: int, files: str = "") -> tuple[OperatorSnapshot, ...]:
        if chain == SOURCE:
            return (OperatorSnapshot("numbers", self.index, 2, {"position": str(checkpoint).encode()}),)
        refs = tuple(
            FileRef(name=f"{number:06d}.sst", size=3, sha256=sha256_hex(FILE), key=self.data_key(name))
            for number, name in enumerate(files.split(), start=1)
        )
        keyed = KeyedSnapshot("rocksdb", 128, 0, 127, {"count": 1}, refs, full_bytes=3 * len(refs), new_bytes=3)
        counted = OperatorSnapshot("count", self.index, 2, keyed=keyed if refs else None)
        if not self.coordinator.protocol.spec.chains[SINK].global_sinks:
            return (counted,)
        pending = {"pending": f"{checkpoint} of {self.index}".encode()}
        return (counted, OperatorSnapshot("out", self.index, 2, values=pending))

    def data_key(self, name: str) -> str:
        return Paths("flights").data_file(self.token, self.uuid, name)

    def upload(self, name: str) -> None:
        self.coordinator.store.put(self.data_key(name), FILE)

    def decline(self, checkpoint: int, chain: int = SINK, reason: str = "disk full") -> None:
        self.say(Decline(self.token, checkpoint, SubtaskId(chain, self.index), reason))

    def commit(self, checkpoint: int) -> None:
        self.committed[f"out/{self.index}"] = checkpoint
        self.say(Committed(self.token, checkpoint, "out", self.index))

    def commit_globally(self, checkpoint: int) -> None:
        self.committed["out/global"] = checkpoint
        self.say(Committed(self.token, checkpoint, "out", GLOBAL_COMMITTER))

    def end(self) -> None:
        for chain in (SOURCE, SINK):
            self.say(SubtaskEnded(self.token, SubtaskId(chain, self.index)))

    def fail(self, error: str = "boom", retryable: bool = True) -> None:
        self.say(SubtaskFailed(self.token, SubtaskId(SINK, self.index), "count", error, retryable))

    def got(self, kind: type) -> list:
        return [message for message in self.inbox if isinstance(message, kind)]

    def last(self, kind: type):
        found = self.got(kind)
        assert found, f"slot {self.index} never got {kind.__name__}, only {self.inbox}"
        return found[-1]


class Coordinator:
    """The test sets `now_ms`."""

    def __init__(
        self,
        store: MemoryStore,
        job: JobSpec | None = None,
        leader: str = "leader-a",
        origin: Origin = Origin.SUBMITTED,
        now_ms: int = 1_000_000,
        predecessor: Predecessor | None = None,
        versions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.store = store
        self.now_ms = now_ms
        self.protocol = JobProtocol(job or spec(), Identity(leader, "host", predecessor, versions), origin)
        self.paths = Paths(self.protocol.spec.job)
        self.todo: deque[Effect] = deque()
        self.links: dict[int, FakeSlot] = {}
        self.kills: list[KillSlotTask] = []
        self.ended: JobEnded | None = None
        self.deleted: list[str] = []
        self._next_link = 0
        self.answers: deque[Callable[[], None]] = deque()  # pending answers of slots to messages just received

    # ---- events in

    def post(self, event: Event) -> None:
        for effect in self.protocol.handle(event, self.now_ms):
            if isinstance(effect, SendTo):
                self.links[effect.link].receive(effect.message)
            elif isinstance(effect, CloseLink):
                self.links[effect.link].closed = True
            elif isinstance(effect, KillSlotTask):
                self.kills.append(effect)
            elif isinstance(effect, JobEnded):
                assert self.ended is None, "a job ends once"
                self.ended = effect
            else:
                self.todo.append(effect)
        while self.answers:
            self.answers.popleft()()

    def begin(self) -> "Coordinator":
        self.post(Begin())
        return self

    def later(self, ms: int) -> None:
        """Advances time by `ms`: ticks happen when due, and slots answer heartbeats only."""
        end = self.now_ms + ms
        while True:
            deadline = self.protocol.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now_ms = max(self.now_ms, deadline)
            self.post(Tick())
        self.now_ms = end
        self.post(Tick())

    def trigger(self) -> None:
        self.post(UserTrigger())

    def stop(self, mode: str, savepoint: SavepointRequest | None = None) -> None:
        self.post(UserStop(mode, savepoint))

    def savepoint(self, request: SavepointRequest) -> None:
        self.post(UserSavepoint(request))

    def new_link(self, slot: FakeSlot) -> int:
        self._next_link += 1
        self.links[self._next_link] = slot
        return self._next_link

    def slot(self, index: int, uuid: str = "", attempt: int = 0) -> FakeSlot:
        return FakeSlot(self, index, uuid or f"uuid-{index}-{attempt}", attempt)

    # ---- the store

    def step(self) -> Effect:
        """Executes the oldest store effect and delivers the answer."""
        effect = self.todo.popleft()
        self.post(self.answer(effect))
        return effect

    def step_without_answer(self) -> Effect:
        """Executes the oldest store effect; the coordinator dies before the answer."""
        effect = self.todo.popleft()
        self.answer(effect)
        return effect

    def settle(self) -> "Coordinator":
        for _ in range(1000):
            if not self.todo:
                return self
            self.step()
        raise AssertionError("the coordinator never comes to rest")

    def run_until(self, kind: type) -> Effect:
        """Executes effects up to, but not including, the first of `kind`."""
        for _ in range(1000):
            assert self.todo, f"no {kind.__name__} is asked for"
            if isinstance(self.todo[0], kind):
                return self.todo[0]
            self.step()
        raise AssertionError(f"no {kind.__name__} comes")

    def answer(self, effect: Effect) -> Event:
        try:
            return self._answer(effect)
        except (InvalidJob, BarrierRuntimeError) as error:
            if isinstance(error, Unavailable):
                raise
            if isinstance(effect, WriteManifest):
                return ManifestFailed(effect.key, str(error))
            if isinstance(effect, Delete):
                return Deleted(str(error))
            if isinstance(effect, DeleteAll):
                return DeletedAll(str(error))
            if isinstance(effect, CopySavepoint):
                taken = effect.copy.savepoint
                return SavepointNotCopied(taken.id, taken.taken.checkpoint, str(error))
            return StoreRefused(str(error))

    def _answer(self, effect: Effect) -> Event:
        store = self.store
        if isinstance(effect, ReadLog):
            return LogRead(
                read_log(
                    store,
                    self.paths,
                    completes=effect.completes,
                    restore=effect.restore,
                    run_id=effect.run_id,
                    kept=True,
                ),
                self.get(self.paths.history),
            )
        if isinstance(effect, Append):
            key = self.paths.log_record(effect.position)
            return AppendResult(effect.position, store.put_if_absent(key, effect.data))
        if isinstance(effect, ReadRecord):
            key = self.paths.log_record(effect.position)
            return RecordRead(effect.position, key, self.get(key))
        if isinstance(effect, ReadManifest):
            return ManifestRead(effect.key, manifest_data(effect.record, self.get))
        if isinstance(effect, WriteManifest):
            store.put(effect.key, effect.data)
            return ManifestWritten(effect.key)
        if isinstance(effect, ListForSweep):
            found = [*store.list(self.paths.checkpoints_prefix), *store.list(self.paths.data_prefix)]
            return Listed(tuple(found), tuple(decided_data(record, self.get) for record in effect.manifests))
        if isinstance(effect, Delete):
            return Deleted(self.delete(effect.permit, effect.keys))
        if isinstance(effect, CopySavepoint):
            taken = effect.copy.savepoint
            return SavepointCopied(taken.id, taken.taken.checkpoint, write_savepoint(store, effect.url, effect.copy))
        if isinstance(effect, Compact):
            return Deleted(compact_log(store, self.paths, effect.base, effect.kept, effect.first_sha256, set()))
        assert isinstance(effect, DeleteAll), effect
        found = [*store.list(self.paths.checkpoints_prefix), *store.list(self.paths.data_prefix)]
        self.delete(effect.permit, discarded(self.paths, found, effect.permit.token).keys)
        return DeletedAll()

    def delete(self, permit: Permit, keys: tuple[str, ...]) -> str:
        check_permit(self.store, self.paths, permit)
        self.deleted += keys
        check = lambda: check_permit(self.store, self.paths, permit)  # noqa: E731
        return delete_in_order(self.store, self.paths, keys, check, lambda seconds: None)

    def get(self, key: str) -> bytes | None:
        try:
            return self.store.get(key)
        except ObjectNotFound:
            return None

    # ---- queries

    @property
    def phase(self) -> str:
        return self.protocol.phase

    @property
    def status(self):
        return self.protocol.status(self.now_ms)

    # ---- short cuts

    def run_with(self, *slots: FakeSlot) -> None:
        """Starts a generation with these slots, and connects slots without a connection."""
        self.settle()
        for slot in slots:
            if slot.link == 0 or slot.closed:
                slot.connect()
        self.settle()
        self.later(0)
        for slot in slots:
            slot.restored()
        assert self.phase == "running", self.protocol.reason

    def checkpoint(self, *slots: FakeSlot, files: str = "") -> int:
        before = self.status.checkpoints.triggered
        self.trigger()
        assert self.status.checkpoints.triggered == before + 1
        return self.acknowledge(*slots, files=files)

    def acknowledge(self, *slots: FakeSlot, files: str = "") -> int:
        number = slots[0].last(Trigger).checkpoint
        for slot in slots:
            slot.ack(number, files=files)
        self.settle()
        assert slots[0].last(CheckpointComplete).checkpoint == number
        return number


def started(store: MemoryStore, job: JobSpec | None = None, **arguments: object):
    coordinator = Coordinator(store, job, **arguments).begin()
    slots = (coordinator.slot(0), coordinator.slot(1))
    coordinator.run_with(*slots)
    return coordinator, *slots


def checkpoint(coordinator: Coordinator, *slots: FakeSlot, files: str) -> int:
    for slot in slots:
        for name in files.split():
            if slot.data_key(name) not in keys_of(coordinator.store):
                slot.upload(name)
    return coordinator.checkpoint(*slots, files=files)


def new_generation(coordinator: Coordinator, a: FakeSlot, b: FakeSlot) -> None:
    """Starts a new generation of the same slots, after a failure of slot `a`."""
    a.fail()
    coordinator.settle()
    coordinator.run_with(a, b)


def keys_of(store: MemoryStore) -> tuple[str, ...]:
    return store.keys()


def log_of(store: MemoryStore, job: str = "flights") -> list[Record]:
    """Returns the complete log. Asserts I1 (contiguous) and I3 (tokens never decrease)."""
    paths = Paths(job)
    records: list[Record] = []
    for key in [key for key in keys_of(store) if key.startswith(paths.log_prefix)]:
        assert key == paths.log_record(FIRST_POSITION + len(records)), "the log has a gap"
        records.append(decode_record(key, store.get(key)))
    tokens = [record.token for record in records]
    assert tokens == sorted(tokens), "a token decreased"
    return records


def kinds(store: MemoryStore) -> list[str]:
    return [type(record).__name__.upper() for record in log_of(store)]


def successor(coordinator: Coordinator, index: int = 1, attempt: int = 5) -> FakeSlot:
    slot = coordinator.slot(index, attempt=attempt)
    slot.succeeds, slot.host = True, "other"
    return slot.connect()


def pause(coordinator: Coordinator, *slots: FakeSlot) -> int:
    """Acknowledges checkpoints until the one with which the sources stop is decided; returns the id."""
    coordinator.later(0)
    while not slots[0].last(Trigger).pause:
        coordinator.acknowledge(*slots)
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        slot.ack(number)
    coordinator.settle()
    return number


def commit(coordinator: Coordinator, number: int, *slots: FakeSlot) -> None:
    for slot in slots:
        slot.commit(number)
    coordinator.settle()
    coordinator.later(0)


__all__ = [
    "Coordinator",
    "FakeSlot",
    "Shutdown",
    "commit",
    "kinds",
    "log_of",
    "options",
    "pause",
    "spec",
    "started",
    "successor",
]
