"""Side-by-side databases: a rescale opens the databases of several snapshots, and the running job merges them."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from backend_bench import Bench, checkpoint, drain, of_operator, values

from barrier_runtime.state.backend import restore as restoring
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.backend.stored_part import KeyGroups, StoredPart
from barrier_runtime.state.keys.key_codec import encode_key
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.kv.key_ranges import RANGES_FILE
from barrier_runtime.state.kv.shard import entry_key
from barrier_runtime.state.kv.side_by_side import SideBySide
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.values.table import StateTable
from barrier_runtime.testing.simulation.lsm_kv import LsmBackend

MAX = 128
KEYS = 150
GROUPS = [key_group((key,), MAX) for key in range(KEYS)]


@pytest.fixture(params=["rocksdb", "lsm"])
def beside(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench that opens every non-empty database instead of copying its entries."""
    compacts = random.Random(1)
    monkeypatch.setitem(restoring.BACKENDS, "lsm", LsmBackend(lambda: compacts.random() < 0.3))
    monkeypatch.setattr(restoring.BACKENDS["rocksdb"], "copied_bytes", 0)
    return Bench(tmp_path, request.param)


def keyed_of(snapshot: OperatorSnapshot) -> KeyedSnapshot:
    assert snapshot.keyed is not None
    return snapshot.keyed


def values_of(backend: KeyedBackend) -> StateTable:
    table = backend.opened_table("value")
    assert isinstance(table, StateTable)
    return table


def side_by_side(backend: KeyedBackend) -> SideBySide | None:
    store = backend._shard.kv
    return store if isinstance(store, SideBySide) else None


def is_composite(snapshot: OperatorSnapshot) -> bool:
    return any(ref.name == RANGES_FILE for ref in keyed_of(snapshot).files)


def mine(keyed: KeyedBackend | KeyedSnapshot, state: dict[int, int]) -> dict[int, int]:
    first, last = keyed.key_group_first, keyed.key_group_last
    return {key: value for key, value in state.items() if first <= GROUPS[key] <= last}


