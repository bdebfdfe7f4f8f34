"""Hosts that are away and links that lose packets, in virtual time, with planted bugs."""

import pytest
from hosts import HostWorld, LinkWorld, calm_seeds, host_away, link_lost
from planting import planted

WAITING = "coordinator/job/phases/waiting.py"


def violations(world: HostWorld | LinkWorld) -> list[tuple[str, str]]:
    world.run()
    return world.violations


@pytest.mark.parametrize("schedule", calm_seeds(4), ids=lambda schedule: f"seed{schedule.seed}")
def test_a_job_lives_on_after_a_host_was_away_for_a_minute(schedule):
    assert violations(host_away(schedule)) == []


def test_a_wait_that_ends_every_generation_is_found():
    """Planted bug: `resource_wait_timeout` limits each generation."""
    with planted(
        WAITING,
        "        if _is_first_start(job):\n            return self._dep",
        "        if True:\n            return self._dep",
    ):
        found = [what for schedule in calm_seeds(4) for what, _ in violations(host_away(schedule))]
    assert "JobFailed" in found


@pytest.mark.parametrize("ways", ["both", "there", "back"])
def test_a_lost_link_between_two_slots_is_noticed_within_the_slot_timeout(ways):
    world = link_lost(calm_seeds(1)[0], ways)
    assert violations(world) == []
    assert world.noticed_ms is not None
    assert world.noticed_ms <= 10_500, "the driver looks twice a second"


def test_slots_that_give_no_sign_of_life_are_found():
    """Planted bug: an idle connection is silent, so nobody knows whether packets are lost."""
    with planted("coordinator/job/links.py", "if counted_ms >= self.limit_ms", "if counted_ms < 0"):
        world = link_lost(calm_seeds(1)[0], "there")
        violations(world)
    assert world.noticed_ms is None or world.noticed_ms > 10_500
