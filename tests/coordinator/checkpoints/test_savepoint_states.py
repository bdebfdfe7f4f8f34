"""Requested savepoints, transition by transition: the table of docs/design/savepoints.md."""

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest, Savepoints, SavepointState
from barrier_runtime.coordinator.log.manifest import Manifest

A, LAST = SavepointRequest("a", "memory://a"), SavepointRequest("last", "memory://last", stops=True)


def manifest(checkpoint: int) -> Manifest:
    return Manifest(
        job="flights", lineage="l", checkpoint=checkpoint, token=5, created_wall_ms=0, parallelism=1,
        max_parallelism=128, operators=(), parent_position=1, parent_sha256="",
    )  # fmt: skip


def asked(*requests: SavepointRequest, first: int = 5) -> Savepoints:
    savepoints = Savepoints(frozenset())
    for request in requests:
        assert savepoints.ask(request, first, 0)
    return savepoints


def covered(savepoints: Savepoints) -> dict[str, int | None]:
    return {entry.request.id: entry.covered_by for entry in savepoints.entries}


def states(savepoints: Savepoints) -> dict[str, str]:
    return {entry.request.id: entry.state.value for entry in savepoints.entries}


def visible(through: int, savepoints: Savepoints) -> list[int]:
    """Returns the checkpoints that are due to be copied when all rows up to `through` are visible."""
    return [due.copy.savepoint.taken.checkpoint for due in savepoints.due(lambda checkpoint: checkpoint <= through)]


def test_savepoint_stays_with_its_checkpoint_and_a_stopping_savepoint_moves_on() -> None:
    savepoints = asked(A, LAST)
    for checkpoint in (4, 5, 6):
        savepoints.completed(manifest(checkpoint))
    assert covered(savepoints) == {"a": 5, "last": 6}
    assert savepoints.held == {5, 6}


def test_another_checkpoint_is_wanted_only_while_none_under_way_would_do() -> None:
    savepoints = asked(A)
    assert savepoints.wants_checkpoint([])
    assert savepoints.wants_checkpoint([4])
    assert not savepoints.wants_checkpoint([4, 5])
    savepoints.completed(manifest(5))
    assert not savepoints.wants_checkpoint([])
    assert not savepoints.waiting


def test_a_checkpoint_is_held_from_its_decision_to_the_end_of_its_copy() -> None:
    savepoints = asked(A)
    savepoints.completed(manifest(5))
    assert (visible(4, savepoints), savepoints.held) == ([], {5})
    assert (visible(5, savepoints), savepoints.held) == ([5], {5})
    assert visible(5, savepoints) == [], "each is given once"
    savepoints.copied("a", 5, 100, 1)
    assert (states(savepoints), savepoints.held) == ({"a": "done"}, frozenset())


def test_covered_savepoint_waits_for_the_next_generation_and_a_copy_continues() -> None:
    savepoints = asked(A, SavepointRequest("b", "memory://b"))
    savepoints.completed(manifest(5))
    assert visible(5, savepoints) == [5, 5]
    savepoints.ask(SavepointRequest("c", "memory://c"), 6, 0)
    savepoints.completed(manifest(6))
    savepoints.generation_ended(9)
    assert states(savepoints) == {"a": "copying", "b": "copying", "c": "waiting"}
    savepoints.completed(manifest(8))
    assert covered(savepoints)["c"] is None, "ids below 9 are of the generation that ended"
    savepoints.completed(manifest(9))
    assert (covered(savepoints)["c"], savepoints.held) == (9, {5, 9})


def test_a_copy_of_an_earlier_generation_is_not_what_the_job_stops_with() -> None:
    savepoints = asked(LAST)
    savepoints.completed(manifest(5))
    assert visible(5, savepoints) == [5]
    savepoints.generation_ended(7)
    savepoints.copied("last", 5, 100, 1)
    assert states(savepoints) == {"last": "waiting"}
    savepoints.completed(manifest(7))
    assert visible(7, savepoints) == [7]
    savepoints.copied("last", 5, 100, 1)
    savepoints.not_copied("last", 5, "its files are gone", 1)
    assert states(savepoints) == {"last": "copying"}
    savepoints.copied("last", 7, 100, 1)
    assert states(savepoints) == {"last": "done"}
    savepoints.generation_ended(9)
    assert states(savepoints) == {"last": "waiting"}, "the next generation reads on from that checkpoint"


def test_of_requests_that_are_over_the_newest_fifty_are_told_and_open_ones_all() -> None:
    savepoints = asked(LAST)
    for number in range(60):
        request = SavepointRequest(f"{number}", f"memory://{number}")
        assert savepoints.ask(request, number, 0)
        savepoints.completed(manifest(number))
        savepoints.due(lambda checkpoint: True)
        savepoints.copied(f"{number}", number, 1, 1)
    known = [entry.request.id for entry in savepoints.entries]
    assert known == ["last", *map(str, range(9, 60))], "one is asked for, and then the oldest goes"


def test_nine_savepoints_at_a_time_are_too_many() -> None:
    savepoints = asked(*(SavepointRequest(f"{number}", f"memory://{number}") for number in range(8)))
    assert "8 savepoints are under way" in savepoints.refusal(A)
    assert not savepoints.ask(A, 5, 0)
    savepoints.completed(manifest(5))
    savepoints.due(lambda checkpoint: True)
    savepoints.not_copied("3", 5, "no room", 1)
    assert savepoints.state("3") is SavepointState.FAILED
    assert savepoints.ask(A, 6, 0)