class Job:
    """All subtasks of an operator, and their expected state."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.state: dict[int, int] = {}
        self.at_last: dict[int, int] = {}  # `state` at the last checkpoint
        self.snapshots: list[OperatorSnapshot] = []
        self.backends: list[KeyedBackend] = []
        self.number = 0
        self.seen: set[str] = set()

    def start(self, parallelism: int) -> None:
        """Restores the last checkpoint; later changes are lost."""
        for backend in self.backends:
            backend.close()
        if self.random.random() < 0.5:
            self.bench.copies = LocalCopies()  # another process
        self.state = dict(self.at_last)
        self.backends = [self.bench.open(self.snapshots, subtask, parallelism, MAX) for subtask in range(parallelism)]
        for backend in self.backends:
            values(backend)
            if side_by_side(backend) is not None:
                composite = any(map(is_composite, self.snapshots))
                self.seen.add("of a composite" if composite else "side by side")
        self.compare()

    def write(self) -> None:
        backend = self.random.choice(self.backends)
        table = values_of(backend)
        own = list(mine(backend, dict.fromkeys(range(KEYS), 0)))
        for key in self.random.sample(own, min(len(own), self.random.randrange(1, 30))):
            if self.random.random() < 0.4:
                self.state.pop(key, None)
                table.delete((key,))
            else:
                self.state[key] = self.random.randrange(1_000)
                table.put((key,), self.state[key])

    def move(self) -> None:
        store = side_by_side(self.random.choice(self.backends))
        if store is not None:
            store.move(self.random.choice([1, 3, 10, 100]))
            self.seen.add("moving")

    def scan_while_moving(self) -> None:
        for backend in self.backends:
            found, store = {}, side_by_side(backend)
            for key, value in values_of(backend).scan():
                assert key[0] not in found
                found[key[0]] = value
                if store is not None and self.random.random() < 0.2:
                    store.move(5)
                    if self.random.random() < 0.5:
                        store.flush()
            assert found == mine(backend, self.state)

    def checkpoint(self) -> None:
        self.number += 1
        parallelism, taken = len(self.backends), []
        for subtask, backend in enumerate(self.backends):
            taken.append(of_operator(checkpoint(backend, self.number), subtask, parallelism))
        if self.random.random() < 0.2:
            for backend in self.backends:
                backend.snapshots.aborted(self.number)
            return
        for backend in self.backends:
            backend.snapshots.completed(self.number)
        if any(map(is_composite, taken)):
            self.seen.add("composite snapshot")
        if any(map(is_composite, self.snapshots)) and not any(map(is_composite, taken)):
            self.seen.add("one again")
        self.snapshots, self.at_last = taken, dict(self.state)

    def compact(self) -> None:
        self.random.choice(self.backends).compact()

    def compare(self) -> None:
        for backend in self.backends:
            own, table = mine(backend, self.state), values_of(backend)
            assert {key[0]: value for key, value in table.scan()} == own
            for key in self.random.sample(range(KEYS), 20):
                if key in mine(backend, dict.fromkeys(range(KEYS), 0)):
                    assert table.get((key,)) == own.get(key)


@pytest.mark.slow
def test_whatever_happens_between_rescales_the_state_is_that_of_a_dict(beside: Bench) -> None:
    """Between any two moves: writes, deletions, decided and aborted checkpoints, kills, restores at any parallelism.

    Every state is compared, and the stored state is read as by a table."""
    seen: set[str] = set()
    for seed in range(3 if beside.kind == "rocksdb" else 8):
        job = Job(beside, seed)
        job.start(4)
        for _ in range(20):
            job.write()
        job.checkpoint()
        steps = [*[job.write] * 2, *[job.move] * 3, job.scan_while_moving, job.checkpoint, job.compact]
        for parallelism in job.random.choices([1, 2, 3, 4, 5], k=8):
            job.start(parallelism)
            for _ in range(12):
                job.random.choice(steps)()
            job.compare()
            for snapshot in job.snapshots:
                check_as_table(beside, snapshot, job.at_last)
        for backend in job.backends:
            backend.close()
        seen |= job.seen
    assert seen == {"side by side", "of a composite", "moving", "composite snapshot", "one again"}


def check_as_table(bench: Bench, snapshot: OperatorSnapshot, state: dict[int, int]) -> None:
    keyed = keyed_of(snapshot)
    with StoredPart(keyed, bench.store, bench.directory / "read") as part:
        found = {entry_key(key)[0]: msgspec.msgpack.decode(data) for key, data in part.entries("value")}
    assert found == mine(keyed, state)
    some = next(iter(found), None)
    if some is not None and bench.kind == "rocksdb":
        group = GROUPS[some]
        only = KeyGroups("value", group, group, False, encode_key((some,)))
        with StoredPart(keyed, bench.store, bench.directory / "read", only) as part:
            assert [entry_key(key) for key, _ in part.entries("value", group, group)] == [(some,)]


@pytest.mark.slow
def test_a_composite_names_the_stored_files_again_and_so_does_its_restore(
    rocksdb_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 -> 3 and a restart: SSTs of other subtasks' databases are not uploaded again until entries move.

    After the moves a checkpoint names the first database only."""
    bench = rocksdb_bench
    monkeypatch.setattr(restoring.BACKENDS["rocksdb"], "copied_bytes", 0)
    noise = {key: random.Random(key).randbytes(4_000) for key in range(KEYS)}
    taken = []
    for subtask in range(4):
        backend = bench.open([], subtask, 4, MAX)
        table = values(backend)
        for key in mine(backend, dict.fromkeys(noise, 0)):
            table.put((key,), noise[key])
        taken.append(of_operator(checkpoint(backend, 1), subtask, 4))
        backend.close()
    stored = {ref.key for each in taken for ref in keyed_of(each).files if ref.name.endswith(".sst")}
    for number in (2, 3):
        restored, taken = taken, []
        for subtask in range(3):
            backend = bench.open(restored, subtask, 3, MAX)
            store = side_by_side(backend)
            assert store is not None
            taken.append(of_operator(checkpoint(backend, number), subtask, 3))
            large = [ref for ref in keyed_of(taken[-1]).files if ref.size > 20_000]
            assert len(large) == 2
            assert {ref.key for ref in large} <= stored
            assert keyed_of(taken[-1]).new_bytes < 20_000
            backend.close()
    backend = bench.open(taken, 1, 3, MAX)
    store = side_by_side(backend)
    assert store is not None
    while store.move(100):
        pass
    last = of_operator(checkpoint(backend, 4), 1, 3)
    assert {key[0]: value for key, value in values(backend).scan()} == mine(backend, noise)  # type: ignore[arg-type]
    assert store.alone
    assert not is_composite(last)
    assert not (bench.directory / "incarnation-11" / "beside" / "1").exists()
    backend.close()


@pytest.mark.slow
def test_compressible_entries_are_not_copied_in_the_pause_for_their_small_size(tmp_path: Path) -> None:
    """30,000 such entries take few bytes in files, but copying them holds the interpreter for some 80 ms."""
    bench = Bench(tmp_path)
    taken = []
    for subtask in range(2):
        backend = bench.open([], subtask, 2, MAX)
        table = values(backend)
        for key in range(60_000):
            if backend.key_group_first <= key_group((key,), MAX) <= backend.key_group_last:
                table.put((key,), "like all others" * 5)
        taken.append(of_operator(checkpoint(backend, 1), subtask, 2))
        backend.close()
    one = bench.open(taken, 0, 1, MAX)
    assert side_by_side(one) is not None
    one.close()


