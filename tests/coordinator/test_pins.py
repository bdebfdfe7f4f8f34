"""Pins of readers: held deletes and their duration, in interleavings of a reader and a deleting coordinator."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from barrier_runtime.coordinator.pins import MOST_WAITING, CheckpointPin, PinnedDeletions, pins_of
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.paths import Paths

PATHS = Paths("pinned")


class World:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.store = MemoryStore(now_ms=lambda: self.now_ms)
        self.held_back = PinnedDeletions(self.store, PATHS, lambda: self.now_ms)

    def dropped(self, checkpoint: int) -> list[tuple[str, ...]]:
        return self.held_back.free(keys_of(checkpoint), checkpoint)


def keys_of(checkpoint: int) -> tuple[str, ...]:
    return PATHS.manifest(checkpoint, 1), PATHS.data_file(1, "slot", f"file-{checkpoint}")


def test_without_a_pin_everything_goes_at_once_and_nothing_is_listed() -> None:
    world = World()
    assert world.dropped(1) == [keys_of(1)]
    assert world.store.calls.get("list", 0) == 0


def test_a_pin_holds_its_checkpoint_and_later_ones_and_lets_earlier_ones_go() -> None:
    world = World()
    pin = CheckpointPin(world.store, PATHS, 5)
    assert world.dropped(4) == [keys_of(4)]
    assert world.dropped(5) == []
    assert world.dropped(6) == []
    pin.release()
    assert world.dropped(7) == [keys_of(5), keys_of(6), keys_of(7)]
    assert world.dropped(8) == [keys_of(8)]


def test_files_whose_checkpoint_nobody_can_tell_wait_for_every_pin() -> None:
    world = World()
    files = (PATHS.data_file(1, "slot", "orphan"),)
    with CheckpointPin(world.store, PATHS, 900):
        assert world.held_back.free(files) == []
    assert world.held_back.free(()) == [files]


def test_an_undecided_manifest_tells_nothing_of_the_files_that_a_sweep_deletes_too() -> None:
    """The manifest of pinned checkpoint 6 is in a log record, so that of checkpoint 4 is the only object."""
    world = World()
    swept = (PATHS.manifest(4, 1), PATHS.data_file(1, "slot", "file-6"))
    with CheckpointPin(world.store, PATHS, 5):
        assert world.held_back.free(swept) == []
        assert world.held_back.free(swept[:1]) == [swept[:1]]
    assert world.held_back.free(()) == [swept]


def test_the_lowest_of_several_pins_counts() -> None:
    world = World()
    first, second = CheckpointPin(world.store, PATHS, 3), CheckpointPin(world.store, PATHS, 5)
    assert world.dropped(3) == []
    first.release()
    assert world.dropped(4) == [keys_of(3), keys_of(4)]
    assert world.dropped(5) == []
    second.release()
    assert world.held_back.free(()) == [keys_of(5)]


def test_a_pin_whose_reader_died_expires_and_is_deleted() -> None:
    world = World()
    CheckpointPin(world.store, PATHS, 5, seconds=60)
    assert world.dropped(5) == []
    world.now_ms += 60_000
    assert world.held_back.free(()) == []
    world.now_ms += 1
    assert world.held_back.free(()) == [keys_of(5)]
    assert pins_of(world.store, PATHS) == []


def test_pins_that_cannot_be_listed_hold_everything() -> None:
    world = World()
    CheckpointPin(world.store, PATHS, 5)
    world.store.inject(Fault.FAIL_BEFORE, "list")
    try:
        world.dropped(4)
    except Exception as error:
        assert "failed" in str(error)  # noqa: PT017
    else:
        raise AssertionError("nothing may be deleted then")
    assert world.dropped(3) == [keys_of(4), keys_of(3)]


def test_a_pin_holds_back_a_bounded_number_of_keys() -> None:
    world = World()
    pin = CheckpointPin(world.store, PATHS, 1)
    many = [tuple(PATHS.data_file(1, "slot", f"{part}-{n}") for n in range(MOST_WAITING // 2)) for part in range(3)]
    assert [world.held_back.free(keys) for keys in many] == [[], [], []]
    pin.release()
    assert world.held_back.free(many[2]) == many
    assert world.held_back.free(()) == []


def test_objects_a_reader_finds_after_its_pin_are_never_deleted_at_any_moment() -> None:
    """The reader knows checkpoint 5; the job completes 6 and drops 5 at any step of the reader.

    The reader reads the checkpoint that is the newest when the pin is stored."""
    for drops_at in range(4):
        world, newest, deleted = World(), 5, []

        def step(at: int, world: World = world, drops_at: int = drops_at, deleted: list[str] = deleted) -> None:
            nonlocal newest
            if at == drops_at:
                newest = 6
                deleted += [key for keys in world.dropped(5) for key in keys]

        step(0)
        known = newest
        step(1)
        pin = CheckpointPin(world.store, PATHS, known)
        step(2)
        found = newest
        step(3)
        assert not set(keys_of(found)) & set(deleted), drops_at
        pin.release()


# ---------------------------------------------------------------- several deletions at once


class Interrupted(MemoryStore):
    """A store that calls `meanwhile` before it returns an answer, like a concurrent thread."""

    meanwhile: Callable[[], object] = lambda: None

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            return super().get(key, offset, size)
        finally:
            self.meanwhile()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = list(super().list(prefix))
        self.meanwhile()
        return iter(found)

    def once(self, happens: Callable[[], object]) -> None:
        """Calls `happens` at the next list."""

        def now() -> None:
            if self.calls.get("list", 0) > before:
                self.meanwhile = lambda: None
                happens()

        before = self.calls.get("list", 0)
        self.meanwhile = now


def interrupted() -> tuple[Interrupted, PinnedDeletions]:
    store = Interrupted()
    return store, PinnedDeletions(store, PATHS, lambda: 1)


def test_what_two_calls_may_both_free_goes_once() -> None:
    store, deletions = interrupted()
    CheckpointPin(store, PATHS, 5).release()
    other: list[tuple[str, ...]] = []
    store.once(lambda: other.extend(deletions.free(keys_of(2), 2)))
    assert deletions.free(keys_of(1), 1) == []
    assert other == [keys_of(1), keys_of(2)]
    assert deletions.free(()) == []


def test_what_comes_to_wait_while_pins_are_listed_is_not_freed_by_that_list() -> None:
    """The list contained no pin; the reader's pin and the dropped checkpoint are both younger."""
    store, deletions = interrupted()
    CheckpointPin(store, PATHS, 5).release()
    pins: list[CheckpointPin] = []

    def meanwhile() -> None:
        pins.append(CheckpointPin(store, PATHS, 7))
        assert deletions.free(keys_of(7), 7) == []

    store.once(meanwhile)
    assert deletions.free(()) == []
    assert deletions.free(keys_of(6), 6) == [keys_of(6)]
    pins[0].release()
    assert deletions.free(()) == [keys_of(7)]


