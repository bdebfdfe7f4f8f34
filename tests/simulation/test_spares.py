"""Spare slots in virtual time, with planted bugs."""

import pytest
from hosts import calm_seeds
from planting import planted
from spares import LeavingSpareWorld, SparesWorld, former_spare_dies, history_lost, spare_leaves, spares_taken
from test_hosts import light

SEEDS = calm_seeds(4, light)
BANK = calm_seeds(1, lambda schedule: light(schedule) and schedule.story == "bank")
SLOTS = "coordinator/job/slots.py"
WAITING = "coordinator/job/phases/waiting.py"


def violations(world: SparesWorld) -> list[tuple[str, str]]:
    world.run()
    return world.violations


@pytest.mark.parametrize("schedule", SEEDS, ids=lambda schedule: f"seed{schedule.seed}")
def test_spares_take_lost_slots_exactly_once_while_spares_and_coordinators_die(schedule):
    world = spares_taken(schedule)
    assert violations(world) == []
    assert world.taken > 1


@pytest.mark.parametrize("schedule", SEEDS[:3], ids=lambda schedule: f"seed{schedule.seed}")
def test_former_spare_leaves_its_host_and_no_row_is_read_twice(schedule):
    world = spare_leaves(schedule)
    assert violations(world) == []
    assert world.taken > 0
    assert world.ended_before_death
    assert world.replays == 0


@pytest.mark.parametrize("schedule", SEEDS[:3], ids=lambda schedule: f"seed{schedule.seed}")
def test_coordinator_without_history_gives_no_spare_the_number_of_a_living_slot(schedule):
    world = history_lost(schedule)
    assert violations(world) == []
    assert (world.struck, world.taken) == (True, 0)


@pytest.mark.parametrize("schedule", SEEDS[:3], ids=lambda schedule: f"seed{schedule.seed}")
def test_former_spare_dies_with_coordinator_and_history_and_rows_are_exact(schedule):
    world = former_spare_dies(schedule)
    assert violations(world) == []
    assert world.struck


def found(*schedules) -> list[str]:
    return [what for schedule in schedules for what, _ in violations(spares_taken(schedule))]


def test_spare_with_the_state_of_the_number_of_its_start_is_found():
    """Planted bug: a spare gets the snapshots of the number under which the driver started the process."""
    with planted(WAITING, "(snapshots, slot.index,", "(snapshots, slot.started_as,"):
        assert found(*BANK)


def leaves(world: LeavingSpareWorld) -> tuple[bool, int, list[tuple[str, str]]]:
    wrong = violations(world)
    return world.ended_before_death, world.replays, wrong


def test_successor_under_the_wrong_number_is_found():
    """Planted bug: the driver starts the successor of a former spare under the slot's number in the job."""
    with planted(
        "coordinator/job/status_view.py",
        "other = slot.started_under_other\n        found",
        "other = -1\n        found",
    ):
        assert leaves(spare_leaves(SEEDS[0])) != (True, 0, [])


def test_numbers_that_are_restored_during_a_departure_are_found():
    """Planted bug: a move off a host gives all processes the numbers of their starts, as a rescale does."""
    with planted(SLOTS, "while resized and (index", "while (index"):
        assert leaves(spare_leaves(SEEDS[0])) != (True, 0, [])


def test_spare_with_the_number_of_a_slot_that_connects_late_is_found():
    """Planted bug: a coordinator without history takes a slot that has not connected yet for a lost slot."""
    with planted(SLOTS, "(self.unknown_until_ms if lost is None", "(0 if lost is None"):
        world = history_lost(SEEDS[0])
        world.run()
        assert world.taken > 0