def test_entries_deleted_after_a_move_stay_deleted_when_boundaries_change_again(beside: Bench) -> None:
    """2 -> 1 -> 2: entries of the second database move into the first, are deleted there and checkpointed.

    The rest moves back into the second database, which had held all of them."""
    state = {key: key for key in range(KEYS)}
    taken = []
    for subtask in range(2):
        backend = beside.open([], subtask, 2, MAX)
        for key in mine(backend, state):
            values_of_new(backend).put((key,), key)
        taken.append(of_operator(checkpoint(backend, 1), subtask, 2))
        backend.close()
    one = beside.open(taken, 0, 1, MAX)
    store, table = side_by_side(one), values(one)
    assert store is not None
    store.move(20)
    for key in [key for key in state if 64 <= GROUPS[key] < 74]:
        table.delete((key,))
        del state[key]
    snapshot = of_operator(checkpoint(one, 2))
    assert is_composite(snapshot)
    one.close()
    again = beside.open([snapshot], 1, 2, MAX)
    store, table = side_by_side(again), values(again)
    assert store is not None
    while store.move(7):
        pass
    assert {key[0]: value for key, value in table.scan()} == mine(again, state)
    again.close()


@pytest.mark.parametrize("steps", [0, 3, 1_000])
def test_databases_of_one_key_group_each_some_of_which_hold_nothing(beside: Bench, steps: int) -> None:
    """4 -> 1 -> 2 -> 4 with four key groups, after any number of merge steps.

    All keys of one group were deleted, another group never had a key."""
    groups = {key: key_group((key,), 4) for key in range(40)}
    state = {key: key for key, group in groups.items() if group in (0, 3)}
    snapshots: list[OperatorSnapshot] = []
    for subtask in range(4):
        backend = beside.open([], subtask, 4, 4)
        table = values_of_new(backend)
        own = [key for key, group in groups.items() if group == subtask != 2]
        for key in own:
            table.put((key,), key)
        checkpoint(backend, 1)
        for key in own:
            if subtask == 1:
                table.delete((key,))
        snapshots.append(of_operator(checkpoint(backend, 2), subtask, 4))
        backend.close()
    for number, parallelism in ((3, 1), (4, 2), (5, 4)):
        before, snapshots = snapshots, []
        for subtask in range(parallelism):
            backend = beside.open(before, subtask, parallelism, 4)
            table, store = values_of_new(backend), side_by_side(backend)
            for _ in range(steps if store is not None else 0):
                if not store.move(2):  # type: ignore[union-attr]
                    break
            own = range(backend.key_group_first, backend.key_group_last + 1)
            wanted = {key: value for key, value in state.items() if groups[key] in own}
            assert {key[0]: value for key, value in table.scan()} == wanted
            snapshots.append(of_operator(checkpoint(backend, number), subtask, parallelism))
            assert {key[0]: value for key, value in table.scan()} == wanted
            backend.close()


def test_entries_move_in_slices_while_writing_is_allowed_until_a_database_is_left(beside: Bench) -> None:
    taken = []
    for subtask in range(2):
        backend = beside.open([], subtask, 2, MAX)
        for key in mine(backend, dict.fromkeys(range(KEYS), 0)):
            values_of_new(backend).put((key,), key)
        taken.append(of_operator(checkpoint(backend, 1), subtask, 2))
        backend.close()
    one = beside.open(taken, 0, 1, MAX)
    values(one)
    later: list[tuple[float, Callable[[], None]]] = []
    one.snapshots.merge(lambda: 0.0, lambda delay_s, work: later.append((delay_s, work)))
    assert not later, "not before a barrier"
    store = side_by_side(one)
    assert store is not None
    one.snapshots.freeze(2)
    later.pop()[1]()
    assert store.move(1), "nothing has moved: the store belongs to the snapshot"
    drain(one)
    one.snapshots.write(2)
    later.pop()[1]()
    assert not store.move(1), "all has moved"
    assert not store.alone, "what is empty is open until the next snapshot"
    checkpoint(one, 3)
    later.pop()[1]()
    assert not later
    assert side_by_side(one) is None
    assert {key[0] for key, _ in values_of(one).scan()} == set(range(KEYS))
    one.close()


def values_of_new(backend: KeyedBackend) -> StateTable:
    return values(backend) if backend.opened_table("value") is None else values_of(backend)
