"""Hosts that are away and links that lose packets, in virtual time, with planted bugs."""

import pytest
from hosts import HostWorld, calm_seeds, host_away
from planting import planted

WAITING = "coordinator/job/phases/waiting.py"


def violations(world: HostWorld) -> list[tuple[str, str]]:
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