@pytest.mark.parametrize("seed", range(30))
def test_many_concurrent_deletions_run_once_each_and_never_before_an_earlier_pin(
    seed: int,
) -> None:
    """Calls start within other calls, pins are added and removed, and some lists fail."""
    rng = random.Random(seed)
    store, deletions = interrupted()
    held: list[tuple[int, CheckpointPin]] = []
    bound_by: dict[int, list[CheckpointPin]] = {}  # of each dropped checkpoint, the pins that were there
    freed: Counter[int] = Counter()
    depth = 0

    def free(checkpoint: int | None) -> None:
        if checkpoint is not None:
            bound_by[checkpoint] = [pin for pinned, pin in held if pinned <= checkpoint]
        try:
            taken = deletions.free(()) if checkpoint is None else deletions.free(keys_of(checkpoint), checkpoint)
        except Exception as error:
            assert "failed" in str(error)  # noqa: PT017
            return
        still_held = [pin for _, pin in held]
        for keys in taken:
            found = PATHS.checkpoint_of(keys[0])
            assert found is not None
            assert not [pin for pin in bound_by[found[0]] if pin in still_held], (seed, found)
            freed[found[0]] += 1

    def something() -> None:
        nonlocal depth
        if depth == 4:
            return
        depth += 1
        chosen = rng.random()
        if chosen < 0.5:
            free(len(bound_by) + 1)
        elif chosen < 0.6:
            free(None)
        elif chosen < 0.8:
            pinned = max(1, len(bound_by) + rng.randint(-3, 3))
            held.append((pinned, CheckpointPin(store, PATHS, pinned)))
        elif held:
            held.pop(rng.randrange(len(held)))[1].release()
        if chosen > 0.97:
            store.inject(Fault.FAIL_BEFORE, "list")
        depth -= 1

    store.meanwhile = lambda: something() if rng.random() < 0.6 else None
    for _ in range(60):
        something()
    for _, pin in held:
        pin.release()
    held.clear()
    store.meanwhile = lambda: None
    for _ in range(20):  # some lists may still have to fail
        free(None)
    assert freed == Counter(dict.fromkeys(bound_by, 1))
    assert len(freed) > 20
