"""Hosts that are away and links that lose packets, in virtual time, with planted bugs."""

import pytest
from hosts import (
    CoresWorld,
    HostWorld,
    LinkWorld,
    NoticeWorld,
    calm_seeds,
    cores_lost,
    host_away,
    host_leaves,
    link_lost,
    link_of_machines_lost,
)
from planting import planted
from schedule import Schedule

WAITING = "coordinator/job/phases/waiting.py"


def commits_late(schedule: Schedule) -> bool:
    return schedule.target == "tokens"


def light(schedule: Schedule) -> bool:
    """Whether a minute of the job takes few seconds."""
    return schedule.interval_ms >= 200 and schedule.events is None


def violations(world: CoresWorld | HostWorld | LinkWorld | NoticeWorld) -> list[tuple[str, str]]:
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


@pytest.mark.parametrize("ways", ["both", "there", "back"])
def test_a_link_that_heals_while_slots_connect_costs_no_other_generation(ways):
    world = link_of_machines_lost(calm_seeds(1)[0], ways)
    assert violations(world) == []
    assert world.begun == 1


def test_silence_that_is_over_but_still_reported_is_found():
    """Planted bug: the first report of a running slot repeats the silences of the time before."""
    with planted(
        "barrier_runtime/runtime/slot.py", 'self._phase, self._unheard = "running", {}', 'self._phase = "running"'
    ):
        worlds = [link_of_machines_lost(calm_seeds(1)[0], ways) for ways in ("both", "there", "back")]
        assert [violations(world) for world in worlds] == [[], [], []]
    assert max(world.begun for world in worlds) > 1


def test_slots_that_give_no_sign_of_life_are_found():
    """Planted bug: an idle connection is silent, so nobody knows whether packets are lost."""
    with planted("coordinator/job/links.py", "if counted_ms >= self.limit_ms", "if counted_ms < 0"):
        world = link_lost(calm_seeds(1)[0], "there")
        violations(world)
    assert world.noticed_ms is None or world.noticed_ms > 10_500


@pytest.mark.parametrize("schedule", calm_seeds(2, light), ids=lambda schedule: f"seed{schedule.seed}")
def test_a_job_goes_on_without_lost_cores_and_returns_to_all(schedule):
    world = cores_lost(schedule)
    assert violations(world) == []
    assert min(world.widths) == schedule.parallelism - world.lost.count
    assert world.decided_meanwhile > 1
    assert world.widths[-1] == schedule.parallelism


def test_a_job_that_never_returns_to_its_full_width_is_found():
    """Planted bug: nobody requests the lost slots."""
    asked = "if is_narrow(job.spec) and job.rescales.open is None and not"
    with planted("coordinator/job/phases/moving.py", asked, "if False and not"):
        world = cores_lost(calm_seeds(1, light)[0])
        violations(world)
    assert world.widths[-1] < world.widths[0]


def test_commits_that_are_forgotten_when_a_job_goes_on_with_fewer_slots_are_found():
    """Planted bug: the fewer slots take the rows of the last checkpoint as visible."""
    with planted("coordinator/job/phases/waiting.py", "reason, visible=False)", "reason)"):
        found = [violations(cores_lost(schedule, target_away=True)) for schedule in calm_seeds(2, commits_late)]
    assert all(found), "rows are forgotten, or appear with later rows"


@pytest.mark.parametrize("schedule", calm_seeds(4, light)[2:], ids=lambda schedule: f"seed{schedule.seed}")
def test_coordinators_that_die_meanwhile_change_nothing(schedule):
    world = cores_lost(schedule, coordinators_die=True)
    assert violations(world) == []
    assert min(world.widths) == schedule.parallelism - world.lost.count
    assert world.widths[-1] == schedule.parallelism


@pytest.mark.parametrize("schedule", calm_seeds(2, commits_late), ids=lambda schedule: f"seed{schedule.seed}")
def test_rows_that_lost_slots_had_to_commit_are_committed_by_the_fewer_slots(schedule):
    assert violations(cores_lost(schedule, target_away=True)) == []


@pytest.mark.parametrize("schedule", calm_seeds(3, light), ids=lambda schedule: f"seed{schedule.seed}")
def test_slots_leave_a_host_before_it_dies_and_read_no_row_twice(schedule):
    world = host_leaves(schedule)
    assert violations(world) == []
    assert world.ended_before_death
    assert world.replays == 0


def test_a_successor_that_takes_the_slot_before_the_barrier_is_found():
    """Planted bug: the old process ends when the new process registers, before a checkpoint is decided."""
    with planted(
        "coordinator/job/slots.py", "        succeeds = self._succeeds(register)\n", "        succeeds = False\n"
    ):
        world = host_leaves(calm_seeds(1, light)[0])
        violations(world)
    assert world.replays > 0
