"""Pins of readers: what they hold back, and for how long. Interleavings of a reader and a coordinator that deletes."""

from barrier_runtime.coordinator.pins import CheckpointPin, PinnedDeletions, pins_of
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.paths import Paths

PATHS = Paths("pinned")


class World:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.store = MemoryStore(now_ms=lambda: self.now_ms)
        self.held_back = PinnedDeletions(self.store, PATHS, lambda: self.now_ms)

    def dropped(self, checkpoint: int) -> list[tuple[str, ...]]:
        return self.held_back.free(keys_of(checkpoint))


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


def test_what_the_reader_finds_after_its_pin_is_never_deleted_whenever_the_coordinator_looks() -> None:
    """The reader knows 5, the job completes 6 and drops 5, at any step of the reader: it reads what is the newest when
    its pin is there."""
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
